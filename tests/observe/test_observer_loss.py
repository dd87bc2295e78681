# SPDX-License-Identifier: GPL-2.0-or-later
"""The BPF observer beside its events: loss, sockets older than itself, adoption."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator

import pytest

from atfnd.model import FlowKey, Protocol, SocketSeen
from atfnd.observe.sockets.bpf import BpfObserver
from tests.labs import HOST, PEER, Lab, key_of
from tests.observe.observing import RIGHT, WRONG, Watch, cookie, direct, directed, lockstep, on_cpu

__all__: list[str] = []

SOCKETS = 2000
PORT = 40000

pytestmark = pytest.mark.usefixtures("own_affinity")


@pytest.fixture
def _many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * SOCKETS), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def last_cpus(observer: BpfObserver) -> dict[int, int]:
    """Where each socket was last reported, of all that waits in the ring."""
    reported: dict[int, int] = {}
    while part := observer.drain():
        reported |= {each.cookie: each.app_cpu for each in part if isinstance(each, SocketSeen)}
    return reported


@pytest.mark.usefixtures("_many_files")
def test_a_lost_event_is_counted_and_the_next_call_reports_it(lab: Lab, watch: Watch) -> None:
    """Thousands of sockets change CPU while nobody drains the ring, until it is full. UDP sockets
    that send: each call is evidence, and nothing has to be received."""
    observer = watch(lab, elsewhere=True)  # else one report would stand for all of the thread
    direct(lab, PORT)
    trigger = lab.open("peer", socket.AF_INET, socket.SOCK_DGRAM)
    trigger.bind((PEER[socket.AF_INET], PORT))
    receivers = []
    for _ in range(SOCKETS):
        receiver = lab.open("host", socket.AF_INET, socket.SOCK_DGRAM)
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        receiver.bind((HOST[socket.AF_INET], 0))
        receiver.connect(trigger.getsockname())
        trigger.sendto(b"x", receiver.getsockname())
        receiver.recv(1)  # now the kernel knows its NAPI
        receivers.append(receiver)
    cookies = {cookie(receiver) for receiver in receivers}
    last_cpus(observer)
    cpu = RIGHT
    while not observer.lost():
        cpu = WRONG if cpu == RIGHT else RIGHT
        on_cpu(cpu)
        for receiver in receivers:
            receiver.send(b"x")
    reported = last_cpus(observer)
    late = {each for each in cookies if reported.get(each) != cpu}
    assert late  # the ring was full when these changed CPU last
    assert observer.lost() <= SOCKETS + 1  # all in the last round; one may be the thread's
    for receiver in receivers:
        receiver.send(b"x")
    assert last_cpus(observer) == dict.fromkeys(late, cpu)
    assert {each.cookie for each in observer.audit()} == cookies


def test_sockets_older_than_the_observer_are_in_its_inventory(
    shared_lab: Lab, watch: Watch
) -> None:
    wanted = {
        (cookie(made), key_of(made, protocol))
        for make, protocol, family in (
            (shared_lab.tcp_pair, Protocol.TCP, socket.AF_INET),
            (shared_lab.udp_pair, Protocol.UDP, socket.AF_INET6),
        )
        for made in [directed(shared_lab, make, family)[1]]
    }
    listener = shared_lab.open("host", socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((HOST[socket.AF_INET], 0))
    listener.listen()
    open_to_all = shared_lab.open("host", socket.AF_INET6, socket.SOCK_DGRAM)
    open_to_all.bind(("::", 0))
    for anyone in (bytes(4), bytes(16)):
        key = FlowKey(Protocol.UDP, anyone, open_to_all.getsockname()[1], anyone, 0)
        wanted.add((cookie(open_to_all), key))
    found = watch(shared_lab).inventory()
    assert wanted <= {(each.cookie, each.key) for each in found}
    assert cookie(listener) not in {each.cookie for each in found}
    assert {each.app_cpu for each in found} == {None}  # listed is not reported


def test_an_adopted_socket_is_as_if_reported(shared_lab: Lab, watch: Watch) -> None:
    kept, moved = (directed(shared_lab, shared_lab.tcp_pair) for _ in range(2))
    on_cpu(RIGHT)
    for pair in (kept, moved):
        lockstep(*pair)
    observer = watch(shared_lab)
    adopted = {cookie(kept[1]): RIGHT, cookie(moved[1]): WRONG}
    observer.adopt(adopted)
    assert {each.cookie: each.app_cpu for each in observer.audit()} == adopted
    for pair in (kept, moved):
        lockstep(*pair)
    assert last_cpus(observer) == {cookie(moved[1]): RIGHT}  # used elsewhere than it was steered to
