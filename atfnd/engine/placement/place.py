# SPDX-License-Identifier: GPL-2.0-or-later
"""Where a flow goes by its placement: which queue of the CPUs it may use, and what it falls back
to. Pure.

The CPUs and the order in which they are tried are those of `candidates`; a fallback is reported. Of
equal queues one that no thread owns is taken, on the least busy CPU, with the fewest of our
filters, on the NIC's node; a flow that is led to a queue that fits stays there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from atfnd.engine.placement.auto import in_force
from atfnd.engine.placement.candidates import Step, fits, narrower, steps, within
from atfnd.engine.placement.load import quarter
from atfnd.engine.placement.queues import same_core
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    Distance,
    Flow,
    FlowKey,
    FlowRule,
    FlowState,
    NicView,
    Placement,
    PlacementKind,
    Queue,
    SocketSeen,
    Thread,
    cpu_list,
)
from atfnd.model.reason import Code, Why

__all__ = ["Spot", "belongs", "guest", "place", "right", "spares", "too_full"]
__all__ += ["wanders_in", "without_queue"]

_STEPS_KNOWN = 4096
_HERE = {
    PlacementKind.CORE: "on its own CPU",
    PlacementKind.SMT: "on the other thread of its core",
    PlacementKind.LLC: "on another core under its last-level cache",
    PlacementKind.NODE: "on another core of its NUMA node",
}


class Spot(NamedTuple):
    """Where a flow belongs now. No queue: it stays where it is."""

    queue: Queue | None
    why: Why
    fell_back: Why | None  # the placement is not met: why, and what is done instead

    @property
    def cpu(self) -> int | None:
        return None if self.queue is None else self.queue.cpu


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
        fell_back = None
        if not met:
            fell_back = _missed(placement, tried[0], Code.INSTEAD(_HERE[step.kind]))
        why = Code.PLACED(app_cpu, fell_back or placement, found.index, found.cpu)
        return Spot(found, why, fell_back)
    left = _left(current)
    fell_back = _missed(placement, tried[0], left) if tried else left
    return Spot(None, Code.NOT_PLACED(app_cpu, fell_back), fell_back)


def _left(current: int | None) -> Why:
    return Code.LEFT_TO_RSS() if current is None else Code.LEFT_ON_QUEUE(current)


def _missed(placement: Placement, step: Step, instead: Why) -> Why:
    where = _HERE.get(placement.kind) or f"on CPUs {cpu_list(placement.cpus)}"
    if any(step.groups):
        return Code.NO_QUEUE_OF_PLACEMENT(placement, where, instead)
    return Code.NO_CPU_OF_PLACEMENT(placement, where, instead)


def right(
    placement: Placement,
    app_cpu: int,
    rx_cpu: int | None,
    thread: Thread | None,
    memory: Memory,
    home: Distance = Distance.CPU,
) -> bool:
    """Packets that arrive on `rx_cpu` arrive as the placement asks, whatever brings them there."""
    if placement is Placement.CORE and home is Distance.CPU:
        return rx_cpu == app_cpu
    tried = _steps(placement, app_cpu, thread, memory, home)
    return bool(tried) and fits(tried[0], rx_cpu)


def belongs(event: SocketSeen, rule: FlowRule | None, memory: Memory) -> int:
    """The CPU on which the packets of a socket should arrive, after a decision about it: where its
    flow is led; or where they arrive, if that meets the placement and is left so. If its thread
    wanders, or its filter goes first, where its flow will be led then: until then it is reported
    again."""
    flow = memory.table.get(event.key)
    waits = flow is not None and (event.wanders if flow.location is None else flow.left is not None)
    if flow is not None and waits and rule is not None:
        nic, thread = memory.nics[flow.nic].view, event.thread
        placement = in_force(rule.placement, nic.name, rule.name, thread, memory)
        cpu = guest(placement, event.app_cpu, thread, nic, memory).cpu
        return event.app_cpu if cpu is None else cpu
    if flow is not None and flow.target_cpu is not None:
        return flow.target_cpu
    if flow is not None or rule is None or event.rx_cpu is None:
        return event.app_cpu
    if rule.placement is Placement.AUTO:
        return event.app_cpu  # never left as it is
    left = right(rule.placement, event.app_cpu, event.rx_cpu, event.thread, memory, event.home)
    return event.rx_cpu if left else event.app_cpu


def guest(
    placement: Placement,
    app_cpu: int,
    thread: Thread | None,
    nic: NicView,
    memory: Memory,
    current: int | None = None,
    home: Distance = Distance.CPU,
) -> Spot:
    """The spot of a flow whose thread has no queue of its own. `current`: its filter's, or
    RSS's."""
    owned, filters_on = memory.nics[nic.name].owned, memory.table.filters_on
    if (
        placement is Placement.CORE and home is Distance.CPU
    ):  # the common case: no more work than it needs
        if app_cpu in memory.in_force.dedicated:
            other = Code.DEDICATED(placement, app_cpu, _left(current))
            return Spot(None, Code.NOT_PLACED(app_cpu, other), other)
        there = same_core(
            nic.queues, app_cpu, lambda each: (each in owned, filters_on(nic.name, each))
        )
        return Spot(there, _reason(app_cpu, None if there is None else there.index), None)

    def rank(queue: Queue) -> tuple[int, ...]:
        cpu = memory.cpus.get(queue.cpu) if queue.cpu is not None else None
        far = nic.device.node is not None and cpu is not None and cpu.node != nic.device.node
        busy = 0 if queue.cpu is None else quarter(memory.busy.get(queue.cpu, 0))
        return queue.index in owned, busy, filters_on(nic.name, queue.index), far, queue.index

    tried = _steps(placement, app_cpu, thread, memory, home)
    spot = place(app_cpu, placement, tried, nic.queues, rank, current)
    if narrower(placement, home) and spot.queue is not None and spot.fell_back is None:
        where = wanders_in(home, app_cpu, thread, memory)
        return spot._replace(why=Code.WANDERS_PLACED(where, spot.queue.index, spot.cpu))
    return spot


def wanders_in(home: Distance, app_cpu: int, thread: Thread | None, memory: Memory) -> Why:
    """Where a thread wanders that stays in this part around the CPU."""
    app, every = memory.cpus.get(app_cpu), {i for i, cpu in memory.cpus.items() if cpu.online}
    if app is None or home is Distance.MACHINE:
        allowed = memory.thread(thread).cpuset
        cpus = every if allowed is None else every & allowed
        return Code.WANDERS_CPUS(cpu_list(cpus)) if cpus else Code.WANDERS()
    if home is Distance.LLC:
        return Code.WANDERS_LLC(cpu_list(app.llc))
    cpus = {index for index in every if memory.cpus[index].node == app.node}
    return Code.WANDERS_NODE(app.node, cpu_list(cpus))


def too_full(rule: FlowRule | None, cpu: int, memory: Memory) -> Why | None:
    """Why flows of this rule are not brought to this CPU now, though their threads run on it
    (`load`). None: they are."""
    if cpu not in memory.full.cpus or rule is None or rule.full_core == "stay":
        return None
    return Code.LEFT_FULL(cpu) if rule.placement is Placement.CORE else None


def spares(key: FlowKey, rule: FlowRule | None, cpu: int, memory: Memory) -> Why | None:
    """Why this flow is left to RSS while its thread runs on this CPU. None: it is not, or not yet:
    the filter of its port delivers it."""
    return None if memory.table.ports_of(key) else too_full(rule, cpu, memory)


@lru_cache(maxsize=4096)  # thousands of flows share them
def _reason(cpu: int, queue: int | None) -> Why:
    return Code.NO_QUEUE_THERE(cpu) if queue is None else Code.AT_QUEUE(cpu, queue)


def without_queue(flow: Flow, nic: NicView, memory: Memory) -> Flow:
    """The entry of a flow that waits for a queue on its core, with the reason that holds now: its
    packets may arrive there already, or a queue may be delivered there."""
    waits = flow.location is None and flow.state in (FlowState.WANTED, FlowState.OBSERVED)
    if not waits or flow.target_queue is not None or flow.fell_back is not None:
        return flow
    cpu = flow.app_cpu
    if flow.why.code not in (Code.NO_QUEUE_THERE, Code.ARRIVES) or flow.why.about != (cpu,):
        return flow
    if flow.rx_cpu == cpu:
        target_cpu, why = cpu, Code.ARRIVES(cpu)
    else:
        queue = guest(Placement.CORE, cpu, flow.thread, nic, memory).queue
        target_cpu, why = None, _reason(cpu, None if queue is None else queue.index)
    if (flow.target_cpu, flow.why) == (target_cpu, why):
        return flow
    return flow._replace(target_cpu=target_cpu, why=why)


def _steps(
    placement: Placement,
    app_cpu: int,
    thread: Thread | None,
    memory: Memory,
    home: Distance = Distance.CPU,
) -> list[Step]:
    allowed = memory.thread(thread).cpuset
    known, dedicated = memory.steps, memory.in_force.dedicated
    of = placement, app_cpu, allowed, dedicated, home
    if of not in known:
        if len(known) >= _STEPS_KNOWN:
            known.clear()
        cpus = memory.cpus
        if narrower(placement, home):
            known[of] = within(app_cpu, home, placement, cpus, allowed=allowed, dedicated=dedicated)
        else:
            known[of] = steps(app_cpu, placement, cpus, allowed=allowed, dedicated=dedicated)
    return known[of]
