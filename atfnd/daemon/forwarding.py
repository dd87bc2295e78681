# SPDX-License-Identifier: GPL-2.0-or-later
"""Has the engine place what is forwarded, as long as the policy has a rule for that.

The count costs each packet that the machine sends. So it is wanted only while a forwarding rule
places channels of an armed NIC. Once the engine has left everything as it is for `_STEADY` looks,
there is one in `RESTS_S`, until it wants something else.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from atfnd.daemon.in_force import InForce
from atfnd.daemon.pairing import RESTS_S, Pairing
from atfnd.daemon.session import Sessions
from atfnd.engine.engine import Engine
from atfnd.engine.event import PairsCounted
from atfnd.model import PairPlacement, Pairs, Policy
from atfnd.policy.match.match import forwarding_rules
from atfnd.serve.log.event_log import EventLog

__all__ = ["Forwarded"]

_STEADY = 5


class Forwarded:
    """`take` gives what was counted to the engine; `clock` counts seconds."""

    def __init__(
        self,
        engine: Engine,
        in_force: InForce,
        sessions: Sessions,
        pairing: Pairing,
        log: EventLog,
        take: Callable[[PairsCounted], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._in_force, self._sessions, self._pairing = in_force, sessions, pairing
        self._engine, self._log, self._take, self._clock = engine, log, take, clock
        self._policy: Policy | None = None
        self._steady, self._rests_until_s = 0, 0.0
        self._last: Pairs | None = None
        self._refused: str | None = None

    def look(self) -> None:
        """Give the engine the last count, if it has not had that."""
        if self._policy is not self._in_force.policy:
            self._policy, self._steady, self._rests_until_s = self._in_force.policy, 0, 0.0
        if not self._wanted():
            self._pairing.release(self)
            self._last = self._refused = None
            self._steady, self._rests_until_s = 0, 0.0
            return
        if self._clock() < self._rests_until_s:
            return
        self._pairing.want(self)
        found = self._pairing.counted()
        if found is None or found is self._last:
            return
        self._last = found
        if found.why_not is None:
            self._take(PairsCounted(found))
            self._steady = self._steady + 1 if self._engine.forwarding_settled() else 0
            if self._steady >= _STEADY:
                self._pairing.release(self)
                self._rests_until_s = self._clock() + RESTS_S
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
