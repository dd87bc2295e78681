# SPDX-License-Identifier: GPL-2.0-or-later
"""The sock_diag observer against real sockets of real processes in a namespace of the test."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from atfnd.model import Protocol, SocketGone, SocketSeen
from atfnd.observe import Observation, Qualify
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


def test_threads_on_several_cores_are_no_event(net: Net) -> None:
    talk, _ = pair(net, "tcp", APP4, PEER4)
    talk.tell("thread 1")
    observer = watching(net)
    log = Log(observer)
    until(lambda: (log.gone(), observer.ambiguous >= 10)[1], "ambiguous polls")
    assert log.seen(APP4) == []


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
