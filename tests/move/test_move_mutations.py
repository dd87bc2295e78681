# SPDX-License-Identifier: GPL-2.0-or-later
"""The proof is worth something: each rule of the machine, taken out of the real code, is missed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from atfnd.model import ActionKind
from atfnd.model.reason import Why
from atfnd.move import choose, device, evidence, holding, step
from atfnd.move.command import DrainEvidence, Hold, Write
from atfnd.move.event import Asleep, EvidenceLost, HandedOn, Polled, Wanted
from atfnd.move.evidence import Drain
from atfnd.move.loan import Loan
from atfnd.move.port import Port, Stage, lent
from atfnd.move.transition import Moved, Phase, Transition
from tests.move.check import check
from tests.move.cpus import check_follow
from tests.move.scenes import (
    ASYNCHRONOUS,
    BORROWED,
    GRO,
    IN_PLACE,
    OUT_OF_RFS,
    SETTING,
    THREE_PACKETS,
    THROUGH_RFS,
    THROUGH_RSS,
    Case,
)

Patch = pytest.MonkeyPatch


def no_pipe_wait(patch: Patch) -> None:
    patch.setattr(evidence, "opens_ns", lambda done_ns, pipe_ns: done_ns)


def evidence_from_before_t1(patch: Patch) -> None:
    patch.setattr(evidence, "opens_ns", lambda done_ns, pipe_ns: 0)


def no_gro_condition(patch: Patch) -> None:
    patch.setattr(choose, "_why_no_drain", lambda queues, port: None)


def less_than_the_budget(patch: Patch) -> None:
    def drained(poll: Polled) -> bool:
        return poll.work < poll.budget

    patch.setattr(evidence, "drained", drained)


def the_first_end_of_a_poll(patch: Patch) -> None:
    patch.setattr(evidence, "began", lambda drain, poll: True)


def a_sleep_at_any_time(patch: Patch) -> None:
    def slept(drain: Drain, sleep: Asleep) -> Drain:
        return drain._replace(waiting=drain.waiting - {sleep.queue})

    patch.setattr(Drain, "slept", slept)


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


def release_both_rings_at_once(patch: Patch) -> None:
    def following(move: Transition, times: Any, now_ns: int) -> Moved:
        return holding._to_verify(move, times, now_ns)

    patch.setattr(holding, "_next", following)


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


def ask_no_driver_when_its_rules_take_effect(patch: Patch) -> None:
    real = choose.why_no_hold

    def asked(wanted: Any, port: Any, times: Any) -> Why | None:
        return real(wanted, port._replace(asynchronous=False), times)

    patch.setattr(choose, "why_no_hold", asked)


def ask_no_backlog(patch: Patch) -> None:
    for module in (choose, step):
        patch.setattr(module, "handing_on", lambda queues, port: frozenset())


def backlogs_read_before_the_ring_had_drained(patch: Patch) -> None:
    def passed_on(drain: Drain, delivered: HandedOn) -> Drain:
        return drain._replace(handed_on=True)

    patch.setattr(Drain, "passed_on", passed_on)


def call_a_broken_hold_proven(patch: Patch) -> None:
    patch.setattr(Transition, "breaks", lambda move, why: move)


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


def hold_before_the_thread_is_there(patch: Patch) -> None:
    real = choose.why_no_hold

    def soon(wanted: Any, port: Port, times: Any) -> Why | None:
        return real(wanted, lent(port, {"threaded"}), times)

    patch.setattr(choose, "why_no_hold", soon)


def keep_what_is_borrowed(patch: Patch) -> None:
    patch.setattr(Loan, "due_ns", lambda loan, times: None)


class Mutation(NamedTuple):
    """A change of the code, and the property of the case that must be seen to break."""

    change: Callable[[Patch], None]
    case: Case
    breaks: str


LOSSY = IN_PLACE._replace(scene=IN_PLACE.scene._replace(faults=frozenset({"lost event"})))
MUTATIONS = [
    Mutation(no_pipe_wait, IN_PLACE, "InOrder"),
    Mutation(evidence_from_before_t1, IN_PLACE, "InOrder"),
    Mutation(no_gro_condition, GRO, "InOrder"),
    Mutation(less_than_the_budget, THREE_PACKETS, "InOrder"),
    Mutation(the_first_end_of_a_poll, IN_PLACE, "InOrder"),
    Mutation(a_sleep_at_any_time, IN_PLACE, "InOrder"),
    Mutation(hold_after_the_write, IN_PLACE, "I3"),
    Mutation(hold_after_the_write, IN_PLACE, "InOrder"),
    Mutation(hold_only_the_new_ring, THROUGH_RSS, "I3"),
    Mutation(hold_only_the_new_ring, THROUGH_RSS, "InOrder"),
    Mutation(release_both_rings_at_once, THROUGH_RSS, "InOrder"),
    Mutation(release_on_lost_telemetry, LOSSY, "InOrder"),
    Mutation(drained_then_switch, IN_PLACE, "InOrder"),
    Mutation(release_at_the_write, IN_PLACE, "InOrder"),
    Mutation(ask_no_driver_when_its_rules_take_effect, ASYNCHRONOUS, "InOrder"),
    Mutation(ask_no_backlog, OUT_OF_RFS, "InOrder"),
    Mutation(ask_no_backlog, THROUGH_RFS, "InOrder"),
    Mutation(backlogs_read_before_the_ring_had_drained, OUT_OF_RFS, "InOrder"),
    Mutation(call_a_broken_hold_proven, IN_PLACE, "Honest"),
    Mutation(turn_settings_at_once, SETTING, "I5"),
    Mutation(give_back_what_a_hold_needs, BORROWED, "I8"),
    Mutation(hold_before_the_thread_is_there, BORROWED, "I8"),
    Mutation(keep_what_is_borrowed, BORROWED, "FailOpen: threads"),
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
