# SPDX-License-Identifier: GPL-2.0-or-later
"""Where a flow goes by its placement: which CPUs, which queue of those, and what instead. Pure.

Steps are tried in order; the first with a queue is taken, and whatever comes after the placement's
own is a fallback, which is said. Each group of a step is better than the next one.

    core       its own CPU                                                 then: left to RSS
    smt        the other thread of its core                                then: core, left to RSS
    llc        another core under its last-level cache, its SMT sibling    then: node, core, RSS
    node       another core of its NUMA node, its SMT sibling, its own CPU then: left to RSS
    cpus       these                                                       then: left to RSS
    dedicated  these                                                       then: left to RSS

Beyond its core nothing shares the caches that `core` and `smt` are for, so these go no further. For
one busy flow another core of its socket is best, then another socket, then its own core (Hanford et
al., Future Generation Computer Systems, 2015): hence the order of `llc`.

An offline CPU is never taken, and one that is dedicated serves only the rule that says so. Beside
its own CPU, `near` takes none that is isolated or outside the cpuset of its thread. Of equal queues
one that no thread owns is taken, with the fewest of our rules, on the NIC's node; a flow that is
led to a queue that fits stays there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from atfnd.decide.memory import Memory
from atfnd.decide.queues import same_core
from atfnd.model import (
    Cpu,
    FlowRule,
    NicView,
    Placement,
    PlacementKind,
    Queue,
    SocketSeen,
    Thread,
    cpu_list,
)

__all__ = ["Spot", "Step", "belongs", "fits", "guest", "place", "right", "steps"]

_HERE = {
    PlacementKind.CORE: "on its own CPU",
    PlacementKind.SMT: "on the other thread of its core",
    PlacementKind.LLC: "on another core under its last-level cache",
    PlacementKind.NODE: "on its NUMA node",
}


class Step(NamedTuple):
    """CPUs that meet a placement of this kind, in groups of equally good ones."""

    kind: PlacementKind
    groups: tuple[frozenset[int], ...]


class Spot(NamedTuple):
    """Where a flow belongs now. No queue: it is left where it is."""

    queue: Queue | None
    why: str
    fell_back: str | None  # the placement is not met: why not, and what it is instead

    @property
    def cpu(self) -> int | None:
        return None if self.queue is None else self.queue.cpu


def steps(
    app_cpu: int,
    placement: Placement,
    cpus: Mapping[int, Cpu],
    *,
    allowed: frozenset[int] | None = None,
    dedicated: frozenset[int] = frozenset(),
) -> list[Step]:
    """The CPUs a placement may use, best first: its own step, and those it falls back to. `cpus`
    is every CPU by number, `allowed` the cpuset of the thread (None: not known, or any),
    `dedicated` all CPUs that some rule dedicates."""
    online = {index for index, cpu in cpus.items() if cpu.online}
    if placement.kind in (PlacementKind.CPUS, PlacementKind.DEDICATED):
        mine = placement.kind is PlacementKind.DEDICATED
        named = placement.cpus & online - (frozenset() if mine else dedicated)
        return [Step(placement.kind, (named,))]
    app = cpus.get(app_cpu)
    own = frozenset({app_cpu} & online - dedicated)
    core = Step(PlacementKind.CORE, (own,))
    if app is None or placement.kind is PlacementKind.LEAVE:
        return [] if placement.kind is PlacementKind.LEAVE else [Step(placement.kind, ()), core]
    fit = {i for i in online - dedicated - {app_cpu} if not cpus[i].isolated}
    fit &= fit if allowed is None else allowed
    sibling = frozenset(fit.intersection(app.smt))
    llc = frozenset(fit.intersection(app.llc) - sibling)
    node = frozenset(i for i in fit - sibling if cpus[i].node == app.node)  # all, without NUMA
    beside = () if placement.avoid_smt else (sibling,)
    match placement.kind:
        case PlacementKind.CORE:
            return [core]
        case PlacementKind.SMT:
            return [Step(PlacementKind.SMT, (sibling,)), core]
        case PlacementKind.LLC:
            near = Step(PlacementKind.LLC, (llc, *beside))
            return [near, Step(PlacementKind.NODE, (node,)), core]
        case PlacementKind.NODE:
            return [Step(PlacementKind.NODE, (node, *beside, own))]


def fits(step: Step, cpu: int | None) -> bool:
    """Packets that arrive on `cpu` arrive where this step asks for."""
    return any(cpu in group for group in step.groups)


def place(
    app_cpu: int,
    placement: Placement,
    tried: Sequence[Step],
    queues: Sequence[Queue],
    rank: Callable[[Queue], tuple[int, ...]],
    current: int | None = None,
) -> Spot:
    """The first queue of the first step (`steps`) that has one; the lowest `rank` of equals, and
    `current`, the queue that it is led to, before any other that fits."""
    for step in tried:
        here = [queue for queue in queues if fits(step, queue.cpu)]
        found = next((queue for queue in here if queue.index == current), None)
        for group in step.groups if found is None else ():
            equals = [queue for queue in here if queue.cpu in group]
            found = found or min(equals, key=rank, default=None)
        if found is None:
            continue
        met = step.kind is placement.kind
        at = f"queue {found.index} is delivered on CPU {found.cpu}"
        fell_back = None if met else _missed(placement, tried[0], f"{_HERE[step.kind]} instead")
        why = f"its thread runs on CPU {app_cpu}; {fell_back or placement}: {at}"
        return Spot(found, why, fell_back)
    left = _left(current)
    fell_back = _missed(placement, tried[0], left) if tried else left
    return Spot(None, f"its thread runs on CPU {app_cpu}; {fell_back}", fell_back)


def _left(current: int | None) -> str:
    return "left to RSS" if current is None else f"left on queue {current}"


def _missed(placement: Placement, step: Step, instead: str) -> str:
    where = _HERE.get(placement.kind, f"on CPUs {cpu_list(placement.cpus)}")
    if any(step.groups):
        return f"{placement}: no queue is delivered {where}; {instead}"
    return f"{placement}: no CPU {where} is free for it; {instead}"


def right(
    placement: Placement, app_cpu: int, rx_cpu: int | None, thread: Thread | None, memory: Memory
) -> bool:
    """Packets that arrive on `rx_cpu` arrive as the placement asks, whoever brings them there."""
    if placement is Placement.CORE:
        return rx_cpu == app_cpu
    tried = _steps(placement, app_cpu, thread, memory)
    return bool(tried) and fits(tried[0], rx_cpu)


def belongs(event: SocketSeen, rule: FlowRule | None, memory: Memory) -> int:
    """The CPU on which the packets of a socket are right, after what was decided on it: where its
    flow is led; or where they arrive, if that is left so as it meets the placement."""
    flow = memory.table.get(event.key)
    if flow is not None and flow.target_cpu is not None:
        return flow.target_cpu
    if flow is not None or rule is None or event.rx_cpu is None:
        return event.app_cpu
    left = right(rule.placement, event.app_cpu, event.rx_cpu, event.thread, memory)
    return event.rx_cpu if left else event.app_cpu


def guest(
    placement: Placement,
    app_cpu: int,
    thread: Thread | None,
    nic: NicView,
    memory: Memory,
    current: int | None = None,
) -> Spot:
    """The spot of a flow whose thread has no queue of its own. `current`: its rule's, or RSS's."""
    owned, rules_on = memory.owned.get(nic.name, {}), memory.table.rules_on
    if placement is Placement.CORE:  # the common one: no more than it needs
        if app_cpu in memory.settling.dedicated:
            other = f"{placement}: CPU {app_cpu} is dedicated to another rule; {_left(current)}"
            return Spot(None, f"its thread runs on CPU {app_cpu}; {other}", other)
        there = same_core(
            nic.queues, app_cpu, lambda each: (each in owned, rules_on(nic.name, each))
        )
        return Spot(there, _reason(app_cpu, None if there is None else there.index), None)

    def rank(queue: Queue) -> tuple[int, ...]:
        cpu = memory.cpus.get(queue.cpu) if queue.cpu is not None else None
        far = nic.device.node is not None and cpu is not None and cpu.node != nic.device.node
        return queue.index in owned, rules_on(nic.name, queue.index), far, queue.index

    tried = _steps(placement, app_cpu, thread, memory)
    return place(app_cpu, placement, tried, nic.queues, rank, current)


@lru_cache(maxsize=4096)
def _reason(cpu: int, queue: int | None) -> str:
    if queue is None:
        return f"its thread runs on CPU {cpu}, and no queue is delivered there"
    return f"its thread runs on CPU {cpu}, where queue {queue} is delivered"


def _steps(placement: Placement, app_cpu: int, thread: Thread | None, memory: Memory) -> list[Step]:
    allowed = None if thread is None else memory.cpusets.get(thread.tid)
    dedicated = memory.settling.dedicated
    return steps(app_cpu, placement, memory.cpus, allowed=allowed, dedicated=dedicated)
