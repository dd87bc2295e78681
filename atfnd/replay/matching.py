# SPDX-License-Identifier: GPL-2.0-or-later
"""Under which rule of the replayed policy a flow falls, by what was recorded of it. Pure."""

from __future__ import annotations

from collections import defaultdict

from atfnd.model import Connecting, Direction, Facts, FlowKey, FlowRule, Policy, Process, Thread
from atfnd.policy.many import of_many
from atfnd.policy.match import Matcher
from atfnd.replay.recording import Heard, Seen

__all__ = ["Matching"]

_SECOND_NS = 1_000_000_000


class Matching:
    """As the daemon's, with recorded processes. `matched` are the flows each rule ever had."""

    def __init__(self, policy: Policy) -> None:
        self.matched: dict[str, set[FlowKey]] = defaultdict(set)
        self._matcher, self._rules = Matcher(policy), policy.flows
        self._processes: dict[int, Process] = {}  # by pid
        self._rates: dict[tuple[int, FlowKey], int] = {}  # bit/s, the highest so far

    def hear(self, heard: Heard) -> None:
        """A birth may tell of a process."""
        thread = getattr(heard.event, "thread", None)
        if thread is not None:
            self._processes[thread.pid] = heard.process

    def seen(self, line: Seen) -> FlowRule | None:
        """The rule for a flow that is in use; None: it is to be left."""
        event = line.event
        if event.thread is not None:
            self._processes[event.thread.pid] = line.process
        rule = self._matcher.first_match(
            Facts(
                key=event.key,
                comm=event.thread.comm if event.thread else None,
                process=line.process,
                interface=line.nic,
                direction=event.direction,
                bytes=event.bytes,
                age_ns=line.at_ns - event.born_ns if event.born_ns is not None else 0,
                rate_bit_s=self._rates.get((event.cookie, event.key), 0),
            )
        )
        if rule is not None:
            self.matched[rule.name].add(event.key)
        return rule

    def measure(self, cookie: int, key: FlowKey, carried: int, took_ns: int) -> None:
        """A flow carried so many bytes in this time."""
        rate_bit_s = carried * 8 * _SECOND_NS // max(1, took_ns)
        self._rates[cookie, key] = max(self._rates.get((cookie, key), 0), rate_bit_s)

    def connecting(self, event: Connecting, nic: str) -> FlowRule | None:
        """The rule for a connection at its birth."""
        process = self._processes.get(event.thread.pid, Process())
        facts = Facts(event.key, event.thread.comm, process, nic, Direction.CONNECTED)
        return self._matcher.first_match(facts)

    def of_port(self, nic: str, key: FlowKey, thread: Thread | None) -> FlowRule | None:
        """The one rule for all connections of a port that this thread serves, if there is one."""
        comm = thread.comm if thread else None
        process = self._processes.get(thread.pid, Process()) if thread else Process()
        return self._matcher.of_port(Facts(key, comm, process, nic, Direction.ACCEPTED))

    def of_many(self, nic: str, key: FlowKey) -> FlowRule | None:
        """The one rule for all flows that a wide key stands for, whosever they are."""
        return of_many(self._rules, key, nic)
