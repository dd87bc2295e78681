# SPDX-License-Identifier: GPL-2.0-or-later
"""Has the engine place what is forwarded, as long as the policy has a rule for that.

The count costs each packet that the machine sends. So it is wanted only while a forwarding rule
places channels of an armed NIC.
"""

from __future__ import annotations

from collections.abc import Callable

from atfnd.daemon.in_force import InForce
from atfnd.daemon.pairing import Pairing
from atfnd.daemon.session import Sessions
from atfnd.engine.event import PairsCounted
from atfnd.model import PairPlacement, Pairs
from atfnd.policy.match.match import forwarding_rules
from atfnd.serve.log.event_log import EventLog

__all__ = ["Forwarded"]


class Forwarded:
    """`take` gives what was counted to the engine."""

    def __init__(
        self,
        in_force: InForce,
        sessions: Sessions,
        pairing: Pairing,
        log: EventLog,
        take: Callable[[PairsCounted], object],
    ) -> None:
        self._in_force, self._sessions, self._pairing = in_force, sessions, pairing
        self._log, self._take = log, take
        self._last: Pairs | None = None
        self._refused: str | None = None

    def look(self) -> None:
        """Give the engine the last count, if it has not had that."""
        if not self._wanted():
            self._pairing.release(self)
            self._last = self._refused = None
            return
        self._pairing.want(self)
        found = self._pairing.counted()
        if found is None or found is self._last:
            return
        self._last = found
        if found.why_not is None:
            self._take(PairsCounted(found))
        elif found.why_not != self._refused:
            what = "what is forwarded is not counted: nothing of it is placed"
            self._log.add("refused", what, found.why_not)
        self._refused = found.why_not

    def _wanted(self) -> bool:
        decided = forwarding_rules(self._in_force.policy.forwarding, self._sessions)
        armed = {name for name, session in self._sessions.items() if session.view.armed}
        return any(
            rule.placement is not PairPlacement.LEAVE and not armed.isdisjoint(pair)
            for pair, rule in decided.items()
        )
