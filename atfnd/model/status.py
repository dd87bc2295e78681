# SPDX-License-Identifier: GPL-2.0-or-later
"""What the daemon shows of itself."""

from __future__ import annotations

from dataclasses import dataclass

from atfnd.model.flow import FlowKey

__all__ = ["Event", "Status"]


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
    old: str | None = None  # of a change: what was there, as far as was known, and what is now
    new: str | None = None
    source: str | None = None  # file:line of the policy's rule
    errno: str | None = None  # ENOSPC: the kernel refused


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
    late_packets: int = 0  # that others overtook in a move of ours
    locality: float | None = None  # share of the table's bytes that came in on the right core
