# SPDX-License-Identifier: GPL-2.0-or-later
"""Where cgroups of version 2 are, and the file cpuset.cpus of one: read and write.

Documentation/admin-guide/cgroup-v2.rst, "Cpuset". Only where an admin has mounted it: a mount of
our own would be writable where theirs is read-only.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from atfnd.kernel.system.cpulist import format_cpulist, parse_cpulist
from atfnd.model import CgroupId

__all__ = [
    "cpus_file",
    "effective",
    "folder",
    "hierarchy",
    "online",
    "possible",
    "read_cpus",
    "text",
    "threads",
    "write_cpus",
]

_MOUNTS = "sys/fs/cgroup", "sys/fs/cgroup/unified"  # alone; beside those of version 1


def hierarchy(root: Path = Path("/")) -> Path | None:
    """Where cgroups of version 2 are mounted; None: at none of the usual places."""
    mounts = (root / each for each in _MOUNTS)
    return next((each for each in mounts if (each / "cgroup.controllers").exists()), None)


def cpus_file(path: str) -> str:
    """The file cpuset.cpus of a cgroup, as an admin writes it."""
    return f"{hierarchy() or Path('/', _MOUNTS[0])}{path.rstrip('/')}/cpuset.cpus"


def online(root: Path = Path("/")) -> frozenset[int]:
    """CPUs that run tasks now (/sys/devices/system/cpu/online)."""
    return parse_cpulist((root / "sys/devices/system/cpu/online").read_text())


def possible(root: Path = Path("/")) -> frozenset[int]:
    """Every CPU that this machine can have: all that cpuset.cpus takes."""
    return parse_cpulist((root / "sys/devices/system/cpu/possible").read_text())


def folder(group: CgroupId, root: Path = Path("/")) -> Path | None:
    """The directory of a cgroup; None: the cgroup is gone, even if another has its path now."""
    top = hierarchy(root)
    if top is None or ".." in Path(group.path).parts:
        return None
    found = top / group.path.lstrip("/")
    with suppress(FileNotFoundError):
        return found if os.stat(found).st_ino == group.number else None
    return None


def read_cpus(folder: Path) -> str | None:
    """What the cgroup asks for; `` is whatever its parent has. None: its parent does not let it
    have a cpuset, it is the root, or it is gone."""
    return text(folder / "cpuset.cpus")


def effective(folder: Path) -> frozenset[int]:
    """The CPUs that its processes may use, online ones; empty when it is gone."""
    return parse_cpulist(text(folder / "cpuset.cpus.effective") or "")


def threads(folder: Path) -> list[int]:
    """The threads in it now."""
    return [int(each) for each in (text(folder / "cgroup.threads") or "").split()]


def text(file: Path) -> str | None:
    """A file of a cgroup or a process, stripped; None: it is not there, or goes while it is read,
    or says nothing (a threaded cgroup, about its processes)."""
    try:
        return file.read_text().strip()
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno not in (errno.ENODEV, errno.EOPNOTSUPP):
            raise
        return None


def write_cpus(folder: Path, cpus: str) -> None:
    """OSError: refused. The kernel takes no empty list while there are processes (ENOSPC,
    kernel/cgroup/cpuset.c, validate_change()); a list of all possible CPUs means the same to it."""
    try:
        _write(folder / "cpuset.cpus", cpus)
    except OSError as refusal:
        if cpus or refusal.errno != errno.ENOSPC:
            raise
        _write(folder / "cpuset.cpus", format_cpulist(possible()))


def _write(file: Path, text: str) -> None:
    """One write(2); a line feed in place of empty text, because a write of no bytes does
    nothing."""
    fd = os.open(file, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)  # as a shell does
    try:
        os.write(fd, f"{text}\n".encode())
    finally:
        os.close(fd)
