# SPDX-License-Identifier: GPL-2.0-or-later
"""The root of the control group hierarchy version 2, which every socket is below.

fsopen(2), fsmount(2): a mount of its own, attached nowhere, so it does not matter whether and
where the machine has one. All show one hierarchy, from the caller's cgroup namespace on
(kernel/cgroup/cgroup.c, cgroup_do_get_tree()).
"""

from __future__ import annotations

import os

from atfnd.kernel.system.mount import detached

__all__ = ["open_root"]


def open_root() -> int:
    """A directory descriptor of the root; the caller closes it. OSError: no such hierarchy.

    A process that may not mount (CAP_SYS_ADMIN) gets the one that systemd mounts
    (file-hierarchy(7))."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        mount = detached("cgroup2")
    except PermissionError:
        return os.open("/sys/fs/cgroup", flags)
    try:
        return os.open(".", flags, dir_fd=mount)
    finally:
        os.close(mount)
