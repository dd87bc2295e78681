# SPDX-License-Identifier: GPL-2.0-or-later
"""Threads that are not pinned: their flows follow when the stay has paid for the move."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from atfnd.model import SocketSeen
from atfnd.observe.sockets.bpf import BpfObserver
from tests.labs import Lab
from tests.observing import RIGHT, WRONG, Watch, directed, lockstep, on_cpu, wanders_to
from tests.wait import until

__all__: list[str] = []

WORTH = 400  # packets

pytestmark = pytest.mark.usefixtures("own_affinity")


def seen(observer: BpfObserver) -> list[int]:
    """The application's CPU in each report since the last look."""
    return [each.app_cpu for each in observer.drain() if isinstance(each, SocketSeen)]


def stays(cpu: int, observer: BpfObserver, call: Callable[[], None], reports: int = 1) -> list[int]:
    """What is reported of calls on this CPU; the scheduler may take the thread away, and then it
    comes again."""
    found: list[int] = []

    def reported() -> bool:
        wanders_to(cpu)
        call()
        found.extend(seen(observer))
        return len(found) >= reports

    until(reported, f"{reports} reports from CPU {cpu}")
    return found


def test_what_a_wandering_thread_uses_is_placed_once_without_delay(
    shared_lab: Lab, watch: Watch
) -> None:
    observer = watch(shared_lab, worth_packets=1_000_000)
    pair = directed(shared_lab, shared_lab.tcp_pair)
    assert WRONG in stays(WRONG, observer, lambda: lockstep(*pair))


def test_short_stays_are_not_reported_however_many_they_are(shared_lab: Lab, watch: Watch) -> None:
    observer = watch(shared_lab, worth_packets=WORTH)
    pair = directed(shared_lab, shared_lab.tcp_pair)
    on_cpu(WRONG)
    lockstep(*pair)
    assert seen(observer) == [WRONG]
    for _ in range(20):
        for cpu in (RIGHT, WRONG):
            wanders_to(cpu)
            lockstep(*pair, times=10)
    assert seen(observer) == []


def test_a_stay_that_has_brought_what_a_move_costs_is_reported(
    shared_lab: Lab, watch: Watch
) -> None:
    observer = watch(shared_lab, worth_packets=WORTH)
    pair, others = (directed(shared_lab, shared_lab.tcp_pair) for _ in range(2))
    on_cpu(WRONG)
    lockstep(*pair)
    lockstep(*others)
    assert seen(observer) == [WRONG, WRONG]
    wanders_to(RIGHT)
    lockstep(*pair, times=WORTH // 4)
    assert seen(observer) == []

    def both() -> None:  # the flows of one thread count together
        lockstep(*others, times=WORTH // 4)
        lockstep(*pair, times=WORTH // 4)

    assert stays(RIGHT, observer, both, reports=2) == [RIGHT, RIGHT]


def test_bytes_are_as_good_as_calls(shared_lab: Lab, watch: Watch) -> None:
    observer = watch(shared_lab, worth_packets=WORTH)
    pair = directed(shared_lab, shared_lab.tcp_pair)
    on_cpu(WRONG)
    lockstep(*pair)
    assert seen(observer) == [WRONG]
    assert stays(RIGHT, observer, lambda: lockstep(*pair, times=9, size=50_000)) == [RIGHT]


def test_a_pinned_thread_is_followed_at_once(shared_lab: Lab, watch: Watch) -> None:
    observer = watch(shared_lab, worth_packets=1_000_000)
    pair = directed(shared_lab, shared_lab.tcp_pair)
    for cpu in (WRONG, RIGHT, WRONG):
        on_cpu(cpu)
        lockstep(*pair)
        assert seen(observer) == [cpu]


def test_without_a_price_every_stay_is_reported(shared_lab: Lab, watch: Watch) -> None:
    observer = watch(shared_lab)
    pair = directed(shared_lab, shared_lab.tcp_pair)
    for cpu in (WRONG, RIGHT, WRONG):
        assert cpu in stays(cpu, observer, lambda: lockstep(*pair))


def events(observer: BpfObserver) -> list[SocketSeen]:
    return [each for each in observer.drain() if isinstance(each, SocketSeen)]


def moved_in_vain(
    observer: BpfObserver, call: Callable[[], None], times: int, cpu: int = RIGHT
) -> int:
    """So many stays pay for a move, and end right after it. Returns the CPU of the last."""
    for _ in range(times):
        assert stays(cpu, observer, call) == [cpu]
        cpu = RIGHT + WRONG - cpu
        wanders_to(cpu)
    return RIGHT + WRONG - cpu


def test_after_each_move_in_vain_a_stay_has_to_bring_twice_as_much(
    shared_lab: Lab, watch: Watch
) -> None:
    observer = watch(shared_lab, worth_packets=WORTH)
    pair = directed(shared_lab, shared_lab.tcp_pair)
    on_cpu(WRONG)
    lockstep(*pair)
    assert seen(observer) == [WRONG]
    moved_in_vain(observer, lambda: lockstep(*pair, times=WORTH // 2), 1)
    lockstep(*pair, times=WORTH // 2 + 10)  # two calls each
    assert seen(observer) == []
    assert stays(WRONG, observer, lambda: lockstep(*pair, times=WORTH // 4)) == [WRONG]


def test_what_a_thread_uses_that_moves_in_vain_again_is_said_to_wander_once(
    shared_lab: Lab, watch: Watch
) -> None:
    observer = watch(shared_lab, worth_packets=WORTH)
    pair, others = (directed(shared_lab, shared_lab.tcp_pair) for _ in range(2))
    on_cpu(WRONG)
    lockstep(*pair)
    lockstep(*others)
    assert seen(observer) == [WRONG, WRONG]
    last = moved_in_vain(observer, lambda: lockstep(*pair, times=WORTH // 2), 2)
    found: list[SocketSeen] = []

    def both_told() -> bool:
        for cpu in (RIGHT + WRONG - last, last):
            wanders_to(cpu)
            lockstep(*pair, times=5)
            lockstep(*others, times=5)
            found.extend(events(observer))
        return len(found) >= 2

    until(both_told, "both sockets are said to wander")
    assert [each.wanders for each in found] == [True, True]
    assert len({each.cookie for each in found}) == 2
    for _ in range(10):
        both_told()
    assert len(found) == 2

    def settles() -> list[SocketSeen]:
        lockstep(*pair, times=WORTH)
        return events(observer)

    settled = until(settles, "a long stay pays")
    assert [each.wanders for each in settled] == [False]
