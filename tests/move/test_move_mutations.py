# SPDX-License-Identifier: GPL-2.0-or-later
"""The proof is worth something: for each property, a rule taken out of the real code is missed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from atfnd.model import ActionKind
from atfnd.move import choose, device, evidence, holding, step
from atfnd.move.command import DrainEvidence, Hold, Write
from atfnd.move.event import EvidenceLost, Wanted
from atfnd.move.evidence import Drain
from atfnd.move.loan import Loan
from atfnd.move.port import Stage
from atfnd.move.transition import Moved, Phase, Transition
from tests.move.check import check
from tests.move.cpus import check_follow
from tests.move.scenes import (
    BORROWED,
    CONNECT,
    GRO,
    IN_PLACE,
    LISTEN,
    OUT_OF_RFS,
    SETTING,
    THROUGH_RSS,
    TOO_LATE,
    Case,
)

Patch = pytest.MonkeyPatch


def no_pipe_wait(patch: Patch) -> None:
    patch.setattr(evidence, "opens_ns", lambda done_ns, pipe_ns: done_ns)


def no_gro_condition(patch: Patch) -> None:
    patch.setattr(choose, "_why_no_drain", lambda queues, port: None)


def hold_after_the_write(patch: Patch) -> None:
    def quiesce(move: Transition, times: Any, now_ns: int) -> Moved:
        queues = move.through | move.targets
        until_ns = now_ns + times.hold_max_ns
        holds = tuple(Hold(queue, until_ns, frozenset()) for queue in sorted(queues))
        move = move._replace(asked=queues, held=queues, due_ns=until_ns, hold_due_ns=until_ns)
        return move, (Write(move.wanted.action), *holds)

    patch.setattr(holding, "quiesce", quiesce)


def hold_only_the_new_ring(patch: Patch) -> None:
    for module in (choose, step):
        patch.setattr(module, "passing", lambda wanted, port: frozenset())


def release_on_lost_telemetry(patch: Patch) -> None:
    real = step.step

    def lossy(move: Transition, event: Any, times: Any, now_ns: int) -> Moved:
        if isinstance(event, EvidenceLost) and move.phase is Phase.SETTLE:
            return holding._to_verify(move, times, now_ns)
        return real(move, event, times, now_ns)

    patch.setattr(device, "step_one", lossy)


def drained_then_switch(patch: Patch) -> None:
    def quiesce(move: Transition, times: Any, now_ns: int) -> Moved:
        rings = move.wanted.origins or frozenset()
        move = move._replace(phase=Phase.SETTLE, due_ns=now_ns + 9, drain=Drain(rings, now_ns))
        return move, tuple(DrainEvidence(queue, now_ns) for queue in rings)

    def following(move: Transition, times: Any, now_ns: int) -> Moved:
        return move._replace(phase=Phase.COMMIT), (Write(move.wanted.action),)

    patch.setattr(holding, "quiesce", quiesce)
    patch.setattr(holding, "_next", following)


def release_at_the_write(patch: Patch) -> None:
    def settle(move: Transition, times: Any, now_ns: int) -> Moved:
        return holding._to_verify(move, times, now_ns)

    patch.setattr(holding, "settle", settle)


def ask_no_backlog(patch: Patch) -> None:
    for module in (choose, step):
        patch.setattr(module, "handing_on", lambda queues, port: frozenset())


def turn_settings_at_once(patch: Patch) -> None:
    real = device._want

    def want(known: device.NicMoves, wanted: Wanted, now_ns: int) -> device.Stepped:
        if wanted.action.kind is not ActionKind.SETTING:
            return real(known, wanted, now_ns)
        turning = (*known.turning, wanted.action)
        return known._replace(turning=turning), (Write(wanted.action),)

    patch.setattr(device, "_want", want)


def give_back_what_a_hold_needs(patch: Patch) -> None:
    patch.setattr(device, "_loan_due_ns", lambda known: known.loan.due_ns(known.times))


def keep_what_is_borrowed(patch: Patch) -> None:
    patch.setattr(Loan, "due_ns", lambda loan, times: None)


def a_birth_that_is_never_too_late(patch: Patch) -> None:
    real = choose._why_no_birth
    patch.setattr(choose, "_why_no_birth", lambda wanted, port, now_ns: real(wanted, port, 0))


def established_at_any_time(patch: Patch) -> None:
    patch.setattr(step, "_established", lambda move, event: move._replace(established=True))


def a_connection_through_an_old_ring_ignored(patch: Patch) -> None:
    patch.setattr(step, "_established", lambda move, event: move)


class Mutation(NamedTuple):
    """A change of the code, and the property of the case that must be seen to break."""

    change: Callable[[Patch], None]
    case: Case
    breaks: str


def only(case: Case, *faults: str) -> Case:
    """The case with just these faults, all of them in one run."""
    faulty = case.scene._replace(faults=frozenset(faults), most_faults=len(faults))
    return case._replace(scene=faulty)


LOSSY = IN_PLACE._replace(scene=IN_PLACE.scene._replace(faults=frozenset({"lost event"})))
MUTATIONS = [
    Mutation(no_pipe_wait, IN_PLACE, "InOrder"),
    Mutation(no_gro_condition, GRO, "InOrder"),
    Mutation(hold_after_the_write, IN_PLACE, "I3"),
    Mutation(hold_only_the_new_ring, THROUGH_RSS, "InOrder"),
    Mutation(release_on_lost_telemetry, LOSSY, "InOrder"),
    Mutation(drained_then_switch, IN_PLACE, "InOrder"),
    Mutation(release_at_the_write, IN_PLACE, "InOrder"),
    Mutation(ask_no_backlog, OUT_OF_RFS, "InOrder"),
    Mutation(turn_settings_at_once, SETTING, "I5"),
    Mutation(give_back_what_a_hold_needs, BORROWED, "I8"),
    Mutation(keep_what_is_borrowed, BORROWED, "FailOpen: threads"),
    Mutation(a_birth_that_is_never_too_late, only(TOO_LATE), "InOrder"),
    Mutation(established_at_any_time, only(CONNECT, "nearer peer"), "Honest"),
    Mutation(a_connection_through_an_old_ring_ignored, only(LISTEN), "Honest"),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.change.__name__)
def test_a_mutation_is_caught(mutation: Mutation, monkeypatch: Patch) -> None:
    mutation.change(monkeypatch)
    case = mutation.case
    order_only = mutation.breaks == "InOrder"
    found = check(case.scene, case.wanted, case.port, order_only)
    assert found.broken is not None, f"not caught in {found.states} states"
    assert found.broken.startswith(mutation.breaks), str(found)


def test_a_queue_that_follows_over_a_stage_of_each_cpu_is_caught(monkeypatch: Patch) -> None:
    monkeypatch.setattr(choose, "_why_not_inline", lambda port: None)
    found = check_follow(frozenset({Stage.GRO_CELLS}))
    assert found.broken is not None
    assert found.broken.startswith("InOrder"), str(found)
