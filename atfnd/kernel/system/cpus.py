# SPDX-License-Identifier: GPL-2.0-or-later
"""The CPUs of the machine (Documentation/ABI/testing/sysfs-devices-system-cpu)."""

from __future__ import annotations

from pathlib import Path

from atfnd.kernel.system.cpulist import parse_cpulist

__all__ = ["online"]


def online(root: Path = Path("/")) -> frozenset[int]:
    """CPUs that run tasks now (/sys/devices/system/cpu/online)."""
    return parse_cpulist((root / "sys/devices/system/cpu/online").read_text())
