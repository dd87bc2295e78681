# SPDX-License-Identifier: GPL-2.0-or-later
"""Which socket has a 5-tuple now, as the kernel answers; none, where one only listens. And which
end opened a connection, as the listeners tell (as BPF does: tests/daemon/test_matching_daemon.py).
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from atfnd.model import FlowKey, Protocol
from atfnd.observe.sockets.listening import ListenedPorts
from atfnd.observe.sockets.socket_lookup import SocketLookup
from tests.kernel.netns import APP4, APP6, PEER4, PEER6, Net, packed
from tests.labs import key_of
from tests.observe.observing import cookie
from tests.wait import until

ENDS: dict[int, tuple[str, str]] = {socket.AF_INET: (APP4, PEER4), socket.AF_INET6: (APP6, PEER6)}
FAMILIES = pytest.mark.parametrize("family", ENDS, ids=["4", "6"])


@pytest.fixture
def net() -> Iterator[Net]:
    with ExitStack() as stack:
        yield Net(stack)


@pytest.fixture
def lookup(net: Net) -> Iterator[SocketLookup]:
    with closing(SocketLookup(net.path)) as lookup:
        yield lookup


def listening(net: Net, family: int) -> socket.socket:
    made = net.socket(family, socket.SOCK_STREAM)
    made.bind((ENDS[family][1], 0))
    made.listen(1)
    return made


@FAMILIES
def test_a_connection_lives_at_both_ends_until_it_is_closed(
    net: Net, lookup: SocketLookup, family: int
) -> None:
    listener = listening(net, family)
    local, remote = packed(ENDS[family][1]), packed(ENDS[family][0])
    key = FlowKey(Protocol.TCP, local, listener.getsockname()[1], remote, 999)
    assert lookup.cookie(key) is None  # the listener does not have the flow
    client = net.socket(family, socket.SOCK_STREAM)
    client.bind((ENDS[family][0], 0))
    client.connect(listener.getsockname())
    here, there = key_of(client, Protocol.TCP), None
    assert lookup.cookie(here) == cookie(client)
    there = FlowKey(here.protocol, here.remote, here.remote_port, here.local, here.local_port)
    assert lookup.cookie(there) is not None  # before anybody accepts it
    accepted = listener.accept()[0]
    assert lookup.cookie(there) == cookie(accepted)
    client.shutdown(socket.SHUT_WR)
    assert lookup.cookie(here) == cookie(client)  # data may still come
    accepted.close()
    client.close()
    assert lookup.cookie(here) is None  # TIME_WAIT
    until(lambda: lookup.cookie(there) is None, "the other end has closed")


@FAMILIES
def test_a_udp_socket_by_just_what_it_is_bound_to(
    net: Net, lookup: SocketLookup, family: int
) -> None:
    server, client = (net.socket(family, socket.SOCK_DGRAM) for _ in range(2))
    server.bind((ENDS[family][1], 0))
    client.bind((ENDS[family][0], 0))
    client.connect(server.getsockname())
    local, port = packed(ENDS[family][1]), server.getsockname()[1]
    open_key = FlowKey(Protocol.UDP, local, port, bytes(len(local)), 0)
    assert lookup.cookie(open_key) == cookie(server)
    assert lookup.cookie(key_of(client, Protocol.UDP)) == cookie(client)
    assert lookup.cookie(open_key._replace(remote=packed(ENDS[family][0]), remote_port=7)) is None
    server.close()
    other = net.socket(family, socket.SOCK_DGRAM)
    other.bind(("", port))
    assert lookup.cookie(open_key) is None  # it has the port, and another key
    assert lookup.cookie(open_key._replace(local=bytes(len(local)))) == cookie(other)


V4, V6 = socket.AF_INET, socket.AF_INET6
NOW_NS = 10**12


@pytest.mark.parametrize(
    ("family", "bound", "serves"),
    [(V4, APP4, [APP4]), (V4, "0.0.0.0", [APP4]), (V6, APP6, [APP6]), (V6, "::", [APP4, APP6])],
)
def test_where_somebody_listens(net: Net, family: int, bound: str, serves: list[str]) -> None:
    """A look holds for a while. Nobody listens in a namespace that is not there."""
    ports, none = ListenedPorts(), ListenedPorts()
    listener = net.socket(family, socket.SOCK_STREAM)
    listener.bind((bound, 5000))
    listener.listen()
    for local, remote in ((APP4, PEER4), (APP6, PEER6)):
        flow = FlowKey(Protocol.TCP, packed(local), 5000, packed(remote), 9)
        assert ports.serves(net.path, flow, NOW_NS) == (local in serves)
        assert not ports.serves(net.path, flow._replace(local_port=5001), NOW_NS)
        assert not none.serves("/run/netns/nobody-made-this", flow, NOW_NS)
    listener.close()
    served = FlowKey(Protocol.TCP, packed(serves[-1]), 5000, packed(ENDS[family][1]), 9)
    assert ports.serves(net.path, served, NOW_NS + ports.FRESH_NS - 1)
    assert not ports.serves(net.path, served, NOW_NS + ports.FRESH_NS)


def test_a_connect_lives_before_it_is_answered(net: Net, lookup: SocketLookup) -> None:
    listener, waiting = listening(net, socket.AF_INET), []
    for _ in range(4):  # more than its queue holds: the last ones are not answered
        made = net.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setblocking(False)
        made.bind((APP4, 0))
        assert made.connect_ex(listener.getsockname()) == errno.EINPROGRESS
        waiting.append(made)
    port, listens = waiting[-1].getsockname()[1], listener.getsockname()[1]
    key = FlowKey(Protocol.TCP, packed(APP4), port, packed(PEER4), listens)
    assert lookup.cookie(key) == cookie(waiting[-1])


def test_a_socket_for_both_families(net: Net, lookup: SocketLookup) -> None:
    server = net.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    server.bind(("::", 0))
    for anyone in (bytes(4), bytes(16)):
        key = FlowKey(Protocol.UDP, anyone, server.getsockname()[1], anyone, 0)
        assert lookup.cookie(key) == cookie(server)
