# SPDX-License-Identifier: GPL-2.0-or-later
"""Cgroups of version 2 and the processes in them. Reads /proc/PID/cgroup and stat, and the files of
the cgroup (Documentation/admin-guide/cgroup-v2.rst), sched_getaffinity(2) of its threads.

A process or cgroup that goes while we read counts as absent. psutil takes twice as long for a
member (0.10 ms for 0.046) and has neither the comm that policies match (it completes a long one
from the command line) nor the start in ticks, which a change of the clock does not move.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from atfnd.kernel.system.cpulist import parse_cpulist
from atfnd.kernel.system.cpuset import effective, hierarchy, possible, read_cpus, text, threads
from atfnd.kernel.system.procfs import stat_fields
from atfnd.model import Cgroup, CgroupId, Member, Pin

__all__ = ["asked_for", "born", "cgroup", "cgroup_of", "has_cpusets", "occupied", "possible"]

_GONE = (FileNotFoundError, NotADirectoryError)


def has_cpusets(root: Path = Path("/")) -> bool:
    """Version 2 has the cpuset controller; else version 1 has it, or the kernel none."""
    top = hierarchy(root)
    return top is not None and "cpuset" in (text(top / "cgroup.controllers") or "").split()


def asked_for(cpus: str | None) -> frozenset[int] | None:
    """What cpuset.cpus asks for; None: whatever its parent has."""
    return parse_cpulist(cpus) if cpus else None


def born(pid: int, root: Path = Path("/")) -> int | None:
    """When a process was started, in ticks after boot: with its pid that names one process. None:
    it is gone."""
    fields = _stat(root / f"proc/{pid}/stat")
    return None if fields is None else int(fields[1][19])


def cgroup_of(pid: int, root: Path = Path("/")) -> str | None:
    """The path of a process's cgroup of version 2; None: it is gone, or has none."""
    for line in (text(root / f"proc/{pid}/cgroup") or "").splitlines():
        if line.startswith("0::"):
            return line[3:].removesuffix(" (deleted)")
    return None


def occupied(root: Path = Path("/")) -> frozenset[str]:
    """The paths of the cgroups of version 2 in which there is a process."""
    found = (cgroup_of(int(each), root) for each in os.listdir(root / "proc") if each.isdigit())
    return frozenset(path for path in found if path is not None)


def cgroup(path: str, root: Path = Path("/"), *, pins: bool = True) -> Cgroup | None:
    """None: it is gone, or outside what we see. `pins`: read what its threads pinned themselves
    to."""
    top = hierarchy(root)
    if top is None or ".." in Path(path).parts:
        return None
    folder = top / path.lstrip("/")
    try:
        number = os.stat(folder).st_ino
        children = sorted(each.name for each in os.scandir(folder) if each.is_dir())
    except _GONE:
        return None
    has = effective(folder)
    pids = [int(each) for each in (text(folder / "cgroup.procs") or "").split()]
    return Cgroup(
        CgroupId(path, number),
        read_cpus(folder),
        has,
        text(folder / "cgroup.type"),
        text(folder / "cpuset.cpus.partition"),
        tuple(children),
        tuple(m for pid in pids if (m := _member(pid, root)) is not None),
        _pinned(folder, has, root) if pins else (),
    )


def _member(pid: int, root: Path) -> Member | None:
    if pid == 0:  # how a pid namespace shows what is outside it
        return Member(0, -1, "of another pid namespace")
    fields = _stat(root / f"proc/{pid}/stat")
    return None if fields is None else Member(pid, int(fields[1][1]), fields[0])


def _pinned(folder: Path, has: frozenset[int], root: Path) -> tuple[Pin, ...]:
    """Threads whose affinity leaves out a CPU of the cpuset."""
    found = []
    for tid in threads(folder):
        with suppress(ProcessLookupError):
            cpus = frozenset(os.sched_getaffinity(tid))
            if not has <= cpus:
                fields = _stat(root / f"proc/{tid}/stat")
                found.append(Pin(tid, fields[0] if fields else "?", cpus))
    return tuple(found)


def _stat(path: Path) -> tuple[str, list[str]] | None:
    return stat_fields(line) if (line := text(path)) else None
