# SPDX-License-Identifier: GPL-2.0-or-later
"""The moves of a NIC, driven: a ring that stalls, calls that raise, answers that come late."""

from __future__ import annotations

import errno

import pytest

from atfnd.model import Action, ActionKind, Outcome
from atfnd.model.reason import Code
from atfnd.move.command import Ended
from atfnd.move.device import NicMoves
from atfnd.move.event import (
    Event,
    Polled,
    TimerDue,
    Wanted,
)
from atfnd.move.mover import Mover
from atfnd.move.timer import Times
from atfnd.move.verdict import Mode, Verdict
from tests.move.check import PORT
from tests.move.driven import driven
from tests.move.simulated import PORT_WRITE_NS, SimulatedNic
from tests.values import key

TIMES = Times(arm_ns=2_000_000, quiet_ns=100_000, verify_ns=1_000_000, follow_ns=1_000_000)
RINGS = tuple(ring._replace(size=256, service_pps=1e6) for ring in PORT.rings)
LIKELY = PORT._replace(rings=RINGS, write_ns=PORT_WRITE_NS)


def mover(nic: SimulatedNic) -> Mover:
    return Mover(nic, NicMoves(LIKELY, TIMES))


def to(nic: SimulatedNic, number: int, queue: int, mode: Mode = Mode.STRICT) -> Wanted:
    flow = key(number)
    old = nic.route[flow]
    action = Action(ActionKind.REWRITE, "nic", flow, number, old, queue, Code.UNSAID(), "")
    return Wanted(action, mode, frozenset({old}), frozenset({nic.rss[flow]}))


def ends(said: list[Outcome | Ended]) -> list[Ended]:
    return [each for each in said if isinstance(each, Ended)]


def until_ended(moves: Mover, nic: SimulatedNic, *events: Event) -> list[Ended]:
    """Tell events, then what is observed, until nothing is under way."""
    ended = ends(driven(moves, *events))
    while (due_ns := moves.due_ns()) is not None:
        observed = nic.evidence(min(due_ns, nic.time_ns + 100_000))
        ended += ends(driven(moves, *observed, *nic.idle(), TimerDue()))
    return ended


def test_immediate_moves_off_a_stalled_ring_reorder_and_say_so() -> None:
    nic = SimulatedNic(1)
    moves = mover(nic)
    nic.stalled = {0}
    nic.pass_time(100_000)
    said = ends(driven(moves, to(nic, 0, 1, Mode.IMMEDIATE)))
    nic.evidence(nic.time_ns + 100_000)
    nic.pass_time(100_000)
    nic.stalled = set()
    while not said:
        said = ends(driven(moves, *nic.evidence(nic.time_ns + 50_000), TimerDue()))
    assert said[0].verdict is Verdict.VIOLATED
    assert said[0].violations == nic.overtaken[key(0)] > 0


def test_a_ring_that_does_not_drain_is_given_up_and_called_unproven() -> None:
    nic = SimulatedNic(1)
    nic.stalled = {0}
    [end] = until_ended(mover(nic), nic, to(nic, 0, 1))
    assert end.verdict is Verdict.UNPROVEN
    assert "not drained within" in str(end.why)
    assert end.took_ns >= TIMES.hold_max_ns


CALLS = ["now_ns", "watch", "hold", "in_force", "write", "drain_evidence", "evidence", "release"]


@pytest.mark.parametrize("call", CALLS)
def test_whatever_raises_nothing_stays_quiesced(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nic = SimulatedNic(1)
    real = getattr(nic, call)

    def once(*arguments: object) -> object:
        monkeypatch.setattr(nic, call, real)
        real(*arguments)
        raise RuntimeError("a bug")

    moves = mover(nic)
    monkeypatch.setattr(nic, call, once)
    with pytest.raises(RuntimeError, match="a bug") as raised:
        driven(moves, to(nic, 0, 1))
    assert not nic.quiesced
    assert raised.tb  # which keeps what was under way: it was ended, not collected


class Unattended(SimulatedNic):
    """Its first hold is refused, and so late that the move's time is over: nobody ran us."""

    refusals = 1

    def hold(self, queue: int, until_ns: int, drains: frozenset[int]) -> int:
        if self.refusals:
            self.refusals -= 1
            self.time_ns = until_ns + 1
            raise OSError(errno.ETIMEDOUT, "others have the CPU")
        return super().hold(queue, until_ns, drains)


def test_an_answer_goes_to_the_move_that_asked() -> None:
    nic = Unattended(0)
    first, second = until_ended(mover(nic), nic, to(nic, 0, 1), to(nic, 3, 1), TimerDue())
    assert (first.verdict, second.verdict) == (Verdict.DEFERRED, Verdict.PROVEN)
    assert not nic.quiesced


def test_a_long_burst_of_evidence_is_not_copied_at_each_of_its_events() -> None:
    """It was: the daemon stood still for minutes after a hold beside a busy queue."""
    nic = SimulatedNic(1)
    moves = mover(nic)
    assert driven(moves, *(Polled(0, at_ns, 1, 64) for at_ns in range(200_000))) == []
