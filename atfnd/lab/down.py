# SPDX-License-Identifier: GPL-2.0-or-later
"""Take a lab down, whole, half-built or half torn down: delete its links, then its namespaces.

Links first: a namespace outlives its name while a process has a socket in it, and its NAPI threads
would run on.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager

from pyroute2 import IPRoute, config, netns
from pyroute2.netlink.exceptions import NetlinkError

from atfnd.errors import refusable
from atfnd.kernel.interface import Interface
from atfnd.kernel.system.netns import RUN_DIR, exists, in_netns
from atfnd.lab.wiring import LINKS, check_request, namespaces
from atfnd.nic.lab.interrupts import clear

__all__ = ["building", "down", "remove"]

# pyroute2 kills a child for another namespace that has not answered in 2 s, as on a busy machine.
config.default_communicate_timeout = 30


@contextmanager
def building() -> Iterator[None]:
    """One builder or wrecker at a time; the lock is on /run/netns, as ip-netns(8) has it."""
    os.makedirs(RUN_DIR, exist_ok=True)
    directory = os.open(RUN_DIR, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def down(name: str) -> bool:
    """Remove the lab; False when there was nothing to remove."""
    check_request(name)
    with building():
        return remove(name)


def remove(name: str) -> bool:
    """`down`, with the lock held."""
    paths = namespaces(name)
    for role, path in paths.items():
        if exists(path):
            _clear_steering(role, path)
            in_netns(path, lambda role=role: _delete_links(role))  # type: ignore[misc]
    found = [path for path in paths.values() if os.path.lexists(path)]
    for path in found:
        netns.remove(path)
    return bool(found)


def _clear_steering(role: str, path: str) -> None:
    for link in LINKS:
        if link.netns == role:
            with refusable(errno.ENODEV), closing(Interface(link.name, path)) as interface:
                clear(interface)


def _delete_links(role: str) -> None:
    """Delete our links in the caller's namespace; a pair's second end goes with its first."""
    with IPRoute() as route:
        for link in LINKS:
            for index in route.link_lookup(ifname=link.name) if link.netns == role else ():
                try:
                    route.link("del", index=index)
                except NetlinkError as error:
                    if error.code != errno.ENODEV:
                        raise
