# SPDX-License-Identifier: GPL-2.0-or-later
"""One application under `auto`: when it is tried off its core, and what it ends with."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from atfnd.compare.trial import TrialPhase
from atfnd.engine.trials.subjects import LLC, PLACING
from atfnd.model import Placement
from atfnd.model.reason import Code
from tests.compare.trying import APP, SECOND_NS, Load, World
from tests.values import key

__all__: list[str] = []

POOR = Load(1.02e9, 1.6)  # a little more, for much more CPU


def test_it_begins_on_its_core_and_stays_while_that_is_not_full() -> None:
    world = World(core=Load(1e9, 0.85))
    for _ in range(50):
        assert world.look() == []
    assert world.placement() is Placement.CORE


def test_a_full_core_is_tried_a_b_a_and_what_pays_is_kept() -> None:
    world = World()
    world.until("trial")
    assert (world.phase, world.placement()) == (TrialPhase.TRIED, LLC)
    world.until("trial")
    assert (world.phase, world.placement()) == (TrialPhase.AGAIN, Placement.CORE)
    world.until("kept")
    assert world.placement() == LLC
    first, _, kept = (each for _, each in world.said)
    assert first.what == "near core -> near llc"
    assert str(first.why) == (
        "it takes 98% of CPU 0; it carries 1.00 GB/s at 1.02 GB a CPU-second and 0.98 ns a byte"
    )
    assert str(kept.why) == (
        "0.98 x the bytes a CPU-second, 1.90 x the bytes a second and 1.02 x the time a byte "
        "of near core: near core 1.00 GB/s at 1.02 GB a CPU-second and 0.98 ns a byte, "
        "near llc 1.90 GB/s at 1.00 GB a CPU-second and 1 ns a byte"
    )


def test_a_trial_takes_three_windows_and_the_moves_between_them() -> None:
    world = World()
    world.until("trial")
    began_ns = world.now_ns
    world.until("kept")
    assert world.now_ns - began_ns == 8 * SECOND_NS


def test_what_does_not_pay_ends_on_the_core_and_waits_twice_as_long_each_time() -> None:
    world = World(llc=POOR)
    begins = []
    for _ in range(4):
        world.until("trial", most=1000)
        begins.append(world.now_ns)
        world.until("back")
        assert world.placement() is Placement.CORE
    waits = [later - earlier for earlier, later in pairwise(begins)]
    assert waits[1] > 1.8 * waits[0] > 3.4 * PLACING.back_off_ns / 2
    assert waits[2] > 1.8 * waits[1]
    assert world.kinds == ["trial", "back"] * 4


def test_the_wait_has_an_end() -> None:
    world = World(llc=POOR)
    for _ in range(12):
        world.until("trial", most=2000)
        world.until("back")
    assert world.rest_ns == PLACING.back_off_max_ns


def test_a_gain_that_goes_when_it_is_back_was_none() -> None:
    """The load grew meanwhile: the second window on the core carries as much as the one off it."""
    world = World()
    world.until("trial")
    world.until("trial")
    world.core = Load(1.9e9, 0.98)
    world.until("back")
    assert world.placement() is Placement.CORE


def test_as_many_bytes_that_wait_less_may_pay_too() -> None:
    """The peer sends at a rate of its own."""
    world = World(core=Load(1e9, 0.98, waits=0.9), llc=Load(1e9, 1.2, waits=0.05))
    world.until("kept")
    assert str(world.said[-1][1].why).startswith(
        "0.82 x the bytes a CPU-second, 1.00 x the bytes a second and 0.66 x the time a byte"
    )


def test_flows_that_cannot_be_moved_are_not_waited_for_for_ever() -> None:
    world = World()
    world.until("trial")
    world.slow = 1000
    world.until("back")
    assert str(world.said[-1][1].why) == "void: near llc was not in force within 60 s"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"void": Code.EVENTS_LOST()}, "void: events were lost"),
        ({"bytes": 1000}, "void: it carried too few bytes"),
        ({"flows": frozenset({key(1), key(2)})}, "void: its flows have changed"),
        ({"began_ns": 0}, "void: its windows are of unequal length"),
    ],
)
def test_a_window_that_tells_nothing_ends_the_trial(changes: dict[str, Any], why: str) -> None:
    world = World()
    world.until("trial")
    world.look()  # they have come there
    assert world.look(**changes) == ["back"]
    assert str(world.said[-1][1].why) == why
    assert world.rest_ns == PLACING.back_off_ns


@pytest.mark.parametrize(
    "changes",
    [
        {"void": Code.EVENTS_LOST()},
        {"bytes": 1000},
        {"there": False},
        {"able": False},
    ],
)
def test_nor_does_it_begin_one(changes: dict[str, Any]) -> None:
    world = World()
    for _ in range(50):
        assert world.look(**changes) == []


def test_one_full_window_is_not_enough() -> None:
    world, idle = World(), Load(1e8, 0.3)
    full = world.core
    for number in range(50):
        world.core = full if number % 2 else idle
        assert world.look() == []


def test_little_to_do_brings_it_home_and_a_pause_does_not() -> None:
    world = World()
    world.until("kept")
    for _ in range(20):
        assert world.look(bytes=0) == []  # a pause: nothing is known of its load
    assert world.look(void=Code.EVENTS_LOST()) == []
    world.llc = Load(0.4e9, 0.4)
    for _ in range(PLACING.leave_windows - 1):
        assert world.look() == []
    assert world.look() == ["back"]
    assert str(world.said[-1][1].why) == (
        "it carries 400.00 MB/s, and its core was saturated by 1.00 GB/s"
    )


def test_less_for_a_moment_does_not() -> None:
    world, busy = World(), World().llc
    world.until("kept")
    for number in range(100):
        world.llc = busy if number % 5 == 4 else Load(0.4e9, 0.4)
        assert world.look() == []


def test_it_is_explained_in_a_clause() -> None:
    world = World(llc=POOR)

    def reported() -> str:
        return world.on().in_words(APP, world.now_ns)

    assert reported() == "auto: near core, until that is saturated and llc is measured to be better"
    world.until("trial")
    world.now_ns += SECOND_NS
    assert reported() == "auto: near llc for 1 s, on trial"
    world.until("back")
    said = reported()
    assert said.startswith(
        "auto: near core since 0 s, 0.62 x the bytes a CPU-second, 1.02 x the bytes a second and "
        "1.60 x the time a byte of near core: near core 1.00 GB/s at "
    )
    assert said.endswith("; near llc is not tried again within 120 s")
    world = World()
    world.until("kept")
    world.now_ns += 12 * SECOND_NS
    assert reported() == (
        "auto: near llc since 12 s, 0.98 x the bytes a CPU-second, 1.90 x the bytes a second and "
        "1.02 x the time a byte of near core"
    )
