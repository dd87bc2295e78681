# SPDX-License-Identifier: GPL-2.0-or-later
"""The moves of a NIC, driven: a ring that stalls, calls that raise, answers that come late."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest

from atfnd.model import Action, ActionKind, FlowKey, Outcome
from atfnd.model.reason import Code
from atfnd.move.command import Ended
from atfnd.move.device import NicMoves
from atfnd.move.event import Asleep, Event, Polled, TimerDue, Wanted
from atfnd.move.mover import Mover
from atfnd.move.timer import Times
from atfnd.move.verdict import Mode, Verdict
from tests.move.check import PORT
from tests.move.driven import driven
from tests.values import key

WRITE_NS = 10_000
TIMES = Times(arm_ns=2_000_000, quiet_ns=100_000, verify_ns=1_000_000, follow_ns=1_000_000)
RINGS = tuple(ring._replace(size=256, service_pps=1e6) for ring in PORT.rings)
LIKELY = PORT._replace(rings=RINGS, write_ns=WRITE_NS)


class Kernel:
    """Each look at its clock takes 500 ns. A queue that is to drain is empty 100 us later, unless
    it stands still."""

    def __init__(self) -> None:
        self.time_ns, self.stands_still = 1_000_000, False
        self.quiesced: set[int] = set()
        self.drains: list[int] = []

    def now_ns(self) -> int:
        self.time_ns += 500
        return self.time_ns

    def write(self, action: Action) -> Outcome:
        self.time_ns += WRITE_NS
        return Outcome(action, self.time_ns, 0, action.location, "")

    def hold(self, queue: int, until_ns: int, drains: frozenset[int]) -> int:
        assert not self.quiesced, "I1: one queue is held at a time"
        self.quiesced.add(queue)
        return self.time_ns

    def in_force(self, queue: int) -> bool:
        return queue in self.quiesced

    def release(self, queue: int) -> bool:
        unbroken = queue in self.quiesced
        self.quiesced.discard(queue)
        return unbroken

    def watch(self, *of: object, **named: object) -> None: ...

    def unwatch(self, key: FlowKey) -> None: ...

    def stands(self, key: FlowKey, location: int, queue: int) -> bool:
        return True

    def delivered_ns(self, key: FlowKey) -> int | None:
        return None

    def drain_evidence(self, queue: int, from_ns: int, hands_on: bool) -> None:
        self.drains.append(queue)

    def evidence(self, until_ns: int) -> Sequence[Event]:
        if self.stands_still or not self.drains:
            self.time_ns = until_ns
            return []
        self.time_ns += 100_000
        drained, self.drains = self.drains, []
        return [Asleep(queue, self.time_ns) for queue in drained]


def mover(kernel: Kernel) -> Mover:
    return Mover(kernel, NicMoves(LIKELY, TIMES))


def to(number: int, old: int, new: int) -> Wanted:
    action = Action(ActionKind.REWRITE, "nic", key(number), number, old, new, Code.UNSAID(), "")
    return Wanted(action, Mode.STRICT, frozenset({old}), frozenset({old}))


def until_ended(moves: Mover, kernel: Kernel, *events: Event) -> list[Ended]:
    """Tell events, then that time passes, until nothing is under way."""
    said = driven(moves, *events)
    while (due_ns := moves.due_ns()) is not None:
        kernel.time_ns = max(kernel.time_ns, due_ns)
        said += driven(moves, TimerDue())
    return [each for each in said if isinstance(each, Ended)]


def test_a_ring_that_does_not_drain_is_given_up_and_called_unproven() -> None:
    kernel = Kernel()
    kernel.stands_still = True
    [end] = until_ended(mover(kernel), kernel, to(0, 0, 1))
    assert end.verdict is Verdict.UNPROVEN
    assert "not drained within" in str(end.why)
    assert end.took_ns >= TIMES.hold_max_ns


CALLS = ["now_ns", "watch", "hold", "in_force", "write", "drain_evidence", "evidence", "release"]


@pytest.mark.parametrize("call", CALLS)
def test_whatever_raises_nothing_stays_quiesced(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    real = getattr(kernel, call)

    def once(*arguments: object) -> object:
        monkeypatch.setattr(kernel, call, real)
        real(*arguments)
        raise RuntimeError("a bug")

    moves = mover(kernel)
    monkeypatch.setattr(kernel, call, once)
    with pytest.raises(RuntimeError, match="a bug") as raised:
        driven(moves, to(0, 0, 1))
    assert not kernel.quiesced
    assert raised.tb  # which keeps what was under way: it was ended, not collected


class Unattended(Kernel):
    """Its first hold is refused, and so late that the move's time is over: nobody ran us."""

    refusals = 1

    def hold(self, queue: int, until_ns: int, drains: frozenset[int]) -> int:
        if self.refusals:
            self.refusals -= 1
            self.time_ns = until_ns + 1
            raise OSError(errno.ETIMEDOUT, "others have the CPU")
        return super().hold(queue, until_ns, drains)


def test_an_answer_goes_to_the_move_that_asked() -> None:
    kernel = Unattended()
    first, second = until_ended(mover(kernel), kernel, to(0, 0, 1), to(3, 0, 1), TimerDue())
    assert (first.verdict, second.verdict) == (Verdict.DEFERRED, Verdict.QUIET)
    assert not kernel.quiesced


def test_a_long_burst_of_evidence_is_not_copied_at_each_of_its_events() -> None:
    """It was: the daemon stood still for minutes after a hold beside a busy queue."""
    moves = mover(Kernel())
    assert driven(moves, *(Polled(0, at_ns, 1, 64) for at_ns in range(200_000))) == []
