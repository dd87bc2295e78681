# SPDX-License-Identifier: GPL-2.0-or-later
"""What each thread reads, and where: counted for some seconds, on request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Survey", "SurveyedReads"]


class SurveyedReads(NamedTuple):
    """What one thread read on one CPU, of data that one CPU had processed."""

    nic: str
    tid: int
    pid: int
    application: str  # the name of the process
    read_cpu: int
    rx_cpu: int | None  # None: the kernel keeps no CPU (unconnected UDP)
    left: bool  # the policy leaves these sockets alone, as far as they were judged
    bytes: int
    calls: int
    accepted: int  # of `calls`, first reads of a connection that a listener took
    port: int | None  # the local one of the last such connection
    allowed: int  # so many CPUs the thread could run on, at its last read


@dataclass(frozen=True, slots=True)
class Survey:
    """All reads of some seconds."""

    rows: tuple[SurveyedReads, ...]
    missed: int  # bytes that found no room

    @classmethod
    def of(cls, parts: Iterable[Survey]) -> Survey:
        """All of them."""
        known = list(parts)
        rows = tuple(row for part in known for row in part.rows)
        return cls(rows, sum(part.missed for part in known))
