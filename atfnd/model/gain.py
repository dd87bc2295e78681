# SPDX-License-Identifier: GPL-2.0-or-later
"""What arming would gain: how far from their data threads read, which threads stay, and advice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from atfnd.model.flow import Habit
from atfnd.model.nic import SteeringMethod
from atfnd.model.reason import Why
from atfnd.model.topology import Distance

__all__ = ["ApplicationGain", "ArmingVerdict", "Gain", "Levels", "NicGain"]
__all__ += ["ReadSpread", "ThreadGain", "WouldDo"]


class Levels(NamedTuple):
    """How many of each this machine has; None: the kernel does not say."""

    cpus: int
    cores: int | None
    llcs: int | None
    nodes: int | None


class ReadSpread(NamedTuple):
    """Bytes by the distance from the CPU that had processed them to the one that read them."""

    cpu: int = 0  # no distance
    core: int = 0
    llc: int = 0
    node: int = 0
    machine: int = 0
    other: int = 0  # another CPU, at a distance that the kernel does not say
    unseen: int = 0  # of these no CPU is known: unconnected UDP

    @property
    def known(self) -> int:
        return sum(self) - self.unseen

    def plus(self, more: ReadSpread) -> ReadSpread:
        return ReadSpread(*(a + b for a, b in zip(self, more, strict=True)))

    def off(self, level: Distance) -> float | None:
        """The share that was read outside this part around the CPU of its processing, 0 to 1.
        None: nothing was read, or it is not known."""
        if not self.known or (self.other and level is not Distance.CPU):
            return None
        farther = self[list(Distance).index(level) + 1 : 6]
        return sum(farther) / self.known


@dataclass(frozen=True, slots=True)
class ThreadGain:
    """One thread that read."""

    tid: int
    pid: int
    application: str
    habit: Habit
    pinned_by: str | None  # `affinity`, `cpuset`; None: it is not pinned, or not known
    home: Distance | None  # the smallest part that had nine of ten calls; None: too few calls
    cpus: tuple[int, ...]  # that it read on, most calls first
    allowed: int  # so many CPUs it could run on
    calls: int
    reads: ReadSpread


@dataclass(frozen=True, slots=True)
class ApplicationGain:
    """All processes of one name."""

    application: str
    processes: int
    threads: Mapping[Habit, int]
    reads: ReadSpread


class WouldDo(NamedTuple):
    """How many writes arming would begin with."""

    filters: int
    queues: int  # to other CPUs
    settings: int


class ArmingVerdict(Enum):
    ARM = "arm"
    DO_NOT_ARM = "do not arm"
    ARMED = "armed"  # already
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class NicGain:
    """One NIC."""

    nic: str
    armed: bool
    method: SteeringMethod
    method_why: Why
    probed: bool  # the method was shown to work; else it is expected of the driver
    reads: ReadSpread
    off: Mapping[Habit, int]  # bytes read off their CPU, by the habit of the thread that read them
    left: int  # bytes read off their CPU that the policy leaves alone; not in `off`
    would_do: WouldDo | None  # None: it has just gone
    verdict: ArmingVerdict
    advice: str  # one sentence


@dataclass(frozen=True, slots=True)
class Gain:
    """What was read in some seconds."""

    seconds: float
    why_not: str | None  # why nothing was measured; None: it was
    missed: int  # bytes that found no room
    levels: Levels
    note: str | None  # on what this machine can gain at all
    applications: tuple[ApplicationGain, ...]  # most bytes first
    threads: tuple[ThreadGain, ...]  # most bytes first
    more_applications: int  # that are not listed
    more_threads: int
    nics: tuple[NicGain, ...]
