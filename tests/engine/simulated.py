# SPDX-License-Identifier: GPL-2.0-or-later
"""A NIC and the flows that come through it, in simulated time: decided on by the real code.

Nothing of the kernel is here. A write takes no time; one that `defers` chooses is put off, as a
strict move may be. What is delivered where is computed from the rules, as the NIC would.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from atfnd.engine import audit
from atfnd.engine.filters import aggregate, budget, port_filters
from atfnd.engine.filters.listeners import Listeners
from atfnd.engine.ownership import follow
from atfnd.engine.placement import steer
from atfnd.engine.table.memory import Memory, NicMemory
from atfnd.model import (
    Action,
    ActionKind,
    FlowKey,
    FlowRule,
    Listening,
    Move,
    NicView,
    Outcome,
    Plan,
    SocketSeen,
    SocketUse,
    Thread,
    Topology,
)
from atfnd.model.reason import Code
from atfnd.move.event import Wanted
from atfnd.move.plan import in_order

__all__ = ["SECOND_NS", "Load", "Simulated"]

SECOND_NS = 1_000_000_000


class Load(NamedTuple):
    """One flow: its application's CPU and thread, what it carries, and where RSS delivers it."""

    key: FlowKey
    app_cpu: int
    bytes_per_s: int
    rss_queue: int
    thread: Thread | None = None


class Simulated:
    """`nic` needs a CPU for each queue, and refuses more than `slots` rules. `deleted` counts those
    that went again, `writes` all writes of rules. `served` are the ports that are listened on."""

    def __init__(
        self,
        nic: NicView,
        rule: FlowRule,
        memory: Memory,
        loads: Sequence[Load],
        defers: Callable[[Action], bool] = lambda action: False,
        slots: int | None = None,
        served: Iterable[Listening] = (),
    ) -> None:
        self.slots, self.listeners = slots, Listeners()
        for event in served:
            self.listeners.opened(event, memory.table)
        self.rule, self.memory, self.defers = rule, memory, defers
        self._known = memory.nics[nic.name] = NicMemory(nic)
        self.loads = list(loads)
        self.now_ns = SECOND_NS
        self.held: dict[int, tuple[FlowKey, int]] = {}
        self._free: list[int] = []  # locations below the highest one in use
        self._filtered: dict[FlowKey, int] = {}  # the same, by flow
        self._ports: dict[FlowKey, int] = {}  # those of ports
        self.carried: dict[FlowKey, int] = {}
        self.deleted = self.writes = 0
        self._cookies = {load.key: number + 1 for number, load in enumerate(loads)}
        self._rss = {load.key: load.rss_queue for load in loads}

    @property
    def nic(self) -> NicView:
        """As it is now."""
        return self._known.view

    @nic.setter
    def nic(self, view: NicView) -> None:
        self._known.view = view

    def start(self) -> None:
        """Every flow is reported that is not where it belongs."""
        for load in self.loads:
            self.report(load)

    def arrive(self, loads: Iterable[Load]) -> None:
        """More flows, and each is reported."""
        for load in loads:
            self.loads.append(load)
            self._cookies[load.key] = len(self.loads)
            self._rss[load.key] = load.rss_queue
            self.report(load)

    def report(self, load: Load) -> None:
        """The observer tells of a flow."""
        queue = self.nic.queues[self.queue_of(load.key)]
        event = SocketSeen(
            self.now_ns, self._cookies[load.key], load.key, load.app_cpu, load.thread,
            queue.napi_id, queue.cpu, self.carried.get(load.key, 0), self.now_ns, 0,
        )  # fmt: skip
        rule = self.rule_for(load.key)
        self.carry_out(steer.seen(event, self.nic, rule, self.memory, self.now_ns))

    def queue_of(self, key: FlowKey) -> int:
        """As the NIC delivers it: its own rule wins over its port's, and that over RSS."""
        if (own := self._filtered.get(key)) is not None:
            return own
        ports = (queue for each, queue in self._ports.items() if each.covers(key))
        return next(ports, self._rss[key])

    def rule_for(self, key: FlowKey) -> FlowRule | None:
        """The policy's, for a flow."""
        return self.rule

    def look(self, after_ns: int = 2 * SECOND_NS) -> None:
        """As the daemon audits, so much later."""
        self.now_ns += after_ns
        uses = []
        for load in self.loads:
            carried = self.carried.get(load.key, 0) + load.bytes_per_s * after_ns // SECOND_NS
            self.carried[load.key] = carried
            at = self.nic.queues[self.queue_of(load.key)]
            uses.append(
                SocketUse(self._cookies[load.key], load.key, load.app_cpu, at.napi_id, at.cpu,
                          carried, self.now_ns)
            )  # fmt: skip
        uses += self.listeners.uses(self.memory.table, self.now_ns)
        views = {self.nic.name: self.nic}
        self.carry_out(audit.check_sockets(uses, views, self.memory, self.now_ns))
        online = frozenset(queue.cpu for queue in self.nic.queues if queue.cpu is not None)
        self.carry_out(steer.own(self.nic, online, self.memory, self.now_ns))
        self.spend()
        self.now_ns += 1
        self.carry_out(steer.due(views, self.memory, self.now_ns))
        if self.listeners.sockets:
            births = port_filters.look(
                self.nic, lambda key, comm: self.rule, self.listeners, self.sockets(), self.memory,
                self.now_ns,
            )  # fmt: skip
            self.bear(births)
        aggregate.stranded(self.nic, self.memory, self.now_ns)

    def sockets(self) -> list[SocketUse]:
        """All there are, where they are delivered now."""
        found = []
        for load in self.loads:
            at = self.nic.queues[self.queue_of(load.key)]
            found.append(SocketUse(0, load.key, load.app_cpu, at.napi_id, at.cpu, 0))
        return found

    def bear(self, births: Iterable[Wanted]) -> None:
        """Rules of ports, and those that they make needless."""
        for birth in births:
            self.carry_out((birth.action,))

    def spend(self) -> None:
        """As the daemon does after each audit."""
        views = {self.nic.name: self.nic}
        budget.weigh(self.nic, Topology(()), self._rss.get, self.memory, self.now_ns)
        self.carry_out(steer.retry(views, self.memory, self.now_ns))
        self.carry_out(budget.surplus(self.nic, self.memory, self.now_ns))
        self.carry_out(budget.swaps(self.nic, self.memory, self.now_ns))

    def carry_out(self, plan: Plan) -> None:
        for action in in_order(plan):
            if action.queue is not None and action.new is not None:
                follow.arrived(action, self.memory)
                self._follow(action.queue, action.new)
            elif self.defers(action):
                budget.ended(action, self.memory)
                if action.key is not None and action.key.listens:
                    budget.put_off(action.key, self.nic.name, self.memory, self.now_ns)
                elif action.key is not None:
                    move = Move("none", "deferred", Code.KERNEL("simulated"), 0, 0)
                    audit.moved(action.key, move, self.memory, self.now_ns, deferred=True)
            else:
                audit.record(self._write(action), self.memory)

    def _follow(self, queue: int, cpu: int) -> None:
        queues = (replace(q, cpu=cpu) if q.index == queue else q for q in self.nic.queues)
        self.nic = replace(self.nic, queues=tuple(queues))
        follow.followed(self.nic.name, queue, cpu, self.memory)

    def _write(self, action: Action) -> Outcome:
        location = action.location
        if action.kind is ActionKind.INSERT and action.key is not None:
            location = self.location_for(action.key)
            if location is None:
                return Outcome(action, self.now_ns, errno.ENOSPC, None, "full")
        if action.key is None or location is None:
            raise ValueError(f"no rule's action: {action}")
        self.writes += 1
        if action.kind is ActionKind.DELETE:
            self._free.append(location)
            del self.held[location], self._filtered[action.key]
            self._ports.pop(action.key, None)
            self.deleted += 1
        elif action.new is not None:
            self.held[location] = action.key, action.new
            self._filtered[action.key] = action.new
            if action.key.listens:
                self._ports[action.key] = action.new
        return Outcome(action, self.now_ns, 0, location, "simulated")

    def location_for(self, key: FlowKey) -> int | None:
        """Where a new rule goes; None: the table is full."""
        if len(self.held) == self.slots:
            return None
        return self._free.pop() if self._free else len(self.held)

    def placed(self) -> float:
        """The share of all bytes that is delivered on its application's CPU now."""
        total = sum(load.bytes_per_s for load in self.loads)
        there = sum(
            load.bytes_per_s
            for load in self.loads
            if self.nic.queues[self.queue_of(load.key)].cpu == load.app_cpu
        )
        return there / total if total else 1.0

    def others_took(self, filters: int) -> None:
        """Another program has so many filters in the NIC."""
        self.nic = replace(self.nic, foreign=filters)
