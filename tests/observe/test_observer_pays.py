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


def test_a_thread_that_comes_back_for_a_short_stay_is_not_reported_again(
    shared_lab: Lab, watch: Watch
) -> None:
    """Even where reports are repeated: a queue would follow the thread back and forth."""
    observer = watch(shared_lab, worth_packets=1_000_000, report_again_ns=1)
    pair = directed(shared_lab, shared_lab.tcp_pair)
    on_cpu(WRONG)
    lockstep(*pair, times=1)
    wanders_to(RIGHT)
    assert seen(observer) == [WRONG]
    for _ in range(20):
        for cpu in (RIGHT, WRONG):
            wanders_to(cpu)
            lockstep(*pair, times=10)
    assert seen(observer) == []


def test_a_thread_that_has_stayed_is_reported_again(shared_lab: Lab, watch: Watch) -> None:
    """Whatever its packets are worth: they were asked for once, and have not come."""
    observer = watch(shared_lab, worth_packets=1_000_000, report_again_ns=1)
    peer, host = directed(shared_lab, shared_lab.tcp_pair)
    on_cpu(WRONG)
    lockstep(peer, host)
    observer.drain()

    def calls() -> None:  # that do not sleep: a thread that wakes up may be elsewhere
        for _ in range(3):
            host.send(b"stayed")

    assert WRONG in stays(WRONG, observer, calls)


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
