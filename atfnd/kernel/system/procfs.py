# SPDX-License-Identifier: GPL-2.0-or-later
"""Small files of /proc, in one read(2) each; and the fields of /proc/PID/stat (proc(5))."""

from __future__ import annotations

import os

__all__ = ["read", "stat_fields"]


def read(path: str) -> str:
    """The first 4096 bytes. FileNotFoundError, ProcessLookupError: it is gone."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096).decode(errors="replace")
    finally:
        os.close(fd)


def stat_fields(line: str) -> tuple[str, list[str]]:
    """comm, which may hold spaces and brackets, and the fields from the state (field 3) on."""
    head, _, tail = line.rpartition(")")
    return head.partition("(")[2], tail.split()
