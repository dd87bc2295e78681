# SPDX-License-Identifier: GPL-2.0-or-later
"""Under which rule of the replayed policy a flow falls, by what was recorded of it. Pure."""

from __future__ import annotations

from collections import defaultdict

from atfnd.model import Connecting, FlowKey, FlowRule, NicView, Policy, Process, SocketUse, Thread
from atfnd.policy.match.matching import Matching, Sources
from atfnd.replay.recording import RecordedBirth, RecordedSocket

__all__ = ["RecordedMatching"]


class RecordedMatching:
    """As the daemon's, with recorded processes. `matched` are the flows each rule ever had."""

    def __init__(self, policy: Policy) -> None:
        self.matched: dict[str, set[FlowKey]] = defaultdict(set)
        self._processes: dict[int, Process] = {}  # by pid
        process = Sources(lambda pid, now_ns: self._processes.get(pid, Process()))
        self._matching = Matching(policy, process)

    def hear(self, heard: RecordedBirth) -> None:
        """A birth may say more about a process."""
        self._know(getattr(heard.event, "thread", None), heard.process)

    def seen(self, line: RecordedSocket, nic: NicView) -> FlowRule | None:
        """The rule for a flow that is in use; None: leave the flow alone."""
        self._know(line.event.thread, line.process)
        rule = self._matching.seen(line.event, nic, line.at_ns)
        if rule is not None:
            self.matched[rule.name].add(line.event.key)
        return rule

    def measure(self, use: SocketUse, now_ns: int) -> None:
        """Note what a socket has carried."""
        self._matching.measure(use, now_ns)

    def connecting(self, event: Connecting, nic: str) -> FlowRule | None:
        """The rule for a connection at its birth."""
        return self._matching.connecting(event, nic, event.at_ns)

    def of_port(self, nic: str, key: FlowKey, thread: Thread | None) -> FlowRule | None:
        """The one rule for all connections of a port that this thread serves, if there is one."""
        return self._matching.of_port(key, thread, nic, 0)

    def _know(self, thread: Thread | None, process: Process) -> None:
        if thread is not None:
            self._processes[thread.pid] = process
