# SPDX-License-Identifier: GPL-2.0-or-later
"""What the daemon shows of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from typing import NamedTuple

from atfnd.model.flow import FlowKey, FlowState
from atfnd.model.pairs import ForwardedTotals
from atfnd.model.reads import NicReads, ReadBytes
from atfnd.model.softirq_budget import HostStanding

__all__ = [
    "Counts",
    "CpuUse",
    "Event",
    "GuardState",
    "History",
    "Lateness",
    "NicCounts",
    "NicGuard",
    "Sample",
    "Status",
]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing the daemon did or noticed, for `atfnctl events` and the log."""

    seq: int
    at_ns: int
    wall_s: float
    kind: str  # insert, rewrite, delete, refused, arm, disarm, resync, lost, link, adopt, ...
    nic: str | None
    flow: FlowKey | None
    what: str
    why: str
    rule: str | None
    old: str | None = None  # of a change: what was there, as far as known, and what is now
    new: str | None = None
    source: str | None = None  # file:line of the policy's rule
    errno: str | None = None  # ENOSPC: the kernel refused
    why_code: str | None = None  # of a reason that has one (`model.reason.Code`)


class CpuUse(NamedTuple):
    """The CPU time of the daemon itself, as shares of one core."""

    allowed: float  # by the policy
    used: float  # in the last ten seconds
    over: bool  # no more moves can be paid now
    waiting: int  # flows whose moves wait for that


@dataclass(frozen=True, slots=True)
class Status:
    """The daemon in one look."""

    version: str
    pid: int
    since_wall_s: float
    since_ns: int  # CLOCK_MONOTONIC
    observer: str  # bpf or sock_diag
    observer_why: str
    armed: tuple[str, ...]
    disarmed: tuple[str, ...]  # the policy arms them, and the operator's order keeps them disarmed
    table_entries: int
    table_capacity: int
    t_delete_ns: int  # in force now, shorter as the table fills
    overflow: int  # flows that found the table or the NIC full, since start
    flows_by_state: tuple[tuple[str, int], ...]
    actions_applied: int
    actions_refused: int
    events_lost: int
    resyncs: int
    policy_files: tuple[str, ...]
    moves: tuple[tuple[str, str, int], ...] = ()  # mechanism, verdict, how many
    guards: tuple[NicGuard, ...] = ()  # by NIC
    cpu: CpuUse | None = None  # None: not read yet
    host: tuple[HostStanding, ...] = ()  # settings of the whole machine
    late_packets: int = 0  # that others overtook in a move of ours
    reads: tuple[NicReads, ...] | None = ()  # by NIC, at the last look; None: not measured

    @property
    def locality(self) -> float | None:
        """Of the recent reads, through all NICs: the share whose data had been processed on the CPU
        that read them. None: nothing was read, or it is not measured."""
        return reduce(ReadBytes.plus, (nic.recent for nic in self.reads or ()), ReadBytes()).share


class GuardState(Enum):
    """What the guard does about a NIC."""

    OFF = "off"  # by the policy
    IDLE = "idle"  # nothing is steered
    WATCHING = "watching"
    BLIND = "cannot judge"
    STOPPED = "stopped"  # steering cost more than it saved: only observed since


class NicGuard(NamedTuple):
    """Of one NIC."""

    nic: str
    state: GuardState
    pairs: int  # of slots that were compared since the daemon's start
    lost: int  # that said nothing
    stops: int  # how often it stopped steering since the daemon's start
    change: float | None  # CPU per byte steered, less unsteered, as a share of that; None: no pair
    why: str  # of `BLIND` and `STOPPED`; of `WATCHING` what the comparison does not see


class Sample(NamedTuple):
    """What was so at one moment, or has ended since the sample before it."""

    at_ns: int  # CLOCK_MONOTONIC
    locality: float | None  # of the reads of some seconds; None: nothing was read
    moves: tuple[tuple[str, str, int], ...]  # mechanism, verdict, how many ended


class History(NamedTuple):
    """Samples, oldest first."""

    every_s: float
    samples: tuple[Sample, ...]


class Lateness(NamedTuple):
    """How late the loop was, at regular looks: a histogram."""

    bounds_s: tuple[float, ...]  # ascending
    counts: tuple[int, ...]  # up to each bound, and one more: above the last
    sum_s: float


@dataclass(frozen=True, slots=True)
class NicCounts:
    """One NIC, without a look at it."""

    name: str
    armed: bool
    paused: bool
    up: bool
    filters: int  # ours
    foreign: int | None  # others', at the last look at them
    filters_max: int | None  # how many may be ours
    filter_slots: int | None
    reads: NicReads | None  # at the last look; None: not measured


@dataclass(frozen=True, slots=True)
class Counts:
    """The daemon in numbers."""

    status: Status
    flows: Mapping[tuple[str, FlowState, str], int]  # by NIC, state, rule of the policy
    changes: Mapping[tuple[str, str, int], int]  # by NIC, kind, errno; 0 is applied
    nics: tuple[NicCounts, ...]
    lateness: Lateness
    log_lost: int  # messages that found no room in the log
    forwarded: ForwardedTotals | None  # None: not counted now
