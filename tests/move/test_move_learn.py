# SPDX-License-Identifier: GPL-2.0-or-later
"""What the end of a move teaches of T_A."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.move.event import Idle, Seen, TimerDue, Violated
from atfnd.move.learn import Lesson, Record, adapted_ns, demoted
from atfnd.move.timer import Times, pipe_ns
from atfnd.move.verdict import Mechanism, Mode, Verdict
from tests.move.check import PORT
from tests.move.stepped import TIMES, SteppedNic, to
from tests.values import key

__all__: list[str] = []


@pytest.fixture
def nic() -> SteppedNic:
    return SteppedNic()


def test_the_timer_settles_where_epsilon_of_the_moves_reorder() -> None:
    times = replace(Times(), epsilon=0.01)
    timer_ns, floor_ns = 10_000_000, pipe_ns(PORT.rings[0], times)
    for move in range(1000):
        timer_ns = adapted_ns(timer_ns, Lesson(move % 100 == 0, False), floor_ns, times)
    assert timer_ns == pytest.approx(10_000_000, abs=times.learn_ns)
    assert adapted_ns(timer_ns, Lesson(False, True), floor_ns, times) == timer_ns
    assert adapted_ns(floor_ns, Lesson(False, False), floor_ns, times) == floor_ns


def test_a_timer_becomes_as_long_as_a_packet_was_seen_to_stay(nic: SteppedNic) -> None:
    """One gap that was none is enough to know better: it was idle for 1 ms, the packet that was
    overtaken came 4 ms later."""
    queue, wanted = frozenset({0}), to(0, Mode.BOUNDED)
    nic.device = nic.device._replace(port=PORT._replace(holds_max=0))
    nic(wanted)
    idle_ns = max(nic.device.timer_ns(queue), 1_000_000)
    nic(Idle(key(0), nic.now_ns - idle_ns))
    nic.written(wanted)
    nic(Seen(key(0), 1, nic.now_ns))
    nic(Violated(key(0), 1, nic.now_ns + 4_000_000), 4_000_000)
    nic(TimerDue(), TIMES.verify_ns)
    assert nic.verdicts() == [Verdict.VIOLATED]
    assert nic.device.timer_ns(queue) == idle_ns + 4_000_000


def test_a_mechanism_is_not_tried_again_after_its_second_strike() -> None:
    struck = Record(0, (Mechanism.GAP, Mechanism.HOLD))
    assert demoted(struck) == frozenset()
    assert demoted(struck._replace(strikes=(*struck.strikes, Mechanism.GAP))) == {Mechanism.GAP}


def test_a_packet_that_came_late_but_in_order_teaches_too(nic: SteppedNic) -> None:
    queue, wanted = frozenset({0}), to(0, Mode.IMMEDIATE)
    nic(wanted)
    nic.written(wanted)
    nic(Seen(key(0), 0, nic.now_ns + 7_000_000), 7_000_000)
    nic(Seen(key(0), 1, nic.now_ns + 1_000), 1_000)
    nic(TimerDue(), TIMES.verify_ns)
    assert nic.verdicts() == [Verdict.VERIFIED]
    assert nic.device.timer_ns(queue) == 7_000_000
