# SPDX-License-Identifier: GPL-2.0-or-later
"""CPUs that went offline or came back: the kernel's uevents (netlink(7), NETLINK_KOBJECT_UEVENT).

A message is `ACTION@DEVPATH` and NUL-separated `KEY=value` words (lib/kobject_uevent.c,
kobject_uevent_env); drivers/base/core.c sends `online` and `offline` after the CPU has changed.
"""

from __future__ import annotations

import errno
import socket

__all__ = ["CpuChanges", "changed_cpu"]

NETLINK_KOBJECT_UEVENT = 15
KERNEL_GROUP = 1  # udevd re-sends in group 2
KERNEL_PORT = 0
MESSAGE_BYTES = 8192  # more than UEVENT_BUFFER_SIZE


def changed_cpu(message: bytes) -> int | None:
    """The CPU that a message says is online or offline now; None: it is about something else."""
    head, *words = message.split(b"\0")
    action, _, path = head.partition(b"@")
    device = path.rpartition(b"/")[2]
    if action not in (b"online", b"offline") or b"SUBSYSTEM=cpu" not in words:
        return None
    number = device.removeprefix(b"cpu")
    return int(number) if device != number and number.isdigit() else None


class CpuChanges:
    """A listening socket; what changed is read from sysfs by whoever is told."""

    def __init__(self) -> None:
        self._socket = socket.socket(
            socket.AF_NETLINK,
            socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK,
            NETLINK_KOBJECT_UEVENT,
        )
        self._socket.bind((0, KERNEL_GROUP))

    def fileno(self) -> int:
        return self._socket.fileno()

    def drain(self) -> set[int] | None:
        """CPUs that went offline or online; None: messages were lost, look at all."""
        changed: set[int] = set()
        overrun = False
        while True:
            try:
                message, (port, _) = self._socket.recvfrom(MESSAGE_BYTES)
            except BlockingIOError:
                return None if overrun else changed
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                overrun = True
                continue
            cpu = changed_cpu(message) if port == KERNEL_PORT else None
            if cpu is not None:
                changed.add(cpu)

    def close(self) -> None:
        self._socket.close()
