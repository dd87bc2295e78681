# SPDX-License-Identifier: GPL-2.0-or-later
"""The CPUs that the cpuset of a thread has, and which processes use some CPUs.

Reads /proc/TID/cpuset (cpuset(7)) and, where that is mounted, its cpuset.cpus.effective (cgroup
version 2) or cpuset.effective_cpus (version 1).

Not sched_getaffinity(2): a thread that is pinned to one CPU may well have its packets on another.
Users of a CPU are found in /proc/PID/task/TID/stat (proc(5): flags, field 9; processor, field 39)
and by sched_getaffinity(2): about 25 us a thread, not for the daemon's own thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

from atfnd.kernel.interrupts.napi_threads import PF_KTHREAD
from atfnd.kernel.system.cpulist import parse_cpulist
from atfnd.kernel.system.procfs import read, stat_fields
from atfnd.model import CpuUser
from atfnd.observe.processes.process import Processes
from atfnd.observe.processes.threads import read_threads

__all__ = ["cpu_users", "cpuset_of"]

_FILES = (
    ("fs/cgroup", "cpuset.cpus.effective"),
    ("fs/cgroup/unified", "cpuset.cpus.effective"),
    ("fs/cgroup/cpuset", "cpuset.effective_cpus"),
    ("fs/cgroup/cpuset", "cpuset.cpus"),
)


def cpuset_of(tid: int, root: Path = Path("/")) -> frozenset[int] | None:
    """None: the thread is gone, the kernel has no cpusets, or they are mounted nowhere we know.
    A cgroup of version 2 without the file has the CPUs of the nearest one above that has it."""
    try:
        name = (root / f"proc/{tid}/cpuset").read_text().strip().lstrip("/")
    except (FileNotFoundError, ProcessLookupError):
        return None
    if ".." in Path(name).parts:
        return None  # outside our cgroup namespace
    for mount, file in _FILES:
        top = root / "sys" / mount
        for cgroup in (top / name, *(top / name).parents):
            if not cgroup.is_relative_to(top):
                break
            if (cpus := _read(cgroup / file)) is not None:
                return cpus
    return None


def _read(path: Path) -> frozenset[int] | None:
    try:
        text = path.read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return parse_cpulist(text) if text else None


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
