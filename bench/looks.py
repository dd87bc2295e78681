# SPDX-License-Identifier: GPL-2.0-or-later
"""CPU time of the engine's periodic looks, without a kernel: what it costs to know that nothing has
changed.

Flows of one NIC with 16 queues, ten to a thread, steered by filters of their own; or for a tenth of
them no filter is left. In a look none of the sockets, a tenth of them, or all were used since the
one before. Observers are not in it: reading the sockets costs as much again (`bench inventory`).
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from atfnd.engine.command import Begin, Command
from atfnd.engine.engine import Engine
from atfnd.engine.event import (
    CpusRead,
    Event,
    MovesReported,
    NicAttached,
    QueuesLooked,
    Reviewed,
    SocketReported,
    SocketsAudited,
)
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory, RulesInForce
from atfnd.model import (
    Action,
    ActionKind,
    Cpu,
    FlowKey,
    InterfaceRule,
    Node,
    Outcome,
    Protocol,
    Queue,
    Rss,
    SocketSeen,
    SocketUse,
    Thread,
    Topology,
)
from bench.report import Report
from bench.stats import median
from bench.table import RULE, nic_of

__all__ = ["Looks", "run"]

FLOWS, QUEUES, A_THREAD = 10_000, 16, 10
SECOND_NS = 1_000_000_000
RULES = {RULE.name: replace(RULE, t_delete_ns=1 << 60)}


class Looks:
    """A table of `flows`, of which a NIC has room for `filters`."""

    def __init__(self, flows: int, filters: int) -> None:
        queues = tuple(Queue(i, 100 + i, None, i, True, 1000 + i) for i in range(QUEUES))
        rss = Rss(bytes(40), tuple(range(QUEUES)) * 8)
        nic = replace(nic_of(filters), queues=queues, rss=rss)
        every = tuple(range(QUEUES))
        cpus = tuple(Cpu(cpu, True, 0, 0, cpu, (cpu,), every) for cpu in every)
        self.topology = Topology(cpus, (Node(0, every, {0: 10}),))
        limit = InterfaceRule("*", "bench:1", armed=True, filters_max=filters, filters_reserve=0)
        in_force = RulesInForce(10**8, 1 << 60, RULES, interfaces=(limit,))
        memory = Memory(FlowTable(2 * flows), in_force)
        self.engine, self._now_ns, self._locations = (
            Engine(memory), SECOND_NS, itertools.count(),
        )  # fmt: skip
        for event in (NicAttached(nic, armed=True), CpusRead(self.topology)):
            self.tell(event)
        for number in range(flows):
            self._now_ns += 10_000_000  # shares of moves
            self.tell(SocketReported(nic.name, self._seen(number), RULE))

    def _seen(self, number: int) -> SocketSeen:
        tid = 1000 + number // A_THREAD
        cpu, at_ns = tid % QUEUES, self._now_ns
        remote = bytes([10, 1 + number // 65536, number // 256 % 256, number % 256])
        key = FlowKey(Protocol.TCP, bytes([10, 0, 0, 1]), 443, remote, 1000)
        there, thread = (cpu + 3) % QUEUES, Thread(tid, tid, "app", None)
        return SocketSeen(
            at_ns, number + 1, key, cpu, thread, 100 + there, there, 1000, at_ns, at_ns
        )

    def tell(self, event: Event) -> float:
        """CPU seconds of the decision. What it asks for is done at once."""
        began_s = time.thread_time()
        commands = self.engine.handle(event, self._now_ns)
        took_s = time.thread_time() - began_s
        self._carry_out(commands)
        return took_s

    def _carry_out(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, Begin):
                done = tuple(self._done(each.action) for each in command.wanted)
                self._carry_out(self.engine.handle(MovesReported(done), self._now_ns))

    def _done(self, action: Action) -> Outcome:
        insert = action.kind is ActionKind.INSERT
        at = next(self._locations) if insert else action.location
        return Outcome(action, self._now_ns, 0, at, "")

    def look(self, used_percent: int) -> dict[str, float]:
        """CPU seconds of each part of a look, after this part of the sockets was used."""
        self._now_ns += 20 * SECOND_NS
        uses = [
            SocketUse(
                flow.cookie, flow.key, flow.app_cpu,
                100 + (flow.rx_queue or 0 if flow.target_queue is None else flow.target_queue),
                flow.target_cpu, flow.bytes + 1000 * (flow.cookie * 7919 % 100 < used_percent),
            )
            for flow in self.engine.memory.table
        ]  # fmt: skip
        follows = Action(ActionKind.QUEUE_CPU, "simulated", None, None, 3, 3, "", "", 3)
        events: dict[str, Event] = {
            "audit of sockets": SocketsAudited(uses),
            "queues and owners": QueuesLooked(frozenset(range(QUEUES))),
            "filters": Reviewed(self.topology),
            "a queue that follows": MovesReported((Outcome(follows, self._now_ns, 0, None, ""),)),
        }
        return {name: self.tell(event) for name, event in events.items()}


def run(rounds: int, flows: int = FLOWS) -> Report:
    """`rounds` looks of each kind."""
    report = Report("looks", f"CPU time of the engine's looks at {flows} flows")
    for of, filters in (("all have filters", 2 * flows), ("a tenth wait", flows * 9 // 10)):
        looks = Looks(flows, filters)
        looks.look(100)
        for used in (0, 10, 100):
            found = defaultdict[str, list[float]](list)
            for _ in range(rounds):
                parts = looks.look(used)
                for name, took_s in (*parts.items(), ("together", sum(parts.values()))):
                    found[name].append(took_s * 1000)
            for name, each in found.items():
                report.add(f"{name}, {used} % used", of, "ms", median(each))
                report.samples[f"{of}, {used} %, {name}"] = each
    return report
