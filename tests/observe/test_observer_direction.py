# SPDX-License-Identifier: GPL-2.0-or-later
"""Which end opened a connection, as the BPF observer tells it, and as the listeners tell."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from atfnd.model import Direction, FlowKey, Protocol, SocketSeen
from atfnd.observe import Qualify
from atfnd.observe.sockets.bpf import BpfObserver
from atfnd.observe.sockets.listening import ListenedPorts
from tests.kernel.netns import APP4, APP6, PEER4, PEER6, Net, packed
from tests.labs import HOST, PEER, Lab
from tests.observe.observing import WRONG, Pair, directed, napis, on_cpu, use

V4, V6 = socket.AF_INET, socket.AF_INET6
NOW_NS = 10**12
Watching = Callable[[bool], BpfObserver]

pytestmark = pytest.mark.usefixtures("own_affinity")


@pytest.fixture
def watching(shared_lab: Lab) -> Iterator[Watching]:
    with ExitStack() as stack:

        def make(direction: bool) -> BpfObserver:
            observer = stack.enter_context(
                closing(BpfObserver(Qualify(0, 0, 0, direction=direction)))
            )
            observer.watch([shared_lab.netns["host"]], napis(shared_lab))
            return observer

        yield make


def reported(observer: BpfObserver, pair: Pair) -> Direction | None:
    """As of a socket that is used where its packets do not arrive."""
    on_cpu(WRONG)

    def seen() -> list[SocketSeen]:
        return [each for each in observer.drain() if isinstance(each, SocketSeen)]

    found = use(pair, seen, "it is reported")
    return found[0].direction


def connected(lab: Lab) -> Callable[..., Pair]:
    """The host connects, from this port."""

    def make(family: int, port: int) -> Pair:
        listener = lab.open("peer", family, socket.SOCK_STREAM)
        listener.bind((PEER[family], port))
        listener.listen()
        made = lab.open("host", family, socket.SOCK_STREAM)
        made.bind((HOST[family], port))
        made.connect((PEER[family], port))
        return listener.accept()[0], made

    return make


@pytest.mark.parametrize("family", [V4, V6])
def test_it_tells_who_opened_a_connection(shared_lab: Lab, watching: Watching, family: int) -> None:
    observer = watching(True)
    accepted = directed(shared_lab, shared_lab.tcp_pair, family)
    assert reported(observer, accepted) is Direction.ACCEPTED
    pair = directed(shared_lab, connected(shared_lab), family)
    assert reported(observer, pair) is Direction.CONNECTED
    pair[0].close()
    datagrams = directed(shared_lab, shared_lab.udp_pair, family)
    assert reported(observer, datagrams) is None


def test_it_does_not_when_it_was_not_asked(shared_lab: Lab, watching: Watching) -> None:
    observer = watching(False)
    assert reported(observer, directed(shared_lab, shared_lab.tcp_pair)) is None


def test_of_an_older_connection_it_does_not_know(shared_lab: Lab, watching: Watching) -> None:
    pair = directed(shared_lab, shared_lab.tcp_pair)
    assert reported(watching(True), pair) is None


def flow(local: str, port: int) -> FlowKey:
    remote = PEER6 if ":" in local else PEER4
    return FlowKey(Protocol.TCP, packed(local), port, packed(remote), 9)


@pytest.mark.parametrize(
    ("family", "bound", "serves"),
    [(V4, APP4, [APP4]), (V4, "0.0.0.0", [APP4]), (V6, APP6, [APP6]), (V6, "::", [APP4, APP6])],
)
def test_where_somebody_listens(family: int, bound: str, serves: list[str]) -> None:
    with ExitStack() as stack:
        net = Net(stack)
        ports = ListenedPorts()
        listener = net.socket(family, socket.SOCK_STREAM)
        listener.bind((bound, 5000))
        listener.listen()
        for local in (APP4, APP6):
            assert ports.serves(net.path, flow(local, 5000), NOW_NS) == (local in serves)
            assert not ports.serves(net.path, flow(local, 5001), NOW_NS)
        listener.close()
        soon, later = NOW_NS + ports.FRESH_NS - 1, NOW_NS + ports.FRESH_NS
        assert ports.serves(net.path, flow(serves[0], 5000), soon)
        assert not ports.serves(net.path, flow(serves[0], 5000), later)


def test_nobody_listens_in_a_namespace_that_is_gone() -> None:
    with ExitStack() as stack:
        path = Net(stack).path
    assert not ListenedPorts().serves(path, flow(APP4, 5000), NOW_NS)
