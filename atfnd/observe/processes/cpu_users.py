# SPDX-License-Identifier: GPL-2.0-or-later
"""Which processes use some CPUs. Reads /proc/PID/task/TID/stat (proc(5): flags, field 9; processor,
field 39), and asks sched_getaffinity(2). About 25 us a thread: not for the daemon's own thread."""

from __future__ import annotations

import os
import time
from collections.abc import Set
from contextlib import suppress

from atfnd.kernel.interrupts.napi_threads import PF_KTHREAD
from atfnd.kernel.system.procfs import read, stat_fields
from atfnd.model import CpuUser
from atfnd.observe.processes.process import Processes
from atfnd.observe.processes.threads import read_threads

__all__ = ["cpu_users"]

_UNITS = ".service", ".scope"
_GONE = (FileNotFoundError, ProcessLookupError)


def cpu_users(cpus: Set[int], root: str = "/proc") -> tuple[CpuUser, ...]:
    """Those with a thread that runs on one of these CPUs, or ran there last and still may. No
    threads of the kernel. A process that ends meanwhile is none."""
    found, processes = [], Processes(root, command=False)
    for pid in sorted(int(each) for each in os.listdir(root) if each.isdigit()) if cpus else ():
        with suppress(*_GONE):
            comm, fields = stat_fields(read(f"{root}/{pid}/stat"))
            if int(fields[6]) & PF_KTHREAD:
                continue
            here = (tid for tid, each in read_threads(pid, root).items() if each.cpu in cpus)
            if any(cpus & _allowed(tid) for tid in here):
                cgroup = processes.of(pid, time.monotonic_ns()).cgroup
                found.append(CpuUser(pid, comm, _unit(cgroup or "")))
    return tuple(found)


def _allowed(tid: int) -> Set[int]:
    with suppress(ProcessLookupError):
        return os.sched_getaffinity(tid)
    return set()


def _unit(cgroup: str) -> str | None:
    """The innermost service or scope of systemd."""
    return next((each for each in reversed(cgroup.split("/")) if each.endswith(_UNITS)), None)
