# SPDX-License-Identifier: GPL-2.0-or-later
"""One interface for every NIC we steer; its drivers are `lab` (emulated) and `ethtool` (hardware).

Nothing above this room knows which driver it talks to. Every call reads or writes the kernel now:
nothing is cached here. A kernel refusal is an OSError with its errno: ENOSPC (filter table full),
EEXIST (same match at another location), ENOENT (no filter there), EINVAL (no such queue or
location), ENODEV (the interface is gone), ENETDOWN (it is down).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from atfnd.kernel.interface import Interface
from atfnd.model import Caps, Conflict, Device, Filter, Match, NicStats, Queue, Rss

__all__ = ["Claims", "Nic"]


class Claims(NamedTuple):
    """Names filters of one NIC as ours, so that they are found after a kill. `claim`: before the
    insert, on queue 0 or 1; OSError: it is not named, so do not insert it. `release`: it is not
    there, after the delete, or a refusal that leaves no doubt."""

    claim: Callable[[Match], None]
    release: Callable[[Match], None]


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

    @property
    def interface(self) -> Interface:
        """The interface that receives the packets, for what filters and queues do not show. Closed
        with the NIC."""

    def caps(self) -> Caps:
        """The capabilities that were probed, or else those expected of this driver. Writes
        nothing."""

    def probe(self, claims: Claims | None = None) -> Caps:
        """Prove capabilities by doing each once and undoing it; `caps` says the same from now on.
        Writes: only for a NIC the operator has armed. `claims` names each filter before it is
        written; None: nobody would look for what a kill leaves behind."""

    def device(self) -> Device:
        """Driver, bus, NUMA node, channels, rings, coalescing, features: what ethtool shows."""

    def conflicts(self) -> tuple[Conflict, ...]:
        """What works against steering on this NIC, whichever program set it up."""

    def up(self) -> bool:
        """Administratively up and able to deliver."""

    def queues(self) -> tuple[Queue, ...]:
        """Receive queues in index order; NAPI ids and pids are those of this moment."""

    def set_queue_cpu(self, index: int, cpu: int) -> None:
        """Confine a queue's delivery (NAPI thread or IRQ) to one CPU."""

    def filters(self) -> list[Filter]:
        """Every filter in the NIC, ours or not, in location order."""

    def filter(self, location: int) -> Filter | None:
        """The filter at one location, None when there is none."""

    def insert(self, match: Match, queue: int, location: int | None = None) -> int:
        """Insert a filter and return its location. With None a free location is taken, from the top
        of the table down (a port's: where all others win over it), or the NIC
        chooses; a filter of another program is never overwritten. With a location, the filter there
        (ours, of the same match) gets another queue, by the means of the NIC's actuator class, or
        is written anew with the queue it has; when that fails it may be gone, which `filter` shows.
        ENOENT, EEXIST: it is gone, or another one is there."""

    def delete(self, location: int) -> None: ...

    def rss(self) -> Rss | None:
        """None when it has one queue or does not say."""

    def set_rss(self, rss: Rss) -> None:
        """Write the indirection table (and the key, if it differs)."""

    def settings(self) -> Mapping[str, str]:
        """Every other setting that steers packets of this NIC, by name, as text, as the kernel has
        it now: `queue-cpu:N` (CPU list of queue N's IRQ or NAPI thread), `rps-cpus:N`,
        `rps-flow-cnt:N`, `xps-cpus:N`, `xps-rxqs:N` (CPU or queue lists, `` is none), `rss` (the
        table's entries, or `default`), `rps-sock-flow-entries` (machine-wide), `priv:FLAG` (a
        driver's private flag, `on` or `off`), `threaded` or `threaded:N` (all NAPIs, or queue N's,
        are polled by threads: `1` borrows these, `0` gives them back), `napi-thread:N` (the same,
        lasting; `2` polls without end), `defer-hard-irqs:N`, `gro-flush-timeout:N` and
        `irq-suspend-timeout:N` (`napi_settings.py`; all of these without `:N` on kernels that know
        them of the whole interface). A setting that the kernel does not have is left out."""

    def setting(self, name: str) -> str | None:
        """One of `settings`, as the kernel has it now. None: there is no such setting.
        OSError(ENETDOWN): it cannot be read while the link is down, and comes back with it."""

    def write_setting(self, name: str, value: str) -> None:
        """Write one of `settings`. KeyError: there is no such setting."""

    def ring_size(self) -> int | None:
        """Descriptors in one receive ring."""

    def stats(self) -> NicStats: ...

    def close(self) -> None:
        """Release descriptors; changes nothing in the NIC."""
