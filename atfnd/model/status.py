# SPDX-License-Identifier: GPL-2.0-or-later
"""What the daemon shows of itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

from atfnd.model.flow import FlowKey
from atfnd.model.guard import NicGuard
from atfnd.model.reads import NicReads, ReadBytes
from atfnd.model.softirq_budget import HostStanding

__all__ = ["CpuUse", "Event", "Status"]


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
    policy: str | None
    old: str | None = None  # of a change: what was there, as far as known, and what is now
    new: str | None = None
    source: str | None = None  # file:line of the policy's rule
    errno: str | None = None  # ENOSPC: the kernel refused


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
