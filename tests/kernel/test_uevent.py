# SPDX-License-Identifier: GPL-2.0-or-later
"""CPU hotplug as the kernel tells it: the messages, and the socket that only the kernel may use.

A CPU that really goes offline is in tests/guest/test_hotplug.py.
"""

from __future__ import annotations

import select
import socket
from contextlib import closing

import pytest

from atfnd.kernel.netlink.uevent import NETLINK_KOBJECT_UEVENT, changed_cpu, cpu_changes


def message(action: str, path: str, subsystem: str) -> bytes:
    words = [f"{action}@{path}", f"ACTION={action}", f"DEVPATH={path}", f"SUBSYSTEM={subsystem}"]
    return "\0".join([*words, "SEQNUM=4711", ""]).encode()


CPU3 = "/devices/system/cpu/cpu3"


@pytest.mark.parametrize(
    ("said", "cpu"),
    [
        (message("offline", CPU3, "cpu"), 3),
        (message("online", "/devices/system/cpu/cpu128", "cpu"), 128),
        (message("add", CPU3, "cpu"), None),
        (message("offline", "/devices/system/memory/memory3", "memory"), None),
        (message("online", "/devices/virtual/net/cpu3", "net"), None),
        (message("offline", "/devices/system/cpu/cpufreq", "cpu"), None),
        (message("offline", "/devices/system/cpu/cpu", "cpu"), None),
        (b"libudev\0\xfe\xed\xca\xfe", None),
        (b"", None),
    ],
)
def test_messages(said: bytes, cpu: int | None) -> None:
    assert changed_cpu(said) == cpu


def test_a_process_cannot_pretend_to_be_the_kernel() -> None:
    with (
        closing(cpu_changes()) as changes,
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_KOBJECT_UEVENT) as liar,
    ):
        assert not select.select([changes.fileno()], [], [], 0)[0]
        assert changes.drain() == set()
        liar.bind((0, 0))
        with socket.socket(fileno=socket.dup(changes.fileno())) as same:
            port, _ = same.getsockname()
        liar.sendto(message("offline", CPU3, "cpu"), (port, 0))
        assert select.select([changes.fileno()], [], [], 10)[0]
        assert changes.drain() == set()
