# SPDX-License-Identifier: GPL-2.0-or-later
"""The CPUs that the cpuset of a thread has. Reads /proc/TID/cpuset (cpuset(7)) and, where that is
mounted, its cpuset.cpus.effective (cgroup version 2) or cpuset.effective_cpus (version 1).

Not sched_getaffinity(2): a thread that is pinned to one CPU may well have its packets on another.
"""

from __future__ import annotations

from pathlib import Path

from atfnd.kernel.system.cpulist import parse_cpulist

__all__ = ["cpuset_of"]

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
