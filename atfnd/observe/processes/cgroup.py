# SPDX-License-Identifier: GPL-2.0-or-later
"""Cgroups of version 2 and the processes in them. Reads /proc/PID/cgroup (cgroups(7)). A process
that goes while we read counts as absent."""

from __future__ import annotations

import os
from contextlib import suppress

from atfnd.kernel.system.procfs import read

__all__ = ["occupied"]


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
