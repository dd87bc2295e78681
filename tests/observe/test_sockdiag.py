# SPDX-License-Identifier: GPL-2.0-or-later
"""The sock_diag observer against real sockets of real processes in a namespace of the test."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from atfnd.model import FlowKey, Protocol, SocketGone, SocketSeen
from atfnd.observe import Observation, Observer, Qualify
from atfnd.observe.sockets.sockdiag import SockDiagObserver
from tests.kernel.netns import APP4, APP6, PEER4, PEER6, Net, Talker, packed
from tests.wait import until

EAGER = Qualify(dwell_ns=20_000_000, min_bytes=0, min_age_ns=0)
POLL_S = 0.03


@pytest.fixture
def net() -> Iterator[Net]:
    with ExitStack() as stack:
        yield Net(stack)


def watching(net: Net, qualify: Qualify = EAGER) -> SockDiagObserver:
    observer = SockDiagObserver(qualify, POLL_S)
    net.stack.callback(observer.close)
    observer.watch([net.path], {})
    return observer


def pair(net: Net, transport: str, app: str, peer: str) -> tuple[Talker, Talker]:
    """An echo on the peer's address and a talker on the application's, both on CPU 0."""
    echo = net.talker("echo", transport, peer, "7000")
    echo.tell("pin 0")
    talk = net.talker("talk", transport, peer, "7000", app)
    talk.tell("pin 0")
    return talk, echo


class Log:
    """Every event an observer has reported, drained whenever it is looked at."""

    def __init__(self, observer: SockDiagObserver) -> None:
        self.observer = observer
        self.events: list[Observation] = []
        self.polled = 0
        poll = observer._poll

        def counted(now: int, events: list[Observation]) -> None:
            poll(now, events)
            self.polled += 1

        observer._poll = counted  # type: ignore[method-assign]

    def seen(self, address: str) -> list[SocketSeen]:
        self.events += self.observer.drain()
        local = packed(address)
        return [e for e in self.events if isinstance(e, SocketSeen) and e.key.local == local]

    def gone(self) -> list[SocketGone]:
        self.events += self.observer.drain()
        return [e for e in self.events if isinstance(e, SocketGone)]

    def polls(self, count: int) -> None:
        """Let the observer poll that many times."""
        end = self.polled + count
        until(lambda: (self.gone(), self.polled >= end)[1], f"{count} polls")


@pytest.mark.parametrize(("transport", "app", "peer"), [("tcp", APP4, PEER4), ("udp", APP6, PEER6)])
def test_one_event_per_change_of_core(net: Net, transport: str, app: str, peer: str) -> None:
    talk, _ = pair(net, transport, app, peer)
    log = Log(watching(net))
    script = [0, 1, 0, 1, 0]
    for step, cpu in enumerate(script):
        talk.tell(f"pin {cpu}")
        until(lambda n=step + 1: len(log.seen(app)) >= n, f"event {step + 1}")  # type: ignore[misc]
        log.polls(3)
    events = log.seen(app)
    assert [event.app_cpu for event in events] == script
    assert len({event.cookie for event in events}) == 1
    event = events[0]
    assert event.key[:3] == (Protocol[transport.upper()], packed(app), event.key.local_port)
    assert event.key[3:5] == (packed(peer), 7000)
    assert event.thread is not None
    assert (event.thread.pid, event.thread.tid) == (talk.process.pid, talk.process.pid)
    assert event.thread.uid == os.getuid()
    assert (event.napi_id, event.rx_cpu) == (None, None)
    assert event.at_ns - event.off_since_ns >= EAGER.dwell_ns
    assert (event.bytes > 0) == (transport == "tcp")


def test_a_dual_stack_udp_socket_is_two_flows(net: Net) -> None:
    net.talker("echo", "udp", "::", "7000").tell("pin 1")
    net.talker("talk", "udp", PEER4, "7000", APP4)
    log = Log(watching(net))
    v4 = until(lambda: log.seen("0.0.0.0"), "the IPv4 flow")
    v6 = until(lambda: log.seen("::"), "the IPv6 flow")
    log.polls(3)
    assert len(v4) == len(v6) == 1
    assert (v4[0].cookie, v4[0].app_cpu) == (v6[0].cookie, 1)
    assert v4[0].key == FlowKey(Protocol.UDP, bytes(4), 7000, bytes(4), 0)


def test_a_v4_mapped_connection_is_an_ipv4_flow(net: Net) -> None:
    net.talker("echo", "tcp", "::", "7000")
    net.talker("talk", "tcp", PEER4, "7000", APP4)
    log = Log(watching(net))
    (event,) = until(lambda: log.seen(PEER4), "the accepted socket")
    assert (event.key.local_port, event.key.remote) == (7000, packed(APP4))


def test_an_end_is_reported_once_and_readable_at_once(net: Net) -> None:
    talk, _ = pair(net, "tcp", APP4, PEER4)
    observer = watching(net)
    log = Log(observer)
    (event,) = until(lambda: log.seen(APP4), "the talker's socket")
    assert event.cookie in {use.cookie for use in observer.audit()}
    assert not select.select([observer], [], [], 0)[0]
    talk.tell("close")
    until(lambda: select.select([observer], [], [], 0)[0], "the descriptor readable")
    until(lambda: event.cookie in {gone.cookie for gone in log.gone()}, "its end")
    assert event.cookie not in {use.cookie for use in observer.audit()}
    log.polls(3)
    assert [gone.cookie for gone in log.gone()].count(event.cookie) == 1


def test_threads_on_several_cores_are_no_event(net: Net) -> None:
    talk, _ = pair(net, "tcp", APP4, PEER4)
    talk.tell("thread 1")
    observer = watching(net)
    log = Log(observer)
    until(lambda: (log.gone(), observer.ambiguous >= 10)[1], "ambiguous polls")
    assert log.seen(APP4) == []


def test_an_idle_socket_beside_a_busy_one_is_no_event(net: Net) -> None:
    talk, _ = pair(net, "tcp", APP4, PEER4)
    talk.tell("idle")
    log = Log(watching(net))
    until(lambda: log.seen(APP4), "the busy socket")
    log.polls(10)
    assert len({event.cookie for event in log.seen(APP4)}) == 1


def test_a_socket_that_falls_idle_stays_silent_when_its_process_moves(net: Net) -> None:
    talk, _ = pair(net, "tcp", APP4, PEER4)
    log = Log(watching(net))
    until(lambda: log.seen(APP4), "the talker's socket")
    talk.tell("pause")
    log.polls(3)
    talk.tell("pin 1")
    log.polls(5)
    assert [event.app_cpu for event in log.seen(APP4)] == [0]
    talk.tell("resume")
    until(lambda: len(log.seen(APP4)) == 2, "its new core once it is used")
    assert log.seen(APP4)[1].app_cpu == 1


def test_inventory_finds_what_was_there_before(net: Net) -> None:
    pair(net, "tcp", APP6, PEER6)
    pair(net, "udp", APP4, PEER4)
    observer: Observer = watching(net)
    found = {use.key.local: use for use in observer.inventory()}
    assert set(found) == {packed(a) for a in (APP4, APP6, PEER4, PEER6)}
    assert found[packed(APP6)].key.remote_port == 7000
    assert found[packed(APP6)].app_cpu is None
    assert observer.audit() == []


def test_loopback_and_other_namespaces_are_not_ours(net: Net) -> None:
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        net.socket(family, socket.SOCK_DGRAM).bind((address, 0))
    with ExitStack() as stack:
        other = Net(stack)
        other.socket(socket.AF_INET, socket.SOCK_DGRAM).bind((PEER4, 0))
        observer = watching(net)
        assert observer.inventory() == []
        observer.watch([net.path, other.path], {})
        assert len(observer.inventory()) == 1
        observer.watch([], {})
        assert observer.inventory() == []


def test_a_namespace_that_is_not_there_changes_nothing(net: Net) -> None:
    net.socket(socket.AF_INET, socket.SOCK_DGRAM).bind((PEER4, 0))
    observer = watching(net)
    with pytest.raises(FileNotFoundError):
        observer.watch([net.path, net.path + "-not"], {})
    assert len(observer.inventory()) == 1
