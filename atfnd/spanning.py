# SPDX-License-Identifier: GPL-2.0-or-later
"""Rules for many flows that are no listener's, on the loop: of remote prefixes and addresses."""

from __future__ import annotations

import time
from functools import partial

from atfnd.births import Born, keeps_order_from_birth
from atfnd.decide import aggregate, spans
from atfnd.decide.wide import covers
from atfnd.model import FlowKey, FlowRule, Protocol

__all__ = ["Spanning"]


class Spanning(Born):
    """The part of the daemon that has flows share filters."""

    def _look_at_spans(self) -> None:
        """Which flows may share one, and which of those there are nobody needs."""
        watches = [w for w in self.watches.values() if spans.wanted(w.view, self.memory)]
        uses = self.observer.inventory() if watches else ()
        for watch in watches:
            name, now_ns = watch.view.name, time.monotonic_ns()
            rule_of, listened = partial(self._of_many, name), partial(self._listened, name)
            born = spans.look(watch.view, rule_of, listened, uses, self.memory, now_ns)
            self._bear(watch, born)
        now_ns = time.monotonic_ns()
        for watch in self.watches.values():
            aggregate.stranded(watch.view, self.memory, now_ns)
        self._agenda.schedule()

    def _of_many(self, nic: str, key: FlowKey) -> FlowRule | None:
        rule = self._matching.of_many(key, nic)
        return rule if rule is not None and keeps_order_from_birth(rule) else None

    def _listened(self, nic: str, key: FlowKey) -> bool:
        """Its port has a rule, or may get one."""
        known = self._listeners.get(nic)
        if known is None or key.protocol != Protocol.TCP:
            return False
        spending = self.memory.spending_of(nic)  # those wait for a slot
        hopeless = known.why_not.keys() - spending.covers - spending.promised
        return any(covers(port, key) for port in known.sockets if port not in hopeless)
