# SPDX-License-Identifier: GPL-2.0-or-later
"""A mount of a pseudo file system without a mount point: gone with its descriptor.

fsopen(2), fsconfig(2), fsmount(2), Linux 5.2.
"""

from __future__ import annotations

import ctypes
import os

__all__ = ["check", "detached", "libc"]

SYS_FSOPEN, SYS_FSCONFIG, SYS_FSMOUNT = 430, 431, 432  # the same number on every architecture
FSOPEN_CLOEXEC = FSMOUNT_CLOEXEC = 1
FSCONFIG_CMD_CREATE = 6

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> int:
    """The result of a call of `libc`. OSError: it failed."""
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result


def detached(kind: str) -> int:
    """A directory descriptor of a new mount of `kind`, made in the caller's namespaces."""
    name = kind.encode()
    context = check(libc.syscall(SYS_FSOPEN, name, FSOPEN_CLOEXEC), f"fsopen {kind}")
    try:
        check(libc.syscall(SYS_FSCONFIG, context, FSCONFIG_CMD_CREATE, 0, 0, 0), "fsconfig")
        return check(libc.syscall(SYS_FSMOUNT, context, FSMOUNT_CLOEXEC, 0), "fsmount")
    finally:
        os.close(context)
