# SPDX-License-Identifier: GPL-2.0-or-later
"""The machine that a report is of, in words: /proc, /sys and /etc/os-release."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from atfnd.model import Cpu
from bench.machine import machine

__all__ = ["described", "layout"]


def described(cpus: Sequence[Cpu]) -> dict[str, str]:
    """What is said of it, by name."""
    host = machine()
    try:
        system = platform.freedesktop_os_release().get("PRETTY_NAME", "not said")
    except OSError:
        system = "not said"
    return {
        "processor": host.cpu or "not said",
        "CPUs": layout(cpus),
        "frequency governor": host.governor or "not said",
        "memory": f"{host.memory_bytes / 2**30:.0f} GiB",
        "kernel": host.kernel,
        "system": system,
        "Python": host.python,
        "load average before": f"{host.load[0]:.1f}",
    }


def layout(cpus: Sequence[Cpu]) -> str:
    """How many of each, of those that say so."""
    parts: dict[str, set[object]] = {
        "cores": {cpu.smt for cpu in cpus},
        "last-level caches": {cpu.llc for cpu in cpus if cpu.llc},
        "NUMA nodes": {cpu.node for cpu in cpus if cpu.node is not None},
        "sockets": {cpu.package for cpu in cpus if cpu.package is not None},
    }
    counts = (f"{len(found)} {name}" for name, found in parts.items() if found)
    return f"{len(cpus)} ({', '.join(counts)})"
