# SPDX-License-Identifier: GPL-2.0-or-later
"""Real connections, translated by a namespace that forwards: gen - f0 [masquerades] f1 - sink."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from atfnd.kernel.netlink import rtnl
from atfnd.kernel.netlink.conntrack import Conntrack, counts_bytes
from atfnd.kernel.netlink.requests import Netlink
from atfnd.model import FlowKey, Protocol, TranslatedFlow
from tests.kernel.masquerade import flush, masquerade
from tests.kernel.netns import packed
from tests.observe.forwards import ForwardingNet as Bed
from tests.observe.forwards import forwarding_net

GEN, SINK, OUT = "10.78.0.2", "10.78.1.2", "10.78.1.1"
GEN6, SINK6, OUT6 = "fd78:0::2", "fd78:1::2", "fd78:1::1"
ICMP, ECHO = socket.IPPROTO_ICMP, bytes.fromhex("0800f7ff00000000")
PORT, PAYLOAD, HEADERS = 9, 100, 20 + 8  # IPv4, UDP


@pytest.fixture
def bed() -> Iterator[Bed]:
    with forwarding_net() as made:
        for far, device, near, prefix in (("gen", "g0", "f0", 0), ("sink", "s0", "f1", 1)):
            for where, name, last in (("forwards", near, 1), (far, device, 2)):
                made.ip(where, f"addr add fd78:{prefix}::{last}/64 dev {name} nodad")
            made.ip(far, f"-6 route add default via fd78:{prefix}::1")
        yield made


def translated(bed: Bed, least_bytes: int = 0) -> list[TranslatedFlow]:
    with closing(Conntrack(bed.forwards.path)) as table:
        return [each for some in table.translated(least_bytes) for each in some]


def echoed(bed: Bed, messages: int = 3) -> int:
    """Sends messages through, each answered. Returns the sender's port."""
    sender = bed.gen.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink = bed.sink.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.bind((SINK, PORT))
    sender.connect((SINK, PORT))
    sender.settimeout(10)
    sink.settimeout(10)
    for _ in range(messages):
        sender.send(bytes(PAYLOAD))
        _, source = sink.recvfrom(PAYLOAD)
        assert source[0] == OUT  # it is translated
        sink.sendto(bytes(2 * PAYLOAD), source)
        sender.recv(2 * PAYLOAD)
    port: int = sender.getsockname()[1]
    return port


def key(local: str, local_port: int, remote: str, remote_port: int) -> FlowKey:
    return FlowKey(Protocol.UDP, packed(local), local_port, packed(remote), remote_port)


def test_both_directions_are_flows_as_they_come_in_with_their_bytes(bed: Bed) -> None:
    masquerade(bed.forwards.path)
    port = echoed(bed)
    (found,) = translated(bed)
    assert found.original == key(SINK, PORT, GEN, port)
    assert found.reply == key(OUT, found.reply.local_port, SINK, PORT)
    assert found.original_bytes == 3 * (PAYLOAD + HEADERS)
    assert found.reply_bytes == 3 * (2 * PAYLOAD + HEADERS)
    assert counts_bytes(bed.forwards.path)
    assert found.bytes is not None
    assert translated(bed, found.bytes) == [found]
    assert translated(bed, found.bytes + 1) == []


def test_without_accounting_bytes_are_not_known(bed: Bed) -> None:
    masquerade(bed.forwards.path, counts=False)
    echoed(bed)
    (found,) = translated(bed)
    assert (found.original_bytes, found.reply_bytes, found.bytes) == (None, None, None)
    assert not counts_bytes(bed.forwards.path)


def test_a_flow_of_ipv6_is_read_as_well(bed: Bed) -> None:
    masquerade(bed.forwards.path, socket.AF_INET6)
    sender = bed.gen.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sink = bed.sink.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sink.bind((SINK6, PORT))
    sender.connect((SINK6, PORT))
    sink.settimeout(10)
    sender.send(bytes(PAYLOAD))
    _, source = sink.recvfrom(PAYLOAD)
    assert source[0] == OUT6
    sink.sendto(bytes(PAYLOAD), source)
    (found,) = translated(bed)
    assert found.original == key(SINK6, PORT, GEN6, sender.getsockname()[1])
    assert found.reply == key(OUT6, source[1], SINK6, PORT)
    with closing(Conntrack(bed.forwards.path)) as table:
        assert table.find(found.reply) == found


def test_what_is_forwarded_as_it_is_or_was_never_answered_is_left_out(bed: Bed) -> None:
    masquerade(bed.forwards.path)
    sender = bed.gen.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.sendto(bytes(PAYLOAD), ("10.78.1.99", PORT))  # nobody is there
    ping = bed.gen.inside(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, ICMP))
    bed.gen.stack.enter_context(ping)
    ping.settimeout(10)
    ping.sendto(ECHO, (SINK, 0))
    ping.recv(1500)  # it is translated, and has no ports
    local = bed.gen.socket(socket.AF_INET, socket.SOCK_DGRAM)
    local.connect(("10.78.0.1", PORT))
    local.send(bytes(PAYLOAD))  # answered by ICMP, and not translated
    assert translated(bed) == []


def test_one_is_found_by_either_tuple_until_it_has_ended(bed: Bed) -> None:
    """Each direction comes in by the interface of the route to its source."""
    masquerade(bed.forwards.path)
    echoed(bed)
    (found,) = translated(bed)
    names = {index: each.name for index, each in rtnl.links(bed.forwards.path).items()}
    with closing(Netlink(socket.NETLINK_ROUTE, bed.forwards.path)) as routes:
        came = [rtnl.route(routes, None, each.remote) for each in (found.original, found.reply)]
        ours = rtnl.route(routes, None, packed(OUT))
    assert [names[each or 0] for each in came] == ["f0", "f1"]
    assert names[ours or 0] == "lo"  # what the machine itself has sent comes in by none
    with closing(Conntrack(bed.forwards.path)) as table:
        assert table.find(found.original) == table.find(found.reply) == found
        assert table.find(found.original._replace(remote_port=1)) is None
        flush(bed.forwards.path)
        assert table.find(found.original) is table.find(found.reply) is None
