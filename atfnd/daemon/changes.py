# SPDX-License-Identifier: GPL-2.0-or-later
"""What was changed: counted, and logged with its reason and the policy's line."""

from __future__ import annotations

from collections import Counter

from atfnd.daemon.change_text import tell, tell_end
from atfnd.daemon.in_force import InForce
from atfnd.daemon.session import Sessions
from atfnd.model import NicView, Outcome
from atfnd.move.command import Ended
from atfnd.serve.log.event_log import EventLog

__all__ = ["ChangeLog"]


class ChangeLog:
    """Since the start."""

    def __init__(self, log: EventLog, sessions: Sessions, in_force: InForce) -> None:
        self.log, self._sessions, self._in_force = log, sessions, in_force
        self.changes = Counter[tuple[str, str, int]]()  # NIC, kind, errno
        self.moves = Counter[tuple[str, str]]()  # by mechanism and verdict
        self.late_packets = 0  # that were overtaken in a move

    def record(self, outcome: Outcome) -> None:
        """Count the outcome of an action, and log it."""
        action = outcome.action
        self.changes[action.nic, action.kind.value, outcome.errno] += 1
        tell(self.log, outcome, self._nic(action.nic), self._in_force.policy)

    def ended(self, ended: Ended, *, news: bool) -> None:
        """Count how a move ended; log it, if it is worth a line."""
        self.moves[ended.mechanism.value, ended.verdict.value] += 1
        self.late_packets += ended.violations
        if news:
            nic = self._nic(ended.action.nic)
            tell_end(self.log, ended, nic, self._in_force.policy)

    def _nic(self, name: str) -> NicView | None:
        session = self._sessions.get(name)
        return None if session is None else session.view
