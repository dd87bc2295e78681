# SPDX-License-Identifier: GPL-2.0-or-later
"""Decisions: what is placed where, when it is held back, and that entries and rules never part."""

from __future__ import annotations

from atfnd.engine import audit
from atfnd.engine.placement import steer
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    ActionKind,
    Outcome,
    Plan,
)
from tests.values import NIC, RULE, memory_of, one_rule, seen

HOLD_NS = 100
T_DELETE_NS = 10_000


def memory(capacity: int = 100) -> Memory:
    return memory_of(FlowTable(capacity), one_rule(HOLD_NS, T_DELETE_NS))


def carried_out(plan: Plan, known: Memory, at_ns: int, location: int = 7) -> None:
    for action in plan:
        audit.record(Outcome(action, at_ns, 0, action.location or location, ""), known)


def steered(known: Memory, cpu: int = 1, at_ns: int = 1) -> None:
    carried_out(steer.seen(seen(1, cpu), NIC, RULE, known, at_ns), known, at_ns)


def test_a_move_that_waited_until_it_was_decided_otherwise_is_taken_back() -> None:
    """Its thread went to CPU 2 and came back before the move there had its turn."""
    known = memory()
    steered(known, cpu=1, at_ns=1)
    (late,) = steer.seen(seen(1, 2), NIC, RULE, known, 1000)
    assert steer.seen(seen(1, 1), NIC, RULE, known, 1001) == ()
    done = Outcome(late, 1002, 0, 7, "")
    audit.record(done, known)
    audit.overtaken(done, NIC, known)
    (back,) = steer.due({"nic": NIC}, known, 1002 + HOLD_NS)
    assert (back.kind, back.old, back.new) == (ActionKind.REWRITE, 2, 1)
    done = Outcome(back, 2000, 0, 7, "")
    audit.record(done, known)
    audit.overtaken(done, NIC, known)
    assert not known.table.deferred()
