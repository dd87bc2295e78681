# SPDX-License-Identifier: GPL-2.0-or-later
"""Calls made inside a named network namespace: setns(2) in a thread that ends with the call.

The main thread's namespace never changes. Raises what the call raises, OSError when there is no
such namespace.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from pyroute2 import netns as pyroute2_netns

__all__ = ["inode", "within"]

RUN = Path("/run/netns")
OWN = Path("/proc/thread-self/ns/net")
T = TypeVar("T")


def inode(name: str | None) -> int:
    """Inode number of a namespace (None: our own): what the kernel calls `net->ns.inum`."""
    return os.stat(RUN / name if name else OWN).st_ino


def within(name: str, call: Callable[[], T]) -> T:
    """`call()` inside namespace `name`; sockets and descriptors it returns stay there."""

    def enter_and_call() -> T:
        pyroute2_netns.setns(str(RUN / name))
        return call()

    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(enter_and_call).result()
