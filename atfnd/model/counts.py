# SPDX-License-Identifier: GPL-2.0-or-later
"""What is counted since the start, for monitoring over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from atfnd.model.flow import FlowState
from atfnd.model.pairs import ForwardedTotals
from atfnd.model.reads import NicReads
from atfnd.model.status import Status

__all__ = ["Counts", "Lateness", "NicCounts"]


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
