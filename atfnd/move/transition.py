# SPDX-License-Identifier: GPL-2.0-or-later
"""One move as a value: where it stands, what is quiesced for it, what broke. Pure.

ARM_GAP   wait until the flow has been idle for T_A
HOLD      quiesce each ring its packets could come to, until every one is quiesced
COMMIT    the write is out; T1 is known from its answer
SETTLE    the old rings prove that they drained after T1 + T_pipe; then the new one is released.
          Where a change passes through RSS, RSS's ring is released first and drained in turn
VERIFY    until packets were seen on the new ring for T_A, or T_verify is over
RETIRE    a dead flow's rule: wait for what may still be in flight, then delete it
RELEASE    decided; the last hold is not known to be over yet
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from atfnd.model import ActionKind, FlowKey
from atfnd.model.reason import Code, Why
from atfnd.move.command import Command, Ended, Release, Unwatch
from atfnd.move.event import Wanted
from atfnd.move.evidence import Drain
from atfnd.move.verdict import Mechanism, Mode, Verdict

__all__ = ["Moved", "Phase", "Transition", "finish", "release"]


class Phase(Enum):
    ARM_GAP = "arm-gap"
    HOLD = "hold"
    COMMIT = "commit"
    SETTLE = "settle"
    VERIFY = "verify"
    RETIRE = "retire"
    RELEASE = "release"


class Transition(NamedTuple):
    """`asked` are holds whose end has not been reported yet; `held` of them are quiesced;
    `releasing` of them we have asked to end."""

    wanted: Wanted
    mechanism: Mechanism
    why: Why
    began_ns: int
    timer_ns: int  # T_A
    pipe_ns: int  # T_pipe of the rings that must drain
    through: frozenset[int]  # RSS's rings that the write passes through
    phase: Phase
    due_ns: int  # of the phase
    hands_on: frozenset[int] = frozenset()  # of the rings that must drain: by RFS
    watched: bool = False
    asked: frozenset[int] = frozenset()
    held: frozenset[int] = frozenset()
    releasing: frozenset[int] = frozenset()
    hold_due_ns: int = 0  # T_hold_max
    drain: Drain = Drain()
    idle_since_ns: int | None = None  # of a gap: what the write relied on
    done_ns: int = 0  # T1
    location: int | None = None  # of the filter that was written
    stayed_ns: int = 0  # a packet was in an old ring at least this long
    lost: bool = False  # the write was refused, and its filter is gone: RSS delivers
    broken: Why | None = None  # why order is not proven
    blind: bool = False  # telemetry was lost
    established: bool = False  # after T1: no data came before
    violations: int = 0
    seen: bool = False  # on a new ring
    elsewhere: bool = False  # on another ring, long after the write
    decided: tuple[Verdict, Why] | None = None  # decided before VERIFY

    @property
    def targets(self) -> frozenset[int]:
        """The rings its packets come through after the write, as far as is known."""
        rings = self.wanted.rss if self.lost else self.wanted.targets
        return rings or frozenset()

    @property
    def only_looked_at(self) -> bool:
        """It is in order, or order was not promised: nothing has to wait for its end."""
        return self.phase is Phase.VERIFY and self.mechanism is not Mechanism.GAP

    def next_due_ns(self) -> int | None:
        """When a Tick is needed. None: an answer is due, and will come."""
        dues = [] if self.phase in (Phase.COMMIT, Phase.RELEASE) else [self.due_ns]
        if self.asked - self.releasing:
            dues.append(self.hold_due_ns)
        return min(dues, default=None)

    def breaks(self, why: Why) -> Transition:
        """Order is no longer proven; the first reason stays."""
        return self._replace(broken=self.broken or why)

    def verdict(self) -> tuple[Verdict, Why]:
        """The verdict by what is known now."""
        if self.decided is not None:
            return self.decided
        if self.violations:
            late = self.violations
            if self.broken is None:
                return Verdict.VIOLATED, Code.OVERTOOK(late)
            return Verdict.VIOLATED, Code.OVERTOOK_UNPROVEN(late, self.broken)
        broken = self.broken or self._unborn()
        if broken is not None and not (self.wanted.mode is Mode.BOUNDED and self._checked()):
            return Verdict.UNPROVEN, broken
        if self.lost:
            return Verdict.REFUSED, Code.LOST()
        if self.mechanism is Mechanism.BIRTH and self._open():
            if self.blind:
                return Verdict.UNPROVEN, Code.TELEMETRY_LOST()
            return Verdict.VERIFIED, Code.NO_BIRTH()
        if self.mechanism is Mechanism.HOLD and self._open():
            return Verdict.PROVEN, self.why
        if not self.seen:
            if self.elsewhere:
                return Verdict.NO_EFFECT, Code.AS_BEFORE()
            return Verdict.QUIET, Code.NO_PACKET()
        how = self.mechanism
        if how in (Mechanism.HOLD, Mechanism.BIRTH, Mechanism.FOLLOW) and broken is None:
            return Verdict.PROVEN, self.why
        if not self._checked():
            return Verdict.UNPROVEN, Code.TELEMETRY_LOST()
        return Verdict.VERIFIED, Code.IN_ORDER()

    def _unborn(self) -> Why | None:
        """Why a birth is not proven: the answer to a connect proves it only if it came after the
        rule."""
        if self.mechanism is not Mechanism.BIRTH or self.established or not self.seen:
            return None
        return Code.BIRTH_UNKNOWN()

    def _open(self) -> bool:
        """It is many flows, which cannot be watched: a key that is open to any remote."""
        key = self.wanted.action.key
        return key is not None and not key.remote_port

    def _checked(self) -> bool:
        """Every packet around the move was seen, the new ring's first among them."""
        return self.seen and self.watched and not self.blind


Moved = tuple[Transition | None, tuple[Command, ...]]  # None: it has ended


def release(move: Transition, queues: frozenset[int]) -> tuple[Transition, tuple[Command, ...]]:
    """Ask for the end of these holds, once each."""
    now = (queues & move.asked) - move.releasing
    commands = tuple(Release(queue) for queue in sorted(now))
    return move._replace(releasing=move.releasing | now, held=move.held - now), commands


def finish(move: Transition, now_ns: int, decided: tuple[Verdict, Why] | None = None) -> Moved:
    """End a move; first release what is quiesced for it. `decided` overrides what is known."""
    if decided is not None:
        move = move._replace(decided=decided)
    move, commands = release(move, move.asked)
    if move.asked:
        return move._replace(phase=Phase.RELEASE), commands
    action = move.wanted.action
    if move.watched and isinstance(action.key, FlowKey):
        commands = (*commands, Unwatch(action.key))
    verdict, why = move.verdict()
    late = 0 if verdict is Verdict.RESYNC else move.violations  # not of this move
    took_ns = now_ns - move.began_ns
    subject, how = move.wanted.subject, move.mechanism
    ended = Ended(subject, action, how, verdict, why, late, took_ns)
    return None, (*commands, ended)


def filter_is_lost(move: Transition, location: int | None) -> bool:
    """A write was refused, and the old rule is gone. An insert had none to lose."""
    return move.wanted.action.kind is ActionKind.REWRITE and location is None
