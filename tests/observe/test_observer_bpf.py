# SPDX-License-Identifier: GPL-2.0-or-later
"""The BPF observer alone, over a lab NIC: what it tells, exactly, and what it keeps to itself.

Filters put every flow of a test on queue 0, so `RIGHT` is where all packets arrive and each use of
a socket on `WRONG` is one off its core. Nothing follows: no daemon runs.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import closing

import pytest

from atfnd.bpf import _bpf
from atfnd.model import FlowKey, Protocol, SocketGone, SocketSeen
from atfnd.observe import Observation, Qualify
from atfnd.observe.sockets.bpf import BpfObserver
from tests.labs import HOST, PEER, Lab, key_of, packed
from tests.observe.observing import (
    RIGHT,
    WRONG,
    Watch,
    cookie,
    direct,
    directed,
    lockstep,
    on_cpu,
    use,
)
from tests.wait import until

__all__: list[str] = []

HOUR_NS = 3600 * 10**9

pytestmark = pytest.mark.usefixtures("own_affinity")


def seen(observations: list[Observation]) -> list[SocketSeen]:
    return [each for each in observations if isinstance(each, SocketSeen)]


def gone(observations: list[Observation]) -> list[int]:
    return [each.cookie for each in observations if isinstance(each, SocketGone)]


@pytest.mark.parametrize(
    ("family", "protocol"), [(socket.AF_INET, Protocol.TCP), (socket.AF_INET6, Protocol.UDP)]
)
def test_every_migration_of_a_socket_is_one_event(
    shared_lab: Lab, watch: Watch, family: int, protocol: Protocol
) -> None:
    observer = watch(shared_lab)
    make = shared_lab.tcp_pair if protocol is Protocol.TCP else shared_lab.udp_pair
    _, receiver = pair = directed(shared_lab, make, family)
    on_cpu(RIGHT)
    lockstep(*pair, times=50)
    assert seen(observer.drain()) == []  # RSS has it right
    cpus = [WRONG, RIGHT] * 20
    for cpu in cpus:
        on_cpu(cpu)
        lockstep(*pair, times=25)
    events = seen(observer.drain())
    assert {each.cookie for each in events} == {cookie(receiver)}
    assert [each.app_cpu for each in events] == cpus
    assert {each.key for each in events} == {key_of(receiver, protocol)}
    assert {each.rx_cpu for each in events} == {RIGHT}
    napi_ids = {queue.napi_id for queue in shared_lab.nic.queues() if queue.index == 0}
    assert {each.napi_id for each in events} == napi_ids
    threads = {each.thread for each in events}
    me = threading.get_native_id(), os.getpid(), os.getuid()
    assert {(t.tid, t.pid, t.uid) for t in threads if t} == {me}
    counts = [each.bytes for each in events]
    assert counts == sorted(counts)
    assert observer.lost() == 0


def test_one_event_of_a_pinned_thread_stands_for_all_its_sockets(
    shared_lab: Lab, watch: Watch
) -> None:
    observer = watch(shared_lab)
    pairs = [directed(shared_lab, shared_lab.tcp_pair) for _ in range(4)]
    other = directed(shared_lab, shared_lab.tcp_pair)
    cookies = {cookie(receiver) for _, receiver in pairs}

    def reported() -> list[int]:
        for pair in pairs:
            lockstep(*pair, times=3)
        return [each.cookie for each in seen(observer.drain())]

    on_cpu(WRONG)
    assert {*reported()} == cookies  # each once, so that it is known
    on_cpu(RIGHT)
    assert len(reported()) == 1
    on_cpu(WRONG)
    assert len(reported()) == 1
    lockstep(*other)
    assert [each.cookie for each in seen(observer.drain())] == [cookie(other[1])]  # a new one
    observer.forget(cookies)
    assert {*reported()} == cookies


def test_a_socket_that_was_taken_along_and_does_not_get_its_packets_is_reported(
    shared_lab: Lab, watch: Watch
) -> None:
    again_ns = 50_000_000
    observer = watch(shared_lab, report_again_ns=again_ns)
    pairs = [directed(shared_lab, shared_lab.tcp_pair) for _ in range(2)]
    for cpu in (WRONG, RIGHT, WRONG):
        on_cpu(cpu)
        for pair in pairs:
            lockstep(*pair)
    found = {each.cookie: each.at_ns for each in seen(observer.drain())}
    last = cookie(pairs[1][1])
    assert found[last] < max(found.values())  # it was taken along
    use(pairs[1], lambda: [e for e in seen(observer.drain()) if e.cookie == last], "its report")


def test_each_socket_is_reported_of_a_thread_that_is_not_the_one_reported(
    shared_lab: Lab, watch: Watch
) -> None:
    observer = watch(shared_lab)
    pairs = [directed(shared_lab, shared_lab.tcp_pair) for _ in range(2)]
    cookies = {cookie(receiver) for _, receiver in pairs}
    on_cpu(WRONG)
    for pair in pairs:
        lockstep(*pair)
    assert {each.cookie for each in seen(observer.drain())} == cookies

    def on_the_other() -> None:
        on_cpu(RIGHT)
        for pair in pairs:
            lockstep(*pair)

    thread = threading.Thread(target=on_the_other)
    thread.start()
    thread.join()
    assert {each.cookie for each in seen(observer.drain())} == cookies


def test_an_event_comes_after_dwell(shared_lab: Lab, watch: Watch) -> None:
    observer = watch(shared_lab, dwell_ns=HOUR_NS)
    pair = directed(shared_lab, shared_lab.udp_pair)
    on_cpu(WRONG)
    lockstep(*pair, times=500)
    assert seen(observer.drain()) == []
    dwell_ns = 50_000_000
    observer = watch(shared_lab, dwell_ns=dwell_ns)
    (event,) = use(pair, lambda: seen(observer.drain()), "an event")
    assert event.at_ns - event.off_since_ns >= dwell_ns
    assert event.app_cpu == WRONG


def test_a_thread_seldom_elsewhere_is_no_event(shared_lab: Lab, watch: Watch) -> None:
    """5 % of its calls on another core; and then, as proof that all the rest was right, 100 %."""
    dwell_ns = 5_000_000
    observer = watch(shared_lab, dwell_ns=dwell_ns)
    pair = directed(shared_lab, shared_lab.udp_pair)
    on_cpu(RIGHT)
    lockstep(*pair)
    end_ns = time.monotonic_ns() + 100 * dwell_ns
    while time.monotonic_ns() < end_ns:
        for cpu, calls in ((WRONG, 1), (RIGHT, 19)):
            on_cpu(cpu)
            for _ in range(calls):
                pair[1].send(b"x")
    assert seen(observer.drain()) == []
    on_cpu(WRONG)
    assert len(use(pair, lambda: seen(observer.drain()), "an event")) == 1


def test_an_ipv4_flow_of_an_ipv6_socket_has_an_ipv4_key(shared_lab: Lab, watch: Watch) -> None:
    observer = watch(shared_lab)
    listener = shared_lab.open("host", socket.AF_INET6, socket.SOCK_STREAM)
    listener.bind(("::", 0))
    listener.listen(1)
    port = listener.getsockname()[1]
    direct(shared_lab, port)
    client = shared_lab.open("peer", socket.AF_INET, socket.SOCK_STREAM)
    client.connect((HOST[socket.AF_INET], port))
    with listener.accept()[0] as accepted:
        accepted.settimeout(10)
        on_cpu(WRONG)
        lockstep(client, accepted)
        (event,) = seen(observer.drain())
        local, peer = packed(HOST[socket.AF_INET]), packed(PEER[socket.AF_INET])
        assert event.key == FlowKey(Protocol.TCP, local, port, peer, client.getsockname()[1])


@pytest.mark.parametrize(
    ("bound", "to", "v6only", "locals_"),
    [
        (HOST[socket.AF_INET], HOST[socket.AF_INET], False, [HOST[socket.AF_INET]]),
        ("0.0.0.0", HOST[socket.AF_INET], False, ["0.0.0.0"]),
        (HOST[socket.AF_INET6], HOST[socket.AF_INET6], False, [HOST[socket.AF_INET6]]),
        ("::", HOST[socket.AF_INET], False, ["::", "0.0.0.0"]),
        ("::", HOST[socket.AF_INET6], True, ["::"]),
    ],
)
def test_an_unconnected_udp_socket_is_the_flow_of_its_port(
    shared_lab: Lab, watch: Watch, bound: str, to: str, v6only: bool, locals_: list[str]
) -> None:
    observer = watch(shared_lab)
    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    receiver = shared_lab.open("host", family, socket.SOCK_DGRAM)
    if family == socket.AF_INET6:
        receiver.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, v6only)
    receiver.bind((bound, 0))
    port = receiver.getsockname()[1]
    sender = shared_lab.open("peer", socket.AF_INET6 if ":" in to else socket.AF_INET,
                             socket.SOCK_DGRAM)  # fmt: skip
    sender.connect((to, port))
    lockstep(sender, receiver)
    events = seen(observer.drain())
    assert [each.key for each in events] == [
        FlowKey(Protocol.UDP, packed(local), port, bytes(len(packed(local))), 0)
        for local in locals_
    ]
    assert {(each.rx_cpu, each.cookie) for each in events} == {(None, cookie(receiver))}


def test_only_sockets_that_receive_through_a_watched_nic_are_reported(
    shared_lab: Lab, watch: Watch
) -> None:
    observer = watch(shared_lab)
    loops = []
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        receiver = shared_lab.open("host", family, socket.SOCK_DGRAM)
        receiver.bind((address, 0))
        sender = shared_lab.open("host", family, socket.SOCK_DGRAM)
        sender.connect(receiver.getsockname())
        loops.append((sender, receiver))
    pair = directed(shared_lab, shared_lab.udp_pair)
    for cpu in (RIGHT, WRONG) * 5:
        on_cpu(cpu)
        for each in (*loops, pair):
            lockstep(*each)
    assert {each.cookie for each in seen(observer.drain())} == {cookie(pair[1])}


@pytest.mark.parametrize("make", ["tcp_pair", "udp_pair"])
def test_only_the_end_of_reported_sockets_is_reported(
    shared_lab: Lab, watch: Watch, make: str
) -> None:
    """Not of one that is open elsewhere, too, until its last. (UDP has no state that changes.)"""
    observer = watch(shared_lab)
    assert observer.ends_unseen is None
    reported, silent = (directed(shared_lab, getattr(shared_lab, make)) for _ in range(2))
    on_cpu(RIGHT)
    lockstep(*silent)
    on_cpu(WRONG)
    lockstep(*reported)
    ended = cookie(reported[1])
    assert [each.cookie for each in seen(observer.drain())] == [ended]
    assert [each.cookie for each in observer.audit()] == [ended]
    another = reported[1].dup()
    for _, receiver in (silent, reported):
        receiver.close()
    assert gone(observer.drain()) == []
    another.close()
    assert use(reported, lambda: gone(observer.drain()), "the end", touch=False) == [ended]
    until(lambda: observer.audit() == [], "the kernel has freed the sockets")


def test_more_queues_than_the_map_holds_are_counted_and_the_first_are_seen() -> None:
    with closing(BpfObserver(Qualify(0, 0, 0))) as observer:

        def watched() -> set[int]:
            entries = _bpf.map_items(observer._bpf.map("napis"))
            return {int.from_bytes(napi_id, "little") for napi_id, _ in entries}

        assert observer.watch([None], dict.fromkeys(range(1, 5001), "nic")) == 5000 - 4096
        assert watched() == set(range(1, 4097))
        assert observer.watch([None], dict.fromkeys(range(4000, 6000), "nic")) == 0
        assert watched() == set(range(4000, 6000))
