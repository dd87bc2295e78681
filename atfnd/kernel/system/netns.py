# SPDX-License-Identifier: GPL-2.0-or-later
"""Network namespaces: work inside one without moving the caller there.

A thread has its own network namespace (setns(2), CLONE_NEWNET), and what it opens there stays
there: sockets, /proc/sys/net (fs/proc/proc_sysctl.c looks at the opener), sysfs mounts. So a
short-lived thread enters, opens and ends; the main thread never changes its namespace. pyroute2
makes and removes the namespaces of the lab; to open a socket in one it forks the process, which
takes the daemon 95 times as long (22 ms for 0.23).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeVar

from atfnd.kernel.system.mount import check, detached, libc

__all__ = ["RUN_DIR", "exists", "identity", "in_netns", "named", "open_netns", "open_socket"]
__all__ += ["open_sysfs", "path_of", "write_sysctl"]

RUN_DIR = "/run/netns"
_KEPT_IN = RUN_DIR, "/run/docker/netns"
CLONE_NEWNET = 0x40000000

T = TypeVar("T")


def path_of(name: str) -> str:
    """Where ip-netns(8) keeps the namespace `name`."""
    return f"{RUN_DIR}/{name}"


def exists(path: str) -> bool:
    """`path` is a namespace, and not the plain file that a crash while making one leaves."""
    try:
        return os.stat(path).st_dev == os.stat("/proc/self/ns/net").st_dev
    except FileNotFoundError:
        return False


def identity(path: str | None) -> tuple[int, int]:
    """Of the namespace at `path`, as long as it lives; None is our own. FileNotFoundError."""
    found = os.stat(path or "/proc/thread-self/ns/net")
    return found.st_dev, found.st_ino


def named() -> dict[int, str]:
    """The names of namespaces, by inode number, where ip-netns(8) and Docker keep them."""
    device, _ = identity(None)
    found = dict[int, str]()
    for folder in _KEPT_IN:
        with suppress(FileNotFoundError, PermissionError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    status = entry.stat()
                    if status.st_dev == device:
                        found.setdefault(status.st_ino, entry.name)
    return found


@contextmanager
def open_netns(path: str | None) -> Iterator[int]:
    """A descriptor of the namespace at `path`, None is our own. FileNotFoundError."""
    descriptor = os.open(path or "/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def in_netns(path: str | None, call: Callable[[], T]) -> T:
    """Return `call()` made in the namespace at `path`; None is our own.

    FileNotFoundError when there is none; whatever `call` raises.
    """
    if path is None:
        return call()

    def enter_and_call() -> T:
        with open_netns(path) as descriptor:
            check(libc.setns(descriptor, CLONE_NEWNET), f"setns {path}")
        return call()

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="in_netns") as thread:
        return thread.submit(enter_and_call).result()


def open_socket(path: str | None, family: int, kind: int, protocol: int = 0) -> socket.socket:
    """A socket that lives in the namespace at `path`."""
    return in_netns(path, lambda: socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol))


def write_sysctl(path: str, name: str, value: int | str) -> None:
    """Write /proc/sys/net/`name` of the namespace at `path`."""

    def write() -> None:
        with open(f"/proc/sys/net/{name}", "w") as file:
            file.write(str(value))

    in_netns(path, write)


def open_sysfs(path: str | None) -> int:
    """A directory descriptor of the namespace's own /sys, attached nowhere; for `dir_fd=`.

    A sysfs mount shows the network namespace it was made in (fs/sysfs/mount.c).
    """
    return in_netns(path, lambda: detached("sysfs"))
