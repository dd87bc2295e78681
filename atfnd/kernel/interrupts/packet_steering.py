# SPDX-License-Identifier: GPL-2.0-or-later
"""Steering in software, per queue: RPS, RFS and XPS (Documentation/networking/scaling.rst).

Reads and writes /sys/class/net/X/queues/{rx,tx}-N (net/core/net-sysfs.c) and, for the whole
machine, /proc/sys/net/core/rps_sock_flow_entries. CPUs and queues are lists here ("0-3", "" for
none), hexadecimal masks in sysfs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection

from atfnd.kernel.interface import Interface
from atfnd.kernel.system.cpulist import format_cpulist, format_cpumask, parse_cpulist, parse_cpumask

__all__ = [
    "FLOW_ENTRIES",
    "numa_node",
    "read_one",
    "read_steering",
    "receive_queues",
    "steering_file",
    "write_steering",
]

FLOW_ENTRIES = "rps-sock-flow-entries"
SYSCTL = "/proc/sys/net/core/rps_sock_flow_entries"
FILES = {
    "rps-cpus": ("rx", "rps_cpus"),
    "rps-flow-cnt": ("rx", "rps_flow_cnt"),
    "xps-cpus": ("tx", "xps_cpus"),
    "xps-rxqs": ("tx", "xps_rxqs"),
}
COUNTS = {"rps-flow-cnt"}
QUEUE = re.compile(r"(rx|tx)-(\d+)")


def receive_queues(interface: Interface) -> int:
    """How many receive queues are in use."""
    return sum(name.startswith("rx-") for name in interface.list("queues"))


def numa_node(interface: Interface) -> int | None:
    """The node of the interface's device, or of the one behind that (virtio)."""
    for device in ("device", "device/.."):
        node = interface.read(f"{device}/numa_node")
        if node is not None:
            return int(node) if int(node) >= 0 else None
    return None


def read_steering(interface: Interface, kinds: Collection[str] = FILES) -> dict[str, str]:
    """Every setting of these kinds by name, `rps-cpus:0`; and `rps-sock-flow-entries`, which the
    kernel shows in its first network namespace only."""
    queues = [QUEUE.fullmatch(name) for name in interface.list("queues")]
    names = [
        f"{kind}:{index}"
        for kind, (side, _) in FILES.items()
        if kind in kinds
        for index in sorted(int(queue[2]) for queue in queues if queue and queue[1] == side)
    ]
    found = {name: read_one(interface, name) for name in [*names, FLOW_ENTRIES]}
    return {name: value for name, value in found.items() if value is not None}


def read_one(interface: Interface, name: str) -> str | None:
    """One of `read_steering`; None when there is none of this name."""
    kind, _, index = name.partition(":")
    if name == FLOW_ENTRIES:
        if not os.path.exists(SYSCTL):
            return None
        with open(SYSCTL) as entries:
            return entries.read().strip()
    if kind not in FILES or not index.isdecimal():
        return None
    side, file = FILES[kind]
    value = interface.read(f"queues/{side}-{index}/{file}")
    if value is None or kind in COUNTS:
        return value
    return format_cpulist(parse_cpumask(value))


def steering_file(ifname: str, name: str, value: str) -> tuple[str, str]:
    """The file of one of `read_steering`, and what is written to it for `value`. KeyError: there is
    none of this name."""
    if name == FLOW_ENTRIES:
        return SYSCTL, str(int(value))
    file, text = _file_and_text(name, value)
    return f"/sys/class/net/{ifname}/{file}", text


def _file_and_text(name: str, value: str) -> tuple[str, str]:
    kind, _, index = name.partition(":")
    if kind not in FILES or not index.isdecimal():
        raise KeyError(name)
    side, file = FILES[kind]
    text = str(int(value)) if kind in COUNTS else format_cpumask(parse_cpulist(value))
    return f"queues/{side}-{index}/{file}", text


def write_steering(interface: Interface, name: str, value: str) -> None:
    """Write one of `read_steering`. KeyError: there is none of this name; ValueError: not of its
    form; OSError: the kernel refuses."""
    if name == FLOW_ENTRIES:
        with open(SYSCTL, "w") as entries:
            entries.write(str(int(value)))
        return
    file, text = _file_and_text(name, value)
    try:
        interface.write(file, text)
    except FileNotFoundError:
        raise KeyError(name) from None
