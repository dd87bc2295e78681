# SPDX-License-Identifier: GPL-2.0-or-later
"""What the policy says of flows: another policy is compared with every flow of the table. And what
rules need to know of applications and threads, read from /proc and sock_diag(7)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from atfnd.daemon.executor import Executor
from atfnd.daemon.session import Sessions, moving
from atfnd.engine.engine import Engine
from atfnd.engine.event import PolicyLoaded
from atfnd.model import Flow, FlowRule, Placement, Policy, Thread
from atfnd.observe.processes.cpuset import cpuset_of
from atfnd.observe.processes.process import Processes
from atfnd.observe.sockets.listening import ListenedPorts
from atfnd.policy.match.matching import Matching, Sources

__all__ = ["FlowRules", "cpusets_of", "sources"]


class FlowRules:
    """`use_interfaces` arms and disarms as the policy says."""

    def __init__(
        self,
        engine: Engine,
        executor: Executor,
        sessions: Sessions,
        matching: Matching,
        use_interfaces: Callable[[Policy], None],
    ) -> None:
        self._engine, self._executor, self._sessions = engine, executor, sessions
        self._matching, self._use_interfaces = matching, use_interfaces

    def use(self, policy: Policy) -> None:
        """Another policy is in force, and `matching` knows it. What the engine asks for is written
        after NICs were armed and disarmed: not by half of a policy. It is written also if that ran
        short of something, because the engine counts on it."""
        flows = self._engine.flows_to_match()
        rules = {(flow.cookie, flow.key): self._steers(flow) for flow in flows}
        commands = self._executor.decide(PolicyLoaded(policy, rules, moving(self._sessions)))
        for session in self._sessions.values():
            if session.moves is not None:
                session.moves.use(policy)
        try:
            self._use_interfaces(policy)
        finally:
            self._executor.carry_out(commands)

    def _steers(self, flow: Flow) -> str | None:
        """The rule that steers a flow of the table, by name. A flow taken over from an earlier run,
        whose thread is not known yet, stays, unless its rule leaves it alone for every user."""
        if flow.thread is None:
            return flow.rule_name if self._matching.left_by(flow.key) is None else None
        view = self._sessions[flow.nic].view
        rule = self._matching.of_flow(flow, view, time.monotonic_ns())
        return None if rule is None or rule.placement is Placement.LEAVE else rule.name


def sources(policy: Policy) -> Sources:
    """For one policy: command lines are read only if it asks for them."""
    command = any(rule.commands is not None for rule in policy.flows)
    return Sources(Processes(command=command).of, ListenedPorts().serves)


def cpusets_of(
    thread: Thread | None, rule: FlowRule | None, policy: Policy
) -> Mapping[int, frozenset[int] | None]:
    """By thread: at most this one."""
    if thread is None or rule is None or not policy.elsewhere():
        return {}
    if rule.placement in (Placement.LEAVE, Placement.CORE):
        return {}
    return {thread.tid: cpuset_of(thread.tid)}
