# SPDX-License-Identifier: GPL-2.0-or-later
"""Arm a NIC or not, and why: the rule "when not to arm" of README.md. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from atfnd.model import ArmingVerdict, Distance, Habit, Levels, NicView, ReadSpread, SteeringMethod

__all__ = ["Evidence", "advise"]

LITTLE = 0.05  # of the bytes: less is not worth a daemon that writes
FULL = 0.9  # of its time a CPU works that cannot take more
LIGHT = 0.5  # of their time CPUs work, on average, under low load
FEW_CPUS = 4  # chosen: on two it was measured that following may not pay (docs/unpinned.md)
HALF = 0.5


class Evidence(NamedTuple):
    """What was seen of one NIC."""

    seconds: float
    reads: ReadSpread
    off: Mapping[Habit, int]  # bytes read off their CPU, by the habit of the thread
    left: int  # of those, what the policy leaves alone: not in `off`
    to_cpu: Mapping[int, int]  # bytes that arming could bring, by the CPU they would come to
    shared: int  # of those, read from short connections of a shared listener
    ports: Sequence[int]  # of such listeners
    busy: Mapping[int, float]  # by CPU, where it is known
    levels: Levels

    @property
    def could_come(self) -> int:
        """Bytes read off their CPU by threads that stay, under a rule that steers."""
        return self.off.get(Habit.PINNED, 0) + self.off.get(Habit.SETTLED, 0)

    def percent(self, count: int) -> str:
        """Of all bytes whose CPU is known."""
        return f"{count / self.reads.known:.0%}"


def advise(nic: NicView, seen: Evidence) -> tuple[ArmingVerdict, str]:
    """One sentence."""
    if nic.armed:
        return ArmingVerdict.ARMED, "It is armed: these are the figures with steering."
    if not seen.reads.known:
        return ArmingVerdict.UNKNOWN, _nothing(seen)
    why = _no_method(nic) or _nothing_off(seen) or _none_stays(seen) or _no_gain(seen)
    if why is not None:
        return ArmingVerdict.DO_NOT_ARM, f"Do not arm: {why}."
    if seen.could_come < LITTLE * seen.reads.known:
        return ArmingVerdict.UNKNOWN, (
            f"Not known: threads that read {seen.percent(seen.off.get(Habit.UNKNOWN, 0))} of the "
            "bytes off their CPU made too few calls to say whether they stay; ask for longer."
        )
    return ArmingVerdict.ARM, (
        f"Arm: threads that stay on a CPU read {seen.percent(seen.could_come)} of the bytes off "
        "it, and at most so many more would be read where they arrive."
    )


def _nothing(seen: Evidence) -> str:
    if seen.reads.unseen:
        return "Not known: only unconnected UDP was read, and the kernel keeps no CPU for that."
    return f"Not known: no data was read in {seen.seconds:.0f} s; ask again under load."


def _no_method(nic: NicView) -> str | None:
    if nic.method is SteeringMethod.NONE:
        return str(nic.method_why)
    if nic.method is SteeringMethod.RFS:
        return "only RFS is possible here, and the kernel needs no daemon for that"
    return None


def _nothing_off(seen: Evidence) -> str | None:
    off = seen.reads.off(Distance.CPU) or 0.0
    if off >= LITTLE:
        return None
    return f"{1 - off:.0%} of the bytes are read where they arrive already"


def _none_stays(seen: Evidence) -> str | None:
    """Too little is read by threads that stay, and it is known which threads read the rest."""
    wandering, unknown = seen.off.get(Habit.WANDERING, 0), seen.off.get(Habit.UNKNOWN, 0)
    if seen.could_come >= LITTLE * seen.reads.known or unknown > max(wandering, seen.left):
        return None
    if seen.left > wandering:
        return f"the policy leaves alone {seen.percent(seen.left)} of the bytes, read off their CPU"
    return (
        f"threads that wander read {seen.percent(wandering)} of the bytes off their CPU, and "
        "no filter follows them; pin them, or use RFS"
    )


def _no_gain(seen: Evidence) -> str | None:
    """Threads stay, and yet figures say that arming costs more than it gains."""
    come = seen.could_come
    if come < LITTLE * seen.reads.known:
        return None
    if seen.shared > HALF * come:
        which = ", ".join(map(str, seen.ports))
        return (
            f"several threads share the listener of port {which}, and its connections are short; "
            "which thread serves one is known only when it is there"
        )
    cpu, count = max(seen.to_cpu.items(), key=lambda item: item[1])
    if count > HALF * come and seen.busy.get(cpu, 0.0) >= FULL:
        return (
            f"CPU {cpu} is full ({seen.busy[cpu]:.0%}), so most flows would be left to RSS; "
            "use `near: llc`, or more threads"
        )
    average = sum(seen.busy.values()) / len(seen.busy) if seen.busy else None
    unpinned = seen.off.get(Habit.SETTLED, 0) > HALF * come
    if unpinned and seen.levels.cpus <= FEW_CPUS and average is not None and average < LIGHT:
        return (
            f"the threads are not pinned, on {seen.levels.cpus} CPUs under low load "
            f"({average:.0%}); the scheduler wakes them away from their packets; pin them, or use "
            "RFS"
        )
    return None
