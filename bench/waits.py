# SPDX-License-Identifier: GPL-2.0-or-later
"""Waits for the spinlocks of a namespace's TCP sockets (bench/extension/waits.bpf.c).

Reads tracepoints lock:contention_{begin,end}, tcp:tcp_probe, tcp:tcp_destroy_sock and
sock:sock_recv_length; changes nothing. A wait is a socket's if its lock has the address of
`sk->sk_lock.slock` of a TCP socket of the namespace that has been used. A paravirtual kernel
reports every wait for a spinlock; another one does not report a lock's first waiter, and a guest
without paravirtual spinlocks reports none (virt_spin_lock(), arch/x86/include/asm/qspinlock.h).
"""

from __future__ import annotations

from typing import NamedTuple

from atfnd.bpf.layout import layout_of
from bench.extension import _bench

__all__ = ["WaitTotals", "Waits"]


class WaitTotals(NamedTuple):
    """Fields of `struct waits_totals`, summed over CPUs."""

    socket_waits: int
    socket_ns: int
    other_waits: int  # for any other spinlock of the machine
    other_ns: int
    softirq_skbs: int  # TCP processed them as they came
    backlog_skbs: int  # the thread that owned the socket did it later (sk_backlog)
    local_bytes: int  # read on the CPU that had processed them
    remote_bytes: int
    untracked: int  # sockets that found the table of locks full
    unfinished: int  # waits whose end was not seen

    @property
    def bytes(self) -> int:
        return self.local_bytes + self.remote_bytes

    def since(self, earlier: WaitTotals) -> WaitTotals:
        """What was counted between two readings."""
        return WaitTotals(*(now - was for now, was in zip(self, earlier, strict=True)))


class Waits:
    """Counts for the namespace with inode `netns` from now on. OSError: the kernel refuses."""

    def __init__(self, netns: int) -> None:
        self._waits = _bench.Waits(netns)
        self._layout = layout_of(*_bench.layout("waits", "waits_totals"))
        self._columns = [self._layout.fields.index(name) for name in WaitTotals._fields]

    def totals(self) -> WaitTotals:
        """The sums so far."""
        per_cpu = self._layout.codec.iter_unpack(self._waits.totals())
        summed = [sum(column) for column in zip(*per_cpu, strict=True)]
        return WaitTotals(*(summed[at] for at in self._columns))

    def close(self) -> None:
        """Detach and free; a second close does nothing."""
        self._waits.close()
