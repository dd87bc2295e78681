# SPDX-License-Identifier: GPL-2.0-or-later
"""The proof of births is worth something: each rule, taken out of the real code, is missed."""

from __future__ import annotations

from typing import Any

import pytest

from atfnd.engine.filters import port_filters
from atfnd.engine.filters.listeners import Listeners
from atfnd.engine.table.memory import Memory
from atfnd.model import Accepted, FlowKey, NicView
from atfnd.model.reason import Code, Why
from atfnd.move import choose, device, step
from atfnd.move.device import NicMoves
from atfnd.move.event import Established, EvidenceLost
from atfnd.move.transition import Moved, Transition
from tests.move import births
from tests.move.check import check
from tests.move.scenes import CONNECT, LISTEN, MOVED, TOO_LATE, UNKNOWN_EFFECT, Case
from tests.move.test_move_mutations import Mutation, Patch

TALKS = next(case for case in MOVED if case.scene.name == "a first rule")


def a_birth_of_a_flow_that_may_talk(patch: Patch) -> None:
    patch.setattr(choose, "_why_no_birth", lambda wanted, port, now_ns: None)


def a_birth_that_is_never_too_late(patch: Patch) -> None:
    real = choose._why_no_birth
    patch.setattr(choose, "_why_no_birth", lambda wanted, port, now_ns: real(wanted, port, 0))


def a_birth_whose_rule_may_take_effect_later(patch: Patch) -> None:
    real = choose._why_no_birth

    def asked(wanted: Any, port: Any, now_ns: int) -> Why | None:
        return real(wanted, port._replace(asynchronous=False), now_ns)

    patch.setattr(choose, "_why_no_birth", asked)


def established_at_any_time(patch: Patch) -> None:
    patch.setattr(step, "_established", lambda move, event: move._replace(established=True))


def established_in_the_instant_of_t1(patch: Patch) -> None:
    def established(move: Transition, event: Established) -> Transition:
        if event.at_ns is None or event.at_ns < move.done_ns:
            return move.breaks(Code.TOO_EARLY())
        return move._replace(established=True)

    patch.setattr(step, "_established", established)


def established_without_a_report(patch: Patch) -> None:
    patch.setattr(Transition, "_unborn", lambda move: None)


def a_connection_through_an_old_ring_ignored(patch: Patch) -> None:
    patch.setattr(step, "_established", lambda move, event: move)


def a_connection_before_the_rule_ignored(patch: Patch) -> None:
    real = port_filters.exposed

    def exposed(
        event: Accepted, nic: NicView, listeners: Listeners | None, memory: Memory
    ) -> list[FlowKey]:
        return real(event, nic, listeners, memory) if memory.table.covering(event.key) else []

    patch.setattr(port_filters, "exposed", exposed)


def a_birth_that_waits_begins_all_the_same(patch: Patch) -> None:
    def outdated(known: NicMoves, subject: Any, why: str) -> device.Stepped:
        return known, ()

    patch.setattr(device, "_outdated", outdated)


def lost_telemetry_ignored(patch: Patch) -> None:
    real = step.step

    def lossy(move: Transition, event: Any, times: Any, now_ns: int) -> Moved:
        return (move, ()) if isinstance(event, EvidenceLost) else real(move, event, times, now_ns)

    patch.setattr(device, "step_one", lossy)


def out_of_order_as_any(patch: Patch) -> None:
    """Not the machine's: what birth.bpf.c says of a connection that a later segment opened."""
    patch.setattr(births, "in_order", lambda packet: True)


def only(case: Case, *faults: str) -> Case:
    """The case with just these faults, all of them in one run."""
    faulty = case.scene._replace(faults=frozenset(faults), most_faults=len(faults))
    return case._replace(scene=faulty)


NEARER, UNREPORTED = only(CONNECT, "nearer peer"), only(CONNECT, "nearer peer", "lost event")
QUIET, LOSSY = only(LISTEN), only(LISTEN, "lost event")
MUTATIONS = [
    Mutation(a_birth_of_a_flow_that_may_talk, TALKS, "I3"),
    Mutation(a_birth_of_a_flow_that_may_talk, only(TALKS), "InOrder"),
    Mutation(a_birth_that_is_never_too_late, only(TOO_LATE), "InOrder"),
    Mutation(a_birth_whose_rule_may_take_effect_later, only(UNKNOWN_EFFECT), "InOrder"),
    Mutation(established_at_any_time, NEARER, "Honest"),
    Mutation(established_in_the_instant_of_t1, NEARER, "Honest"),
    Mutation(established_without_a_report, UNREPORTED, "Honest"),
    Mutation(a_connection_through_an_old_ring_ignored, QUIET, "Honest"),
    Mutation(a_connection_before_the_rule_ignored, QUIET, "Honest"),
    Mutation(a_birth_that_waits_begins_all_the_same, QUIET, "Honest"),
    Mutation(lost_telemetry_ignored, LOSSY, "Honest"),
    Mutation(out_of_order_as_any, QUIET, "Honest"),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.change.__name__)
def test_a_mutation_of_births_is_caught(mutation: Mutation, monkeypatch: Patch) -> None:
    mutation.change(monkeypatch)
    case = mutation.case
    found = check(case.scene, case.wanted, case.port, mutation.breaks == "InOrder")
    assert found.broken is not None, f"not caught in {found.states} states"
    assert found.broken.startswith(mutation.breaks), str(found)
