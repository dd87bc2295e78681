# SPDX-License-Identifier: GPL-2.0-or-later
"""What a finished move teaches: T_A of the queues it left, and for its flow when to move again and
how not to. Pure."""

from __future__ import annotations

from typing import NamedTuple

from atfnd.move.command import Ended
from atfnd.move.event import Subject
from atfnd.move.frozenmap import FrozenMap
from atfnd.move.timer import Times
from atfnd.move.transition import Transition
from atfnd.move.verdict import Mechanism, Mode, Verdict

__all__ = ["Lesson", "Record", "adapted_ns", "demoted", "recorded", "teaches"]

_DEMOTED_AFTER = 2  # strikes of one mechanism


class Record(NamedTuple):
    """What moves of one flow taught."""

    rests_until_ns: int
    strikes: tuple[Mechanism, ...] = ()


class Lesson(NamedTuple):
    """From one move, for the queues it left."""

    violated: bool
    strict: bool
    stayed_ns: int = 0  # a packet was there for so long after the write


Records = FrozenMap[Subject, Record]


def demoted(record: Record) -> frozenset[Mechanism]:
    """The mechanisms that are not tried on this flow again."""
    return frozenset(m for m in record.strikes if record.strikes.count(m) >= _DEMOTED_AFTER)


def recorded(
    records: Records, move: Transition, ended: Ended, times: Times, now_ns: int
) -> Records:
    """The flow rests for its hold-down, doubled by each strike."""
    old = records.get(ended.subject, Record(0))
    strikes = (*old.strikes, ended.mechanism) if ended.verdict.strike else old.strikes
    doubled_ns = times.hold_down_ns << min(len(strikes), 16)
    rest_ns = min(max(doubled_ns, 8 * move.timer_ns), times.hold_down_max_ns)
    if not strikes and move.wanted.mode is Mode.IMMEDIATE:
        return records  # decided elsewhere
    return records.put(ended.subject, Record(now_ns + rest_ns, strikes[-8:]))


def teaches(move: Transition, verdict: Verdict) -> frozenset[int]:
    """The queues for which it shows how long a packet stays there: those where one could have been
    overtaken."""
    if move.mechanism is Mechanism.BIRTH or not (verdict.strike or verdict is Verdict.VERIFIED):
        return frozenset()
    return move.wanted.origins or frozenset()


def adapted_ns(timer_ns: int, lesson: Lesson, floor_ns: int, times: Times) -> int:
    """T_A += eta (1{violation} - epsilon), within [floor, cap]: it settles where a share epsilon of
    the moves reorders; in strict it only grows. If a packet is seen to stay longer, T_A becomes
    that long at once: a shorter gap would not have been safe."""
    epsilon = 0.0 if lesson.strict else times.epsilon
    step = (1.0 if lesson.violated else 0.0) - epsilon
    wanted_ns = max(timer_ns + round(times.learn_ns * step), lesson.stayed_ns)
    return max(floor_ns, min(times.timer_max_ns, wanted_ns))
