# SPDX-License-Identifier: GPL-2.0-or-later
"""What a process is: its command line, its user, its control group. Reads /proc.

/proc/PID/cmdline, status (`Uid:` real, effective, saved, file system) and cgroup (proc(5),
cgroups(7)). A process that ends while we read, or hides (hidepid), is unknown, not an error. Its
command line is read only on request: it is in the memory of the process, and reading that waits for
a process that is mapping memory and stuck (fs/proc/base.c, get_mm_cmdline()).

Flows wait for the answer on the loop: psutil takes 2.4 times as long for command line and user (0.1
ms for 0.04), reads the whole command line (22 ms for one of 600,000 words, where 4096 bytes take
0.3), and knows no control group.
"""

from __future__ import annotations

import os
from contextlib import suppress

from atfnd.kernel.system.procfs import read
from atfnd.model import Process

__all__ = ["Processes", "occupied"]

_HIDDEN = (FileNotFoundError, ProcessLookupError, PermissionError)
_MOST = 4096


class Processes:
    """Each process is read when it is asked for, and kept: 0.15 ms, once in `FRESH_NS`."""

    FRESH_NS = 10_000_000_000  # it may execute another program, or change its user

    def __init__(self, root: str = "/proc", *, command: bool = True) -> None:
        self._root, self._command = root, command
        self._known: dict[int, tuple[int, Process]] = {}

    def of(self, pid: int, now_ns: int) -> Process:
        """As it was at most `FRESH_NS` ago."""
        known = self._known.get(pid)
        if known is not None and now_ns - known[0] < self.FRESH_NS:
            return known[1]
        if len(self._known) >= _MOST:
            self._known.clear()
        found = _process(f"{self._root}/{pid}", self._command)
        self._known[pid] = now_ns, found
        return found


def _process(folder: str, with_command: bool) -> Process:
    command = uid = cgroup = None
    with suppress(*_HIDDEN):
        if with_command:
            command = read(f"{folder}/cmdline").rstrip("\0").replace("\0", " ")
    with suppress(*_HIDDEN):
        lines = read(f"{folder}/status").splitlines()
        uid = next((int(line.split()[2]) for line in lines if line.startswith("Uid:")), None)
    with suppress(*_HIDDEN):
        cgroup = _path(read(f"{folder}/cgroup"))
    return Process(command, uid, cgroup)


def _path(lines: str) -> str | None:
    """Its path in the unified hierarchy; where that is not used (all processes are in its root), in
    systemd's own."""
    paths = {}
    for line in lines.splitlines():
        _, controllers, path = line.split(":", 2)
        paths[controllers] = path.removesuffix(" (deleted)")
    unified = paths.get("")
    return paths.get("name=systemd", unified) if unified in (None, "/") else unified


def occupied(root: str = "/proc") -> frozenset[str]:
    """The paths of the cgroups of version 2 in which there is a process."""
    found = (_cgroup_of(f"{root}/{each}") for each in os.listdir(root) if each.isdigit())
    return frozenset(path for path in found if path is not None)


def _cgroup_of(process: str) -> str | None:
    """None: the process is gone, or has none."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in read(f"{process}/cgroup").splitlines():
            if line.startswith("0::"):
                return line[3:].removesuffix(" (deleted)")
    return None
