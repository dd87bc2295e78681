# SPDX-License-Identifier: GPL-2.0-or-later
"""CPUs and what they share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

__all__ = ["Cpu", "Distance", "Node", "Topology", "cpu_list", "divided"]


class Distance(Enum):
    """What two CPUs share; also the smallest part of the machine that a thread stays in."""

    CPU = "cpu"  # they are the same
    CORE = "core"  # the other thread of its core (SMT)
    LLC = "llc"  # the last-level cache
    NODE = "node"  # the NUMA node
    MACHINE = "machine"


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
    isolated: bool = False  # kept free of others: isolcpus=, nohz_full=, or an isolated cpuset
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


def divided(cpus: Iterable[Cpu]) -> tuple[Mapping[int, int], ...]:
    """The part of the machine that each CPU is in, for each size of part that divides it: that of a
    last-level cache, then nodes. A kernel that does not say what CPUs share has one part."""
    known = list(cpus)
    nodes = {cpu.index: cpu.node or 0 for cpu in known}
    caches = {cpu.index: min(cpu.llc, default=nodes[cpu.index]) for cpu in known}
    found = list[Mapping[int, int]]()
    for part_of in (caches, nodes):
        groups = defaultdict[int, set[int]](set)
        for cpu, part in part_of.items():
            groups[part].add(cpu)
        alike = found and len(set(found[-1].values())) == len(groups)
        if len(groups) > 1 and not alike:
            found.append(part_of)
    return tuple(found)
