# SPDX-License-Identifier: GPL-2.0-or-later
"""What applications read, by where the kernel had processed it: read locality."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["NicReads", "ReadBytes", "Survey", "SurveyedReads"]


class ReadBytes(NamedTuple):
    """Bytes that socket calls returned, of data that came in through a NIC."""

    local: int = 0  # processed on the CPU that read them
    remote: int = 0  # processed on another CPU
    unseen: int = 0  # the kernel keeps no CPU: unconnected UDP

    @property
    def share(self) -> float | None:
        """Read locality, 0 to 1, of the bytes whose CPU is known; None: there are none."""
        known = self.local + self.remote
        return self.local / known if known else None

    def plus(self, more: ReadBytes) -> ReadBytes:
        return ReadBytes(*(a + b for a, b in zip(self, more, strict=True)))

    def since(self, earlier: ReadBytes) -> ReadBytes:
        """What was counted between two readings of one counter."""
        return ReadBytes(*(now - was for now, was in zip(self, earlier, strict=True)))


class NicReads(NamedTuple):
    """The reads of one NIC: `armed` counts those while we might change the NIC, the other those
    while we might not."""

    nic: str
    armed: ReadBytes  # since start
    unarmed: ReadBytes  # since start
    recent: ReadBytes
    recent_ns: int  # how long `recent` is: 10 s, less after the start


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
