# SPDX-License-Identifier: GPL-2.0-or-later
"""Threads that are not pinned: their flows follow when the stay has paid for the move."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from atfnd.model import Distance, SocketSeen
from atfnd.observe import Price
from atfnd.observe.sockets.bpf import BpfObserver
from tests.labs import Lab
from tests.observe.observing import (
    RIGHT,
    WRONG,
    Pair,
    Watch,
    directed,
    lockstep,
    on_cpu,
    wanders_to,
)
from tests.wait import until

WORTH = 400  # packets
# Each packet from another CPU costs 1 ns.
PRICE = Price(WORTH, (1, 1, 1), 0, 3600 * 10**9)
DEAR = PRICE._replace(move_ns=1_000_000)

pytestmark = pytest.mark.usefixtures("own_affinity")


def reports(observer: BpfObserver) -> list[SocketSeen]:
    return [each for each in observer.drain() if isinstance(each, SocketSeen)]


def seen(observer: BpfObserver) -> list[int]:
    """The application's CPU in each report since the last look."""
    return [each.app_cpu for each in reports(observer)]


def stays(cpu: int, observer: BpfObserver, call: Callable[[], None], reports: int = 1) -> list[int]:
    """What is reported of calls on this CPU; the scheduler may take the thread away, and then it
    comes again."""
    found: list[int] = []

    def reported() -> bool:
        wanders_to(cpu)
        call()
        found.extend(seen(observer))
        return found.count(cpu) >= reports

    until(reported, f"{reports} reports from CPU {cpu}")
    return found


@pytest.mark.parametrize(
    ("price", "again_ns"),
    [(PRICE, 3600 * 10**9), (DEAR, 1)],  # a queue would follow the thread back and forth
    ids=["reported once", "reported again and again"],
)
def test_short_stays_are_not_reported_however_many_they_are(
    shared_lab: Lab, watch: Watch, price: Price, again_ns: int
) -> None:
    observer = watch(shared_lab, price=price, report_again_ns=again_ns)
    pair = directed(shared_lab, shared_lab.tcp_pair)
    on_cpu(WRONG)
    lockstep(*pair)
    wanders_to(RIGHT)
    assert seen(observer) == [WRONG]
    for _ in range(20):
        for cpu in (RIGHT, WRONG):
            wanders_to(cpu)
            lockstep(*pair, times=10)
    assert seen(observer) == []


def test_a_thread_that_has_stayed_is_reported_again(shared_lab: Lab, watch: Watch) -> None:
    """Whatever its packets are worth: they were asked for once, and have not come."""
    observer = watch(shared_lab, price=DEAR, report_again_ns=1)
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
    observer = watch(shared_lab, price=PRICE._replace(patience_ns=0))  # no move is in vain
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

    assert stays(RIGHT, observer, both, reports=2).count(RIGHT) == 2
    # bytes are as good as calls
    assert stays(WRONG, observer, lambda: lockstep(*pair, times=9, size=50_000)).count(WRONG)


# The first moves are made at once, and each stay that ends within the hour was in vain.
TRUSTING = Price(512, (1, 1, 1), 9, 3600 * 10**9)
ELSEWHERE = max(RIGHT, WRONG) + 1
ONE_CACHE = ({RIGHT: 0, WRONG: 0, ELSEWHERE: ELSEWHERE},)
CALLS = 6  # more than the price after one move in vain (4); two stays are less than after two (16)


def wanders_until(home: Distance, observer: BpfObserver, pair: Pair) -> list[Distance]:
    """The homes that are reported of a thread that is on both CPUs in turn, this one the last."""
    found: list[Distance] = []

    def comes_and_goes() -> bool:
        for cpu in (WRONG, RIGHT):
            wanders_to(cpu)
            lockstep(*pair, times=CALLS)
            found.extend(each.home for each in reports(observer))
        return home in found

    until(comes_and_goes, f"its home is the {home.value}")
    return found


def test_a_thread_that_wanders_within_a_cache_has_it_as_home_and_is_reported_no_more(
    shared_lab: Lab, watch: Watch
) -> None:
    observer = watch(shared_lab, price=TRUSTING, parts=ONE_CACHE)
    pair = directed(shared_lab, shared_lab.tcp_pair)
    found = wanders_until(Distance.LLC, observer, pair)
    assert {*found} == {Distance.CPU, Distance.LLC}
    assert len(found) <= 6  # the first placement, moves in vain, and that it wanders
    for cpu in (WRONG, RIGHT) * 4:
        wanders_to(cpu)
        lockstep(*pair, times=CALLS)
    assert seen(observer) == []


def test_a_thread_begins_in_doubt_and_has_a_home_when_its_stay_has_paid(
    shared_lab: Lab, watch: Watch
) -> None:
    observer = watch(shared_lab, price=TRUSTING._replace(doubt=9))
    pair = directed(shared_lab, shared_lab.tcp_pair)
    wanders_to(WRONG)
    lockstep(*pair, times=CALLS)
    # none, if it has left the CPU
    found = {(each.home, each.pinned) for each in reports(observer)}
    assert found <= {(Distance.MACHINE, False)}

    def settled() -> bool:
        wanders_to(WRONG)
        lockstep(*pair, times=600)
        return Distance.CPU in [each.home for each in reports(observer)]

    until(settled, "its stay has brought the price")


def test_a_flow_whose_packets_come_on_another_cpu_of_the_threads_cache_is_reported_once(
    shared_lab: Lab, watch: Watch
) -> None:
    """RFS may bring them nearer."""
    observer = watch(shared_lab, price=TRUSTING._replace(doubt=9), parts=ONE_CACHE)
    pair = directed(shared_lab, shared_lab.tcp_pair)

    def reported() -> list[SocketSeen]:
        wanders_to(WRONG)
        lockstep(*pair)
        return reports(observer)

    [found] = until(reported, "it is reported")
    assert found.home == Distance.LLC
    for cpu in (WRONG, RIGHT) * 4:
        wanders_to(cpu)
        lockstep(*pair, times=CALLS)
    assert seen(observer) == []
