# SPDX-License-Identifier: GPL-2.0-or-later
"""CPUs and who shares what with whom."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Cpu", "Topology"]


@dataclass(frozen=True, slots=True)
class Cpu:
    """One logical CPU and who shares what with it."""

    index: int
    online: bool
    node: int | None
    package: int | None
    core: int | None
    smt: tuple[int, ...]  # siblings including itself
    llc: tuple[int, ...]  # CPUs under the same last-level cache, including itself
    isolated: bool = False  # kept free of load balancing: isolcpus=, or an isolated cpuset


@dataclass(frozen=True, slots=True)
class Topology:
    cpus: tuple[Cpu, ...]
