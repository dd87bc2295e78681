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
from atfnd.model import Protocol, SocketGone, SocketSeen
from atfnd.observe import Observation, Qualify
from atfnd.observe.sockets.bpf import BpfObserver
from tests.labs import Lab, key_of
from tests.observe.observing import (
    RIGHT,
    WRONG,
    Pair,
    Watch,
    cookie,
    directed,
    lockstep,
    on_cpu,
    use,
)
from tests.wait import until

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
    assert {each.pinned for each in events} == {True}
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
    [event] = seen(observer.drain())  # used elsewhere than it was steered to
    assert (event.cookie, event.app_cpu) == (cookie(moved[1]), RIGHT)


# Sockets whose packets may belong on another CPU than their application's. What is not right is
# reported again with each call.
AT_ONCE = 0


def cpus(observer: BpfObserver) -> list[int]:
    """The application's CPU in each report since the last look."""
    return [each.app_cpu for each in seen(observer.drain())]


def expect(observer: BpfObserver, pair: Pair, cpu: int) -> None:
    """The answer to the last report."""
    observer.expect(cookie(pair[1]), cpu, time.monotonic_ns())


def test_one_that_is_away_on_purpose_is_reported_no_more_from_that_cpu(
    shared_lab: Lab, watch: Watch
) -> None:
    observer = watch(shared_lab, report_again_ns=AT_ONCE, elsewhere=True)
    pair = directed(shared_lab, shared_lab.tcp_pair)
    on_cpu(WRONG)
    lockstep(*pair, times=10)
    assert cpus(observer) == [WRONG] * 10  # nobody has said that this is right
    expect(observer, pair, RIGHT)
    lockstep(*pair, times=100)
    assert cpus(observer) == []
    for cpu in (RIGHT, WRONG):
        on_cpu(cpu)
        lockstep(*pair)
        assert cpus(observer) == [cpu]
    lockstep(*pair)
    assert cpus(observer) == [WRONG]  # until it is said anew


def test_a_late_answer_does_not_hide_the_answer_to_the_last_report(
    shared_lab: Lab, watch: Watch
) -> None:
    """User space is behind: it answers the first report when the second is on its way already."""
    observer = watch(shared_lab, report_again_ns=AT_ONCE, elsewhere=True)
    pair = directed(shared_lab, shared_lab.tcp_pair)
    for cpu in (WRONG, RIGHT):
        on_cpu(cpu)
        lockstep(*pair)
    first, second = seen(observer.drain())
    assert (first.app_cpu, second.app_cpu) == (WRONG, RIGHT)
    observer.expect(first.cookie, RIGHT, first.at_ns)  # it is right there for WRONG
    lockstep(*pair, times=10)
    assert cpus(observer) == []
    observer.expect(second.cookie, WRONG, second.at_ns)
    lockstep(*pair, times=10)
    assert cpus(observer) == [RIGHT] * 10


def test_an_adopted_socket_is_reported_where_its_packets_arrive_until_it_is_said_to_belong_there(
    shared_lab: Lab, watch: Watch
) -> None:
    """Of a filter that an earlier run left nobody knows yet what its policy wants."""
    observer = watch(shared_lab, report_again_ns=AT_ONCE, elsewhere=True)
    pair = directed(shared_lab, shared_lab.tcp_pair)
    observer.adopt({cookie(pair[1]): RIGHT})
    on_cpu(RIGHT)
    lockstep(*pair)
    assert cpus(observer) == [RIGHT]
    expect(observer, pair, RIGHT)
    lockstep(*pair, times=10)
    assert cpus(observer) == []
