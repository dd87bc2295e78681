# SPDX-License-Identifier: GPL-2.0-or-later
"""NAPI instances of a network device (`netdev.NetdevFamily` reads them), and the threads that poll
them. Reads and writes the scheduling of such a thread (sched(7)).
"""

from __future__ import annotations

import os
from typing import NamedTuple

from atfnd.kernel.system.procfs import read, stat_fields

__all__ = ["Napi", "asleep", "make_realtime", "thread_cpus"]


class Napi(NamedTuple):
    """One NAPI instance as the kernel describes it now."""

    id: int
    ifindex: int
    irq: int | None
    pid: int | None  # its thread, when polled by one
    threaded: bool | None  # None: a kernel before 6.17 does not say
    gro_flush_timeout_ns: int | None = None  # None: a kernel before 6.13 does not say
    defer_hard_irqs: int | None = None  # so many empty polls, then its interrupt; None: as above
    irq_suspend_timeout_ns: int | None = None  # None: as above
    polling: int | None = None  # 0: softirq; 1: its thread; 2: its thread, without end. As threaded


def asleep(pid: int) -> bool:
    """A thread neither runs nor waits for a CPU now: proc(5), the state in /proc/PID/stat. A NAPI
    thread that sleeps has nothing to poll (napi_thread_wait(), net/core/dev.c). ProcessLookupError,
    FileNotFoundError: it is gone."""
    _, (state, *_) = stat_fields(read(f"/proc/{pid}/stat"))
    return state != "R"


def thread_cpus(pid: int) -> frozenset[int]:
    """CPUs a NAPI thread may run on; ProcessLookupError when it is gone."""
    return frozenset(os.sched_getaffinity(pid))


def make_realtime(pid: int, cpu: int | None, priority: int) -> None:
    """Make a NAPI thread as prompt as an interrupt: SCHED_FIFO, and confined to `cpu` if given.

    OSError(EINVAL) for a CPU that is not online; ProcessLookupError when the thread is gone.
    """
    if cpu is not None:
        os.sched_setaffinity(pid, {cpu})
    os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(priority))
