# SPDX-License-Identifier: GPL-2.0-or-later
"""Which epolls of a process watch some socket. Reads /proc/PID/fd/* and, of an epoll, fdinfo
(proc_pid_fdinfo(5): a line `tfd:` with the inode for each file that is watched)."""

from __future__ import annotations

import os
import re
from collections.abc import Set
from contextlib import suppress

from atfnd.kernel.system.epoll import EVENTPOLL

__all__ = ["watching"]

_MOST_LINKS = 1024  # about 2 us each
_MOST_BYTES = 1 << 18  # of an fdinfo: some 3,000 files
_WATCHED = re.compile(rb"^tfd:.* ino:([0-9a-f]+)", re.MULTILINE)
_GONE = (FileNotFoundError, ProcessLookupError)


def watching(pid: int, inodes: Set[int], root: str = "/proc") -> list[int]:
    """Of the first 1,024 descriptors those of epolls that watch one of these sockets. None of a
    process that is gone. OSError: we may not look into it."""
    try:
        every = sorted(map(int, os.listdir(f"{root}/{pid}/fd")))
    except _GONE:
        return []
    found = []
    for fd in every[:_MOST_LINKS]:
        with suppress(*_GONE):
            if os.readlink(f"{root}/{pid}/fd/{fd}") == EVENTPOLL:
                with open(f"{root}/{pid}/fdinfo/{fd}", "rb") as file:
                    text = file.read(_MOST_BYTES)
                if not inodes.isdisjoint(int(each, 16) for each in _WATCHED.findall(text)):
                    found.append(fd)
    return found
