# SPDX-License-Identifier: GPL-2.0-or-later
"""The trials of the placement `auto` on the loop: reads the figures that they are judged by, and
moves the flows.

Runs as a chore; where no rule says `auto`, it reads nothing. A trial ends when its NIC no longer
takes our filters, or when another policy comes into force.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from atfnd.daemon.in_force import InForce
from atfnd.daemon.session import Sessions, views_of
from atfnd.engine.placement import steer
from atfnd.engine.placement.auto import applications
from atfnd.engine.table.memory import Memory
from atfnd.engine.trials.trials import Application, Turned
from atfnd.engine.trials.usage import UsageReading, windows
from atfnd.model import Flow, NicView, Outcome, Placement, Plan, Policy, SteeringMethod
from atfnd.observe import Observer
from atfnd.observe.processes.cpu_time import cpu_time
from atfnd.serve.log.event_log import EventLog

__all__ = ["Trying"]

_Flows = Mapping[Application, Sequence[Flow]]


class Trying:
    """`move` moves flows, as their policy's order asks."""

    def __init__(
        self,
        memory: Memory,
        sessions: Sessions,
        observer: Observer,
        in_force: InForce,
        log: EventLog,
        move: Callable[[Plan], list[Outcome]],
    ) -> None:
        self._memory, self._sessions, self._observer = memory, sessions, observer
        self._in_force, self._log, self._move = in_force, log, move
        self._before: UsageReading | None = None
        self._policy: Policy | None = None  # that `_before` is of

    def look(self) -> None:
        """Read what every application did since the last look, and act on it."""
        memory, trials, policy = self._memory, self._memory.trials, self._in_force.policy
        wanted = any(rule.placement is Placement.AUTO for rule in memory.in_force.by_name.values())
        if not wanted and not trials.states:
            return
        nics = self._nics() if wanted else {}
        flows = applications(memory, nics)
        before, now_ns = self._before, time.monotonic_ns()
        self._before = now = self._read(flows, nics.values()) if flows else None
        same, self._policy = policy is self._policy, policy
        turned = trials.abandon(nics, "its NIC no longer takes our filters", now_ns)
        if not same or not wanted:
            turned += trials.abandon((), "another policy is in force", now_ns)
        elif before is not None and now is not None:
            for name, nic in nics.items():
                of = windows(before, now, nic, flows, memory)
                turned += trials.look(name, of, now_ns)
        elif not flows:
            turned += trials.abandon((), "it has no flows", now_ns)
        for each in turned:
            self._turn(each, nics, flows)

    def pressing(self) -> bool:
        """A trial goes on, or may begin: its windows must be short, and of equal length."""
        return self._memory.trials.pressing(time.monotonic_ns())

    def _nics(self) -> dict[str, NicView]:
        """The NICs on which flows can be moved."""
        views = views_of(self._sessions)
        return {
            n: v
            for n, v in views.items()
            if v.armed and v.up and v.method is SteeringMethod.FILTERS
        }

    def _read(self, flows: _Flows, nics: Iterable[NicView]) -> UsageReading:
        """The bytes of their sockets, and the CPU time of the threads that use and that deliver
        them."""
        keys = {flow.key for each in flows.values() for flow in each}
        uses = self._observer.audit()
        threads = {flow.thread for each in flows.values() for flow in each}
        tasks = {(thread.pid, thread.tid) for thread in threads if thread is not None}
        tasks |= {(q.pid, q.pid) for nic in nics for q in nic.queues if q.pid is not None}
        carried = {use.key: use.bytes for use in uses if use.key in keys}
        return UsageReading(cpu_time(tasks), carried, self._observer.lost())

    def _turn(self, turned: Turned, nics: Mapping[str, NicView], flows: _Flows) -> None:
        """Log it, and have the flows of the application looked at again."""
        application, memory = turned.application, self._memory
        self._log.add(
            turned.kind, turned.what, turned.why,
            nic=application.nic, policy=application.rule_name,
        )  # fmt: skip
        nic, mine = nics.get(application.nic), flows.get(application, ())
        if nic is None:
            return  # it is not armed, or gone
        keys = [flow.key for flow in mine]
        now_ns = time.monotonic_ns()
        plan = steer.take_up(nic, memory, now_ns, only=keys)
        for flow in filter(None, map(memory.table.get, keys)):
            if flow.target_cpu is not None:
                self._observer.expect(flow.cookie, flow.target_cpu, now_ns)
        self._move(plan)
