# SPDX-License-Identifier: GPL-2.0-or-later
"""The trials of the placement `auto` on the loop: reads what they are judged by, moves the flows.

Runs as a chore; where no rule says `auto`, it reads nothing. A trial ends where its NIC takes no
filters of ours any more, or another policy came into force.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from atfnd.decide import steer
from atfnd.decide.auto import applications
from atfnd.decide.trials import Application, Turned
from atfnd.decide.usage import Look, windows
from atfnd.model import Flow, Means, NicView, Outcome, Placement, Plan, Policy
from atfnd.observe.cpu_time import cpu_time
from atfnd.published import Published

__all__ = ["Trying"]

_Flows = Mapping[Application, Sequence[Flow]]


class Trying:
    """`carry_out` moves flows, as their policy's order asks."""

    def __init__(self, shown: Published, carry_out: Callable[[Plan], list[Outcome]]) -> None:
        self._shown, self._carry_out = shown, carry_out
        self._before: Look | None = None
        self._policy: Policy | None = None  # that `_before` is of

    def look(self) -> None:
        """What every application did since the last look; and what follows from that."""
        shown, trials = self._shown, self._shown.memory.trials
        wanted = Placement.AUTO in shown.memory.settling.placement_by_policy.values()
        if not wanted and not trials.states:
            return
        nics = self._nics() if wanted else {}
        flows = applications(shown.memory, nics)
        before, now_ns = self._before, time.monotonic_ns()
        self._before = now = self._read(flows, nics.values()) if flows else None
        same, self._policy = shown.policy is self._policy, shown.policy
        turned = trials.abandon(nics, "its NIC takes no filters of ours any more", now_ns)
        if not same or not wanted:
            turned += trials.abandon((), "another policy is in force", now_ns)
        elif before is not None and now is not None:
            for name, nic in nics.items():
                of = windows(before, now, nic, flows, shown.memory)
                turned += trials.look(name, of, now_ns)
        elif not flows:
            turned += trials.abandon((), "it has no flows", now_ns)
        for each in turned:
            self._turn(each, nics, flows)

    def pressing(self) -> bool:
        """A trial goes on, or may begin: its windows are to be short, and of one length."""
        return self._shown.memory.trials.pressing(time.monotonic_ns())

    def _nics(self) -> dict[str, NicView]:
        """Where flows can be moved."""
        views = {name: watch.view for name, watch in self._shown.watches.items()}
        return {n: v for n, v in views.items() if v.armed and v.up and v.means is Means.RULES}

    def _read(self, flows: _Flows, nics: Iterable[NicView]) -> Look:
        """The bytes of their sockets, and the CPU time of who uses and who delivers them."""
        keys = {flow.key for each in flows.values() for flow in each}
        uses = self._shown.observer.audit()
        threads = {flow.thread for each in flows.values() for flow in each}
        tasks = {(thread.pid, thread.tid) for thread in threads if thread is not None}
        tasks |= {(q.pid, q.pid) for nic in nics for q in nic.queues if q.pid is not None}
        carried = {use.key: use.bytes for use in uses if use.key in keys}
        return Look(cpu_time(tasks), carried, self._shown.observer.lost())

    def _turn(self, turned: Turned, nics: Mapping[str, NicView], flows: _Flows) -> None:
        """Say so, and have the flows of the application looked at again."""
        application, shown = turned.application, self._shown
        shown.log.add(
            turned.kind, turned.what, turned.why,
            nic=application.nic, policy=application.policy,
        )  # fmt: skip
        nic, mine = nics.get(application.nic), flows.get(application, ())
        if nic is None:
            return  # it is not armed, or gone
        keys = [flow.key for flow in mine]
        plan = steer.take_up(nic, shown.memory, time.monotonic_ns(), only=keys)
        for flow in filter(None, map(shown.memory.table.get, keys)):
            if flow.target_cpu is not None:
                shown.observer.expect(flow.cookie, flow.target_cpu)
        self._carry_out(plan)
