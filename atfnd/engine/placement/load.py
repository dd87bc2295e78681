# SPDX-License-Identifier: GPL-2.0-or-later
"""How busy CPUs are, for a placement that can choose among several. Pure."""

from __future__ import annotations

from atfnd.model import CpuTime

__all__ = ["quarters"]

_PARTS = 4  # coarse: what a flow itself costs should seldom tell two CPUs apart


def quarters(before: CpuTime, now: CpuTime) -> dict[int, int]:
    """For each CPU that was online all the time: 0 (less than a quarter of it busy) to 3, from two
    looks at different times."""
    passed_ns = now.at_ns - before.at_ns
    return {
        cpu: min(_PARTS - 1, _PARTS * max(0, busy_ns - before.busy_ns[cpu]) // passed_ns)
        for cpu, busy_ns in now.busy_ns.items()
        if cpu in before.busy_ns
    }
