# SPDX-License-Identifier: GPL-2.0-or-later
"""What CPUs and threads have spent since they began."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["CpuTime"]


@dataclass(frozen=True, slots=True)
class CpuTime:
    """At one moment. A CPU or thread the kernel says nothing of is missing."""

    at_ns: int
    busy_ns: Mapping[int, int]  # by CPU: all but idle time, and what a hypervisor took
    softirq_ns: Mapping[int, int]  # of it, handling softirqs
    ran_ns: Mapping[int, int]  # by tid, of the threads that were asked for
    waited_ns: Mapping[int, int]  # by tid: ready, and another one had the CPU
