# SPDX-License-Identifier: GPL-2.0-or-later
"""Rules for many flows that are no listener's, on the loop: of remote prefixes and addresses."""

from __future__ import annotations

import time

from atfnd.births import Born
from atfnd.decide import aggregate, spans
from atfnd.model import FlowKey, FlowRule
from atfnd.replay.recording import LookAt

__all__ = ["Spanning"]


class Spanning(Born):
    """The part of the daemon that has flows share filters."""

    def _look_at_spans(self) -> None:
        """Which flows may share one, and which of those there are nobody needs."""
        watches = [w for w in self.watches.values() if spans.wanted(w.view, self.memory)]
        uses = self.observer.inventory() if watches or self.recorder.active() else ()
        self.recorder.looked(LookAt.SPANS, uses)
        for watch in watches:
            view, now_ns = watch.view, time.monotonic_ns()

            def rule_of(key: FlowKey, nic: str = view.name) -> FlowRule | None:
                return self._matching.of_many(key, nic)

            self._bear(watch, self._newborn.look_at_spans(view, rule_of, uses, self.memory, now_ns))
        now_ns = time.monotonic_ns()
        for watch in self.watches.values():
            aggregate.stranded(watch.view, self.memory, now_ns)
        self._agenda.schedule()
