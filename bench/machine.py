# SPDX-License-Identifier: GPL-2.0-or-later
"""The machine a result was measured on: /proc and /sys."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import NamedTuple

__all__ = ["Machine", "machine"]


class Machine(NamedTuple):
    """`None` where the machine does not say."""

    cpu: str | None
    cpus: int  # we may run on
    memory_bytes: int
    kernel: str
    governor: str | None
    python: str
    load: tuple[float, float, float]  # averages when it was described


def _governor() -> str | None:
    path = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return path.read_text().strip() if path.exists() else None


def machine() -> Machine:
    """Describe this machine now."""
    models = (
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    )
    return Machine(
        next(models, None),
        len(os.sched_getaffinity(0)),
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        platform.release(),
        _governor(),
        platform.python_version(),
        os.getloadavg(),
    )
