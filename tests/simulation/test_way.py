# SPDX-License-Identifier: GPL-2.0-or-later
"""The way of one socket event, from the ring to the insert, is short, goes down, and is as
docs/internals/architecture.md says.

The event is handed over by a few calls from one room to another (HANDED_OVER). Every other call
across rooms on the way is a question (ASKED): it is answered at once, and the event goes on from
where it was asked. A call into `model` is a value's own, and no call across rooms.
"""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Iterable
from pathlib import Path

import pytest

from atfnd.kernel.netlink.requests import messages
from atfnd.model import cpu_list
from tests.simulation.run import Run
from tests.simulation.schedule import plan
from tests.simulation.way import Call, Function, Way, calls, ways

__all__: list[str] = []

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "architecture.md"
READER = "daemon/sockets.py"
HANDED_OVER = [
    Function("observe/sockets/bpf.py", "drain"),
    Function("policy/match/matching.py", "seen"),
    Function("engine/engine.py", "handle"),
    Function("move/mover.py", "steps"),
    Function("program/actuator.py", "write"),
    Function("nic/ethtool/nic.py", "insert"),
    Function("kernel/ethtool/rxnfc.py", "insert"),
]
ASKED = {
    "daemon -> engine": {"outlived", "steering", "add", "take", "decision_every_ns", "looks_ns"},
    "daemon -> nic": {"interface"},
    "daemon -> observe": {"nic_of", "tunnel_of", "facts", "poll_interval_s"},
    "daemon -> policy": {"groups", "may_borrow"},
    "daemon -> program": {"start", "fileno", "trial", "write_ns", "manual", "lends"},
    "engine -> move": {"in_order", "origins"},
    "move -> program": {"now_ns", "watch", "unwatch", "hold", "in_force"},
    "nic -> kernel": {"filter", "locations", "delete"},
    "observe -> kernel": {"encrypted"},
    "program -> nic": {"filter", "filters"},
}
# A call goes down: to a room that stands on a later line, or on the same one.
DOWN = [["daemon"], ["engine", "policy"], ["move"], ["program"], ["observe"], ["nic"], ["kernel"]]
LEVEL = {room: level for level, rooms in enumerate(DOWN) for room in rooms}
VALUES = ("model",)
DRIVERS = "nic/drivers.py"  # a row of the driver table: the simulated NIC behaves as it says
# What is reported to a room above, off the way: a NIC is not as it was, a filter is tried and must
# be named first.
REPORTED = {
    "observe/nics/watch.py -> daemon/nics.py _read",
    "nic/ethtool/probe.py -> program/journals/filter_journal.py claim",
    "nic/ethtool/probe.py -> program/journals/filter_journal.py release",
}


def short(function: Function) -> Function:
    return function._replace(name=function.name.rpartition(".")[2])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Way]:
    """Those of a few runs without faults, in which flows belong on the cores that use them, and
    queues are received by interrupt."""
    with ways() as found:
        for seed in (0, 3, 20):
            Run(plan(seed), tmp_path_factory.mktemp(f"run{seed}")).go()
    assert len(found) > 5
    return found


@pytest.fixture(scope="module")
def way(found: list[Way]) -> Way:
    """That of one event, on a NIC whose moves are there already."""
    begun = {"trial"}  # with the first move of a NIC, the time of a write is measured
    alone = [
        each
        for each in found
        if each.events == 1 and begun.isdisjoint(short(call.of).name for call in each.calls)
    ]
    return min(alone, key=lambda each: len(each.calls))


def test_what_the_garbage_collector_closes_is_called_by_nobody() -> None:
    closed = []

    def abandoned() -> None:
        begun = messages(bytes.fromhex("1000000001000000 0000000000000000") * 2)
        next(begun)
        loop: list[object] = [begun]
        loop.append(loop)
        closed.append(weakref.ref(begun))

    gc.collect()
    abandoned()
    with calls() as made:
        cpu_list(range(0, 200_000, 2))
    assert made == set()
    gc.collect()
    assert closed[0]() is None


def back_up(calls: Iterable[Call]) -> set[str]:
    return {
        f"{call.by.file} -> {call.of.file} {short(call.of).name}"
        for call in calls
        if LEVEL.get(call.by.room, -1) > LEVEL.get(call.of.room, 9) and call.of.file != DRIVERS
    }


def test_no_room_calls_back_up(found: list[Way]) -> None:
    assert [back_up(way.calls) for way in found] == [set()] * len(found)


def test_nor_does_one_in_a_whole_run_but_to_say_that_a_nic_has_changed(tmp_path: Path) -> None:
    with calls() as made:
        Run(plan(3), tmp_path).go()
    assert len(made) > 500
    assert back_up(made) <= REPORTED


def test_the_event_is_handed_over_once_to_each_room_and_no_more_than_eight_times(way: Way) -> None:
    across = [short(call.of) for call in way.calls if call.by.room != call.of.room]
    [drain, *rest] = HANDED_OVER
    first, *handed = [each for each in across if each in HANDED_OVER]
    assert first == drain
    assert [each for each in handed if each != drain] == rest  # it drains until nothing is left
    assert len(HANDED_OVER) <= 8


def test_all_else_that_crosses_rooms_is_a_question(found: list[Way]) -> None:
    for way in found:
        for call in way.calls:
            if call.by.room == call.of.room or call.of.room in VALUES:
                continue
            there, rooms = short(call.of), f"{call.by.room} -> {call.of.room}"
            assert there in HANDED_OVER or there.name in ASKED.get(rooms, ()), str(call)


def test_it_passes_twelve_files_at_most_as_the_page_says(way: Way) -> None:
    passed = {each.file for each in (*way.stack, *HANDED_OVER)} | {READER}
    assert len(passed) <= 12
    section = PAGE.read_text().partition("## The way of one event")[2].partition("\n## ")[0]
    rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| ")]
    assert {name for row in rows for name in re.findall(r"`([\w/]+\.py)`", row)} == passed
