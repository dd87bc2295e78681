# SPDX-License-Identifier: GPL-2.0-or-later
"""CPUs and what they share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Cpu", "Node", "Topology", "cpu_list"]


@dataclass(frozen=True, slots=True)
class Cpu:
    """One logical CPU and what it shares with others."""

    index: int
    online: bool
    node: int | None
    package: int | None
    core: int | None
    smt: tuple[int, ...]  # siblings including itself
    llc: tuple[int, ...]  # CPUs under the same last-level cache, including itself
    isolated: bool = False  # kept free of load balancing: isolcpus=, or an isolated cpuset
    nohz_full: bool = False  # without a tick while one thread runs


@dataclass(frozen=True, slots=True)
class Node:
    """One NUMA node that is online."""

    index: int
    cpus: tuple[int, ...]  # online ones
    distances: Mapping[int, int]  # to every online node, 10 to itself (ACPI SLIT)


@dataclass(frozen=True, slots=True)
class Topology:
    cpus: tuple[Cpu, ...]
    nodes: tuple[Node, ...] = ()  # none: a kernel without NUMA


def cpu_list(cpus: Iterable[int]) -> str:
    """`0-2,5`, as taskset(1) takes it."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1][1:] = [cpu]
        else:
            runs.append([cpu])
    return ",".join("-".join(map(str, run)) for run in runs)
