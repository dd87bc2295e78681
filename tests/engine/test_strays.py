# SPDX-License-Identifier: GPL-2.0-or-later
"""A rule that was written when its flow had been given up is deleted, and nothing else is."""

from __future__ import annotations

import errno

import pytest

from atfnd.engine import audit
from atfnd.engine.filters import strays
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory
from atfnd.model import Action, ActionKind, Outcome
from tests.values import flow, key, memory_of, one_rule

__all__: list[str] = []


def memory() -> Memory:
    return memory_of(FlowTable(100), one_rule(0, 10_000))


def outcome(kind: ActionKind, code: int = 0) -> Outcome:
    action = Action(kind, "nic", key(1), None, 3, 1, "why", "rest")
    return Outcome(action, 5, code, None if code else 17, "")


def test_a_rule_without_an_entry_goes_again() -> None:
    stray = audit.record(outcome(ActionKind.INSERT), memory())
    assert stray is not None
    assert (stray.kind, stray.key, stray.location) == (ActionKind.DELETE, key(1), 17)
    assert (stray.old, stray.new, stray.rule_name) == (1, None, "rest")


@pytest.mark.parametrize(
    "other",
    [
        outcome(ActionKind.INSERT, errno.ENOSPC),
        outcome(ActionKind.DELETE),
        outcome(ActionKind.REWRITE, errno.ENOENT),
    ],
)
def test_what_left_no_rule_is_no_stray(other: Outcome) -> None:
    assert audit.record(other, memory()) is None


def test_a_rule_with_its_entry_is_none() -> None:
    known = memory()
    known.table.put(flow(1))
    assert audit.record(outcome(ActionKind.INSERT), known) is None
    (entry,) = known.table
    assert entry.location == 17


def test_only_a_living_flow_is_waited_for() -> None:
    """A dead one has no packets whose order a hold could keep: its rule stayed for 25 s."""
    known = memory()
    for number in (1, 2):
        action = Action(ActionKind.INSERT, "nic", key(number), None, 3, 1, "why", "rest")
        stray = audit.record(Outcome(action, 5, 0, 17 + number, ""), known)
        assert stray is not None
        strays.note(stray, known)
    due = strays.due(known, lambda _: False, lambda nic, flow: (nic, flow) == ("nic", key(2)))
    assert {action.key: action.live for action in due} == {key(1): False, key(2): True}


def with_stray() -> Memory:
    known = memory()
    stray = audit.record(outcome(ActionKind.INSERT), known)
    assert stray is not None
    strays.note(stray, known)
    return known


def due(known: Memory, *, moving: bool = False) -> list[int]:
    """The generations of the deletes that are due."""
    plan = strays.due(known, lambda key: moving, lambda nic, key: True)
    return [action.generation for action in plan]


def test_a_delete_waits_for_a_move_of_its_flow() -> None:
    known = with_stray()
    assert due(known, moving=True) == []
    assert due(known) == [0]


def test_the_rule_of_a_flow_that_has_come_back_stays() -> None:
    known = with_stray()
    known.table.put(flow(1, location=17, target_queue=1))
    assert due(known) == []
    known.table.remove(key(1))
    assert due(known) == []  # it was dropped for good


def test_a_delete_is_that_of_the_flow_that_is_there_now() -> None:
    """Else it would be taken for outlived, and the rule would stay beside the flow."""
    known = with_stray()
    known.table.put(flow(1))
    assert due(known) == [known.table.generation(key(1))] != [0]


@pytest.mark.parametrize(
    ("code", "again"), [(0, False), (errno.ENOENT, False), (errno.EBUSY, True)]
)
def test_a_delete_is_asked_for_until_the_rule_is_gone(code: int, again: bool) -> None:
    known = with_stray()
    strays.record(outcome(ActionKind.DELETE, code), known)
    assert bool(due(known)) is again
