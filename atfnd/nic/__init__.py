# SPDX-License-Identifier: GPL-2.0-or-later
"""One interface for every NIC we steer; its drivers are `lab` (emulated) and, later, `ethtool`.

Nothing above this room knows which driver it talks to. Every call reads or writes the kernel now:
nothing is cached here. A kernel refusal is an OSError with its errno: ENOSPC (rule table full),
EEXIST (same match at another location), ENOENT (no rule there), EINVAL (no such queue or location),
ENODEV (the interface is gone), ENETDOWN (it is down).
"""

from __future__ import annotations

from typing import Protocol

from atfnd.model import Caps, Match, NicStats, Queue, Rss, Rule

__all__ = ["Nic"]


class Nic(Protocol):
    """A multi-queue receiver with filters, RSS and per-queue CPUs."""

    @property
    def name(self) -> str:
        """How operators and policies call it: `eth0`, `lab:lab`."""

    @property
    def netns(self) -> str | None:
        """Path of the network namespace it lives in (`/run/netns/x`), None for our own."""

    @property
    def ifindex(self) -> int: ...

    def caps(self) -> Caps: ...

    def up(self) -> bool:
        """Administratively up and able to deliver."""

    def queues(self) -> tuple[Queue, ...]:
        """Receive queues in index order; NAPI ids and pids are those of this moment."""

    def set_queue_cpu(self, index: int, cpu: int) -> None:
        """Confine a queue's delivery (NAPI thread or IRQ) to one CPU."""

    def rules(self) -> list[Rule]:
        """Every filter in the NIC, ours or not, in location order."""

    def insert(self, match: Match, queue: int, location: int | None = None) -> int:
        """Insert a filter and return its location. A used location is overwritten; with None the
        first free one from the top of the table is taken."""

    def delete(self, location: int) -> None: ...

    def rss(self) -> Rss: ...

    def set_rss(self, rss: Rss) -> None: ...

    def ring_size(self) -> int | None:
        """Descriptors in one receive ring."""

    def stats(self) -> NicStats: ...

    def close(self) -> None:
        """Release descriptors; changes nothing in the NIC."""
