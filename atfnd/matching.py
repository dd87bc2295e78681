# SPDX-License-Identifier: GPL-2.0-or-later
"""Under which rule of the policy a flow falls, by what is known of it: gathered here.

What no rule asks for is not read. A flow that may fall under another rule once it has carried more,
is older or faster, is looked at again with each audit of the sockets. Its rate is that between two
looks, and the highest so far counts: a flow does not fall back for a pause.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from atfnd.decide.table import FlowTable
from atfnd.model import (
    Connecting,
    Direction,
    Facts,
    Flow,
    FlowKey,
    FlowRule,
    NicView,
    Placement,
    Policy,
    Process,
    Protocol,
    SocketSeen,
    SocketUse,
    Thread,
)
from atfnd.observe.ports import ListenedPorts
from atfnd.observe.process import Processes
from atfnd.policy.compile import compiled
from atfnd.policy.many import of_many
from atfnd.policy.match import Matcher, asks_direction, meets, of_key, of_process

__all__ = ["Matching"]

_SECOND_NS = 1_000_000_000  # of a shorter time no rate is told


@dataclass(slots=True)
class _Look:
    """The last look at a flow whose rule may change."""

    event: SocketSeen
    others: tuple[FlowRule, ...]  # that it may fall under
    at_ns: int  # when its rate began to be measured
    bytes: int  # then
    rate_bit_s: int = 0  # the highest so far

    def measure(self, carried: int, now_ns: int) -> int:
        took_ns = now_ns - self.at_ns
        if took_ns >= _SECOND_NS:
            rate = max(0, carried - self.bytes) * 8 * _SECOND_NS // took_ns
            self.rate_bit_s = max(self.rate_bit_s, rate)
            self.at_ns, self.bytes = now_ns, carried
        return self.rate_bit_s


class Matching:
    """Remembers at most as many flows as the table holds."""

    def __init__(self, policy: Policy, processes: Processes | None = None) -> None:
        self._looks: dict[tuple[int, FlowKey], _Look] = {}  # by cookie and key
        self.renew(policy, processes)

    def renew(self, policy: Policy, processes: Processes | None = None) -> None:
        """Another policy is in force: ask `of_flow` of every flow there is. Rates stay known."""
        self._matcher, self._compiled, self._rules = Matcher(policy), compiled(policy), policy.flows
        asked = any(map(of_process, policy.flows))
        command = any(rule.commands is not None for rule in policy.flows)
        self._processes = (processes or Processes(command=command)) if asked else None
        self._ports = ListenedPorts() if asks_direction(policy) else None
        self._most = policy.table_max

    def seen(self, event: SocketSeen, nic: NicView, now_ns: int) -> FlowRule | None:
        """The rule for a flow that is in use; None: it is to be left."""
        known = self._looks.pop((event.cookie, event.key), None)
        facts = Facts(
            key=event.key,
            comm=event.thread.comm if event.thread else None,
            process=self._process(event.thread, now_ns),
            interface=nic.name,
            direction=event.direction or self._direction(event, nic, now_ns),
            bytes=event.bytes,
            age_ns=now_ns - event.born_ns if event.born_ns is not None else 0,
            rate_bit_s=known.measure(event.bytes, now_ns) if known else 0,
        )
        rule, others = self._matcher.look(facts)
        # One that was fast enough is to stay so.
        if (others or (rule and rule.min_rate_bit_s)) and len(self._looks) < self._most:
            look = known or _Look(event, others, now_ns, event.bytes)
            look.event, look.others = event, others
            self._looks[event.cookie, event.key] = look
        return rule

    def groups(self, thread: Thread | None, now_ns: int) -> tuple[int, str, int] | None:
        """Of a thread that uses a flow: its control group, its path and the groups of the policy's
        clauses that it is in. None: not known, or none is asked for."""
        if thread is None or thread.cgroup is None or not self._compiled.groups:
            return None
        path = self._process(thread, now_ns).cgroup
        return None if path is None else (thread.cgroup, path, self._compiled.groups_of(path))

    def of_flow(self, flow: Flow, nic: NicView, now_ns: int) -> FlowRule | None:
        """The rule for a flow of the table, as it was `seen` last."""
        known = self._looks.get((flow.cookie, flow.key))
        if known is not None:
            return self.seen(known.event._replace(bytes=flow.bytes), nic, now_ns)
        napi_id = next((q.napi_id for q in nic.queues if q.index == flow.rx_queue), None)
        event = SocketSeen(
            now_ns, flow.cookie, flow.key, flow.app_cpu, flow.thread, napi_id, flow.rx_cpu,
            flow.bytes, now_ns, flow.born_ns, flow.direction,
        )  # fmt: skip
        return self.seen(event, nic, now_ns)

    def waiting(self) -> bool:
        """There are flows to look at `again`."""
        return bool(self._looks)

    def again(self, uses: Iterable[SocketUse], table: FlowTable, now_ns: int) -> list[SocketSeen]:
        """The flows that fall under another rule by now, to be `seen` once more. `uses` is every
        socket that was reported: the others are forgotten."""
        before, self._looks, found = self._looks, {}, []
        for use in uses:
            look = before.get((use.cookie, use.key))
            if look is None:
                continue
            self._looks[use.cookie, use.key] = look
            born_ns, rate = look.event.born_ns, look.measure(use.bytes, now_ns)
            age_ns = now_ns - born_ns if born_ns is not None else 0
            if any(meets(rule, use.bytes, age_ns, rate) for rule in look.others):
                flow = table.get(use.key)
                rx_cpu = look.event.rx_cpu if use.rx_cpu is None else use.rx_cpu
                app_cpu = look.event.app_cpu if flow is None else flow.app_cpu
                found.append(
                    look.event._replace(
                        at_ns=now_ns, bytes=use.bytes, app_cpu=app_cpu, rx_cpu=rx_cpu
                    )
                )
        return found

    def connecting(self, event: Connecting, nic: str, now_ns: int) -> FlowRule | None:
        """The rule for a connection at its birth."""
        process = self._process(event.thread, now_ns)
        comm = event.thread.comm
        return self._matcher.first_match(Facts(event.key, comm, process, nic, Direction.CONNECTED))

    def of_port(
        self, key: FlowKey, thread: Thread | None, nic: str, now_ns: int
    ) -> FlowRule | None:
        """The one rule for all connections of a port that this thread serves, if there is one."""
        comm = thread.comm if thread else None
        process = self._process(thread, now_ns)
        return self._matcher.of_port(Facts(key, comm, process, nic, Direction.ACCEPTED))

    def of_many(self, key: FlowKey, nic: str) -> FlowRule | None:
        """The one rule for all flows that a wide key stands for, whosever they are."""
        return of_many(self._rules, key, nic)

    def left_by(self, key: FlowKey) -> str | None:
        """The rule that leaves a flow alone whatever it carries. One that asks for more than its
        key is not named: whose flow it is, is not known here."""
        much = Facts(key, bytes=sys.maxsize, age_ns=sys.maxsize, rate_bit_s=sys.maxsize)
        rule = self._matcher.first_match(much)
        if rule is None or rule.placement is not Placement.LEAVE or not of_key(rule):
            return None
        return f"`{rule.name}` ({rule.source})"

    def _process(self, thread: Thread | None, now_ns: int) -> Process:
        if thread is None or self._processes is None:
            return Process()
        return self._processes.of(thread.pid, now_ns)

    def _direction(self, event: SocketSeen, nic: NicView, now_ns: int) -> Direction | None:
        """Who listens there accepted it; if nobody does, he may have done so before."""
        key = event.key
        if self._ports is None or key.protocol != Protocol.TCP:
            return None
        listened = self._ports.serves(nic.netns, key, now_ns, event.born_ns)
        return Direction.ACCEPTED if listened else None
