# SPDX-License-Identifier: GPL-2.0-or-later
"""Network namespaces by the name ip-netns(8) gives them. OSError when there is no such one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from atfnd.kernel.system.netns import in_netns, path_of

__all__ = ["inode", "within"]

OWN = "/proc/thread-self/ns/net"
T = TypeVar("T")


def inode(name: str | None) -> int:
    """Inode number of a namespace (None: our own): what the kernel calls `net->ns.inum`."""
    return os.stat(path_of(name) if name else OWN).st_ino


def within(name: str, call: Callable[[], T]) -> T:
    """`call()` inside namespace `name`; sockets and descriptors it returns stay there."""
    return in_netns(path_of(name), call)
