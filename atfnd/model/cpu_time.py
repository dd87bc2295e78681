# SPDX-License-Identifier: GPL-2.0-or-later
"""What CPUs and threads have spent since they began."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["CpuTime", "NapiTime"]


@dataclass(frozen=True, slots=True)
class CpuTime:
    """At one moment. A CPU or thread the kernel says nothing of is missing."""

    at_ns: int
    busy_ns: Mapping[int, int]  # by CPU: all but idle time, and what a hypervisor took
    softirq_ns: Mapping[int, int]  # of it, handling softirqs
    ran_ns: Mapping[int, int]  # by tid, of the threads that were asked for
    waited_ns: Mapping[int, int]  # by tid: ready, while another thread had the CPU
    idle_ns: Mapping[int, int]  # by CPU, also while it waited for I/O


class NapiTime(NamedTuple):
    """What the thread that polls a queue has spent, and the CPU the queue is delivered on."""

    nic: str
    queue: int
    cpu: int | None
    ran_ns: int
