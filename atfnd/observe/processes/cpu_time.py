# SPDX-License-Identifier: GPL-2.0-or-later
"""CPU time of CPUs, of processes and of single threads; context switches. Reads /proc.

/proc/stat, its lines `cpuN` (proc(5): user, nice, system, idle, iowait, irq, softirq, steal, in
clock ticks; guests' time is in user's) and /proc/PID/task/TID/schedstat (ns run, ns waited on a
run queue; without CONFIG_SCHED_INFO not there; Documentation/scheduler/sched-stats.rst). What
ksoftirqd does counts as softirq there, what a NAPI thread does as system: that one is to be asked
for as a thread. psutil is no slower (0.03 ms), but it does not number the CPUs that it lists,
which are wrong to guess once a CPU is offline, and it does not read schedstat.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from atfnd.model import CpuTime

__all__ = ["context_switches", "cpu_time", "ran_ns", "threads_ran_ns"]

_GONE = (FileNotFoundError, ProcessLookupError)
_BYTES = 1 << 16
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def cpu_time(threads: Iterable[tuple[int, int]], root: str = "/proc") -> CpuTime:
    """For every online CPU, and for these threads (pid, tid): 10 µs each. A thread that is gone is
    missing, and so are all of them where the kernel does not say."""
    times = _of_threads(threads, root)
    busy_ns, softirq_ns, idle_ns = {}, {}, {}
    for line in _read(f"{root}/stat").splitlines():
        name, *fields = line.split()
        if not name.startswith("cpu"):
            break  # CPUs come first
        if name != "cpu":
            user, nice, system, idle, iowait, irq, softirq, *_ = map(int, fields)
            cpu = int(name.removeprefix("cpu"))
            busy_ns[cpu] = (user + nice + system + irq + softirq) * _TICK_NS
            softirq_ns[cpu] = softirq * _TICK_NS
            idle_ns[cpu] = (idle + iowait) * _TICK_NS
    ran_ns = {tid: ran for tid, (ran, _) in times.items()}
    waited_ns = {tid: waited for tid, (_, waited) in times.items()}
    return CpuTime(time.monotonic_ns(), busy_ns, softirq_ns, ran_ns, waited_ns, idle_ns)


def threads_ran_ns(threads: Iterable[tuple[int, int]], root: str = "/proc") -> dict[int, int]:
    """As `cpu_time(threads).ran_ns`, without the CPUs: /proc/stat sums every interrupt."""
    return {tid: ran for tid, (ran, _) in _of_threads(threads, root).items()}


def _of_threads(threads: Iterable[tuple[int, int]], root: str) -> dict[int, tuple[int, int]]:
    """By tid: ns run, and waited."""
    found = {}
    for pid, tid in threads:
        try:
            ran, waited, _ = map(int, _read(f"{root}/{pid}/task/{tid}/schedstat").split())
        except _GONE:
            continue
        found[tid] = ran, waited
    return found


def ran_ns(pids: Iterable[int], root: str = "/proc") -> dict[int, int] | None:
    """By tid: how long each thread of these processes has run (schedstat). A process that is gone
    is missing. None: the kernel does not say it of any thread."""
    threads = [(pid, int(tid)) for pid in pids for tid in _tids(f"{root}/{pid}/task")]
    found = threads_ran_ns(threads, root)
    return None if threads and not found else found


def _tids(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except _GONE:
        return []


def context_switches(root: str = "/proc") -> int | None:
    """Of all CPUs since boot: a count, the line `ctxt` of /proc/stat."""
    for line in _read(f"{root}/stat").splitlines():
        if line.startswith("ctxt "):
            return int(line.split()[1])
    return None


def _read(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(fd, _BYTES), b"")).decode()
    finally:
        os.close(fd)
