# SPDX-License-Identifier: GPL-2.0-or-later
"""Queues and CPUs: which queue serves a CPU, which queue lost its CPU, and where it should go.
Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from atfnd.model import ANY_CPU, Action, ActionKind, Cpu, Plan, Queue, ServeOn, Topology
from atfnd.model.reason import Why

__all__ = ["back_home", "confine", "homeless", "same_core"]


def same_core(
    queues: Sequence[Queue], cpu: int, load: Callable[[int], tuple[bool, int]]
) -> Queue | None:
    """The least loaded queue delivered on `cpu`; None when there is none. `load`: whether another
    thread owns it, and how many of our filters point to it."""
    there = [queue for queue in queues if queue.cpu == cpu]
    return min(there, key=lambda queue: (load(queue.index), queue.index), default=None)


def confine(nic: str, unpinned: Iterable[tuple[Queue, int]], why: Why) -> Plan:
    """Put each queue on the CPU given with it (reference/lab.md: a link flap forgets them)."""
    return tuple(
        Action(ActionKind.QUEUE_CPU, nic, None, None, queue.cpu, cpu, why, "", queue.index)
        for queue, cpu in unpinned
    )


def homeless(
    queues: Sequence[Queue],
    topology: Topology,
    dedicated: frozenset[int] = frozenset(),
    serve_on: ServeOn = ANY_CPU,
) -> list[tuple[Queue, int]]:
    """Queues whose CPU is offline, each with the nearest online one: its SMT sibling, else under
    its last-level cache, on its node, on the next node; of equally near ones, the one with the
    fewest queues. An isolated CPU, or one that a rule dedicates, does not stand in for one that is
    not, unless there are no others. One that `serve_on` leaves out never does, unless there are no
    others.

    `queues` are as they were before the CPU went: the kernel lets their interrupts and threads run
    anywhere since (kernel/irq/cpuhotplug.c). `topology` must know what the CPU shared
    (`observe.machine.topology`, `before`).
    """
    cpus = {cpu.index: cpu for cpu in topology.cpus}
    online = [cpu for cpu in topology.cpus if cpu.online]
    online = [cpu for cpu in online if serve_on.allows(cpu.index)] or online
    load = Counter(queue.cpu for queue in queues)
    moves = []
    for queue in queues:
        home = cpus.get(queue.cpu) if queue.cpu is not None else None
        if home is None or home.online:
            continue
        kept = frozenset() if home.index in dedicated else dedicated
        usual = [cpu for cpu in online if cpu.index not in kept]
        names = serve_on.names
        fit = [cpu for cpu in usual if home.isolated or not cpu.isolated or names(cpu.index)]
        fit = fit or usual or online
        nearest = min(
            fit, key=lambda cpu: (_distance(home, cpu, topology), load[cpu.index], cpu.index)
        )
        load[nearest.index] += 1
        moves.append((queue, nearest.index))
    return moves


def back_home(
    queues: Sequence[Queue],
    displaced: dict[int, int],
    topology: Topology,
    serve_on: ServeOn = ANY_CPU,
) -> list[tuple[Queue, int]]:
    """Queues that had to leave a CPU that is online again, with that CPU. They are no longer
    `displaced`."""
    online = serve_on.among(cpu.index for cpu in topology.cpus if cpu.online)
    back = [queue for queue in queues if displaced.get(queue.index) in online]
    return [(queue, displaced.pop(queue.index)) for queue in back]


def _distance(home: Cpu, cpu: Cpu, topology: Topology) -> int:
    """How far apart two CPUs are: 0 one core, 1 one cache, then the distance of their nodes, which
    is 10 within one node (ACPI SLIT)."""
    if cpu.index in home.smt or home.index in cpu.smt:
        return 0
    if cpu.index in home.llc or home.index in cpu.llc:
        return 1
    unknown = 255  # SLIT: unreachable
    if home.node is None or cpu.node is None:
        return unknown
    if home.node == cpu.node:
        return 10
    distances = {node.index: node.distances for node in topology.nodes}
    return distances.get(cpu.node, {}).get(home.node, unknown - 1)
