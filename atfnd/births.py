# SPDX-License-Identifier: GPL-2.0-or-later
"""Connects and listeners on the loop: flows that keep their order are placed before their data.

Only for rules of the policy that keep order and match from the first byte on; without any, nothing
is attached.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from atfnd.decide import birth, ports, retire
from atfnd.decide.birth import Birth
from atfnd.decide.connects import Connects
from atfnd.decide.listeners import Listeners
from atfnd.model import (
    Accepted,
    Connected,
    Connecting,
    FlowKey,
    FlowRule,
    Listening,
    Mode,
    Placement,
    Policy,
    SocketGone,
    SocketUse,
)
from atfnd.move.event import Established, Event, EvidenceLost, Gone, Wanted
from atfnd.observe.births import Births
from atfnd.observe.nics import NicWatch
from atfnd.policy.match import Matcher
from atfnd.programmed import Programmed

__all__ = ["Born", "keeps_order_from_birth"]


def keeps_order_from_birth(rule: FlowRule) -> bool:
    """It steers flows in order, and from their first byte on."""
    early = not rule.min_bytes and not rule.min_age_ns
    return early and rule.placement is not Placement.LEAVE and rule.order is not Mode.IMMEDIATE


class Born(Programmed):
    """The part of the daemon that places flows at their birth."""

    _matcher: Matcher
    _births: Births | None
    _connects: Connects
    _listeners: dict[str, Listeners]  # by NIC
    _unborn: set[FlowKey]  # connects whose rule is being written
    _asked: set[FlowKey]  # ports whose rule is being written
    _births_lost: int

    def _open_births(self, policy: Policy) -> None:
        self._births, self._connects, self._listeners = None, Connects(), {}
        self._unborn, self._asked, self._births_lost = set(), set(), 0
        if any(keeps_order_from_birth(rule) for rule in policy.flows):
            try:
                self._births = Births()
                self._births.start()
            except OSError as refusal:
                self.log.add("births", "flows are not placed at their birth", str(refusal))
                self._births = None

    def _serve_births(self) -> None:
        """The NICs have changed."""
        here = self._listeners.items()
        self._listeners = {name: known for name, known in here if name in self.watches}
        if self._births is not None:
            self._births.serve(sorted({w.nic.netns for w in self.watches.values()}, key=str))
            self._find_listeners()

    def _find_listeners(self) -> None:
        """These are all there are."""
        if self._births is None:
            return
        found, now_ns = self._births.listeners(), time.monotonic_ns()
        for name, watch in self.watches.items():
            known = self._listeners.setdefault(name, Listeners())
            known.found([each for each in found if self._only(watch, each)], self.memory, now_ns)

    def _newborn(self) -> None:
        """One wake-up: what connects, listens, was answered or accepted."""
        if self._births is None:
            return
        events = self._births.drain()
        for fresh in self._connects.heard(events, self.memory):
            self._connecting(fresh)
        for event in events:
            if isinstance(event, Connected):
                self._tell(event.key, Established(event.key, event.at_ns))
            elif isinstance(event, Accepted):
                self._accepted(event)
            elif isinstance(event, Listening):
                self._opened(event)
            elif isinstance(event, SocketGone):
                self._closed(event)
        if (lost := self._births.lost()) > self._births_lost:
            self._births_lost = lost
            self._find_listeners()
            for moving in self._moving.values():
                moving.tell(EvidenceLost())
        if any(isinstance(event, Listening) for event in events):
            self._look_at_ports()

    def _connecting(self, event: Connecting) -> None:
        rule = self._matcher.first_match(event.key, event.thread.comm, 0, 0)
        if rule is None or not keeps_order_from_birth(rule):
            return
        for watch in self.watches.values():
            if not self._is_in(watch, event.netns) or not watch.owns(event.key.local):
                continue
            now_ns = time.monotonic_ns()
            if birth.again(event, watch.view, rule, self.memory, now_ns):
                self._tell(event.key, Gone(event.key))  # the socket that had it
                self._agenda.schedule()
                return
            queue = watch.predicted(event.key)
            rss = queue.index if queue else None
            distances, memory = self._connects.distances, self.memory
            self._know_cpuset(event.thread, rule)
            born = birth.connecting(event, watch.view, rule, rss, distances, memory, now_ns)
            if born is not None:
                self._unborn.add(event.key)
                self._bear(watch, [born])

    def _accepted(self, event: Accepted) -> None:
        for watch in self.watches.values():
            for port in ports.exposed(event, watch.view, self.memory):
                self._tell(port, Established(port, None))

    def _opened(self, event: Listening) -> None:
        for name, watch in self.watches.items():
            if self._only(watch, event):
                known = self._listeners.setdefault(name, Listeners())
                self._bear(watch, ports.wanted_again(event, known, self.memory))
                known.opened(event, self.memory)

    def _closed(self, event: SocketGone) -> None:
        now_ns = time.monotonic_ns()
        if not any(each.closed(event.cookie, now_ns) for each in self._listeners.values()):
            self._carry_out(retire.gone(event.cookie, self.memory))

    def _look_at_ports(self) -> None:
        """Which ports need a rule, or another one. Accepted connections are told from before the
        sockets are read."""
        if self._births is None or not any(
            known.sockets or known.closed_ns for known in self._listeners.values()
        ):
            return
        keys = {key for known in self._listeners.values() for key in known.sockets}
        self._births.accepts({key.local_port for key in keys | self._asked})
        uses = self.observer.inventory()
        for name, known in self._listeners.items():
            watch = self.watches.get(name)
            if watch is None or not watch.view.armed:
                continue
            now_ns = time.monotonic_ns()
            born = ports.look(watch.view, self._of_port, known, uses, self.memory, now_ns)
            self._asked |= {key for each in born if (key := each.action.key) is not None}
            self._bear(watch, born)
        self._births.accepts({key.local_port for key in self._asked})

    def _of_port(self, key: FlowKey, comm: str | None) -> FlowRule | None:
        rule = self._matcher.of_port(key, comm)
        return rule if rule is not None and keeps_order_from_birth(rule) else None

    def _was_born(self, key: FlowKey, *, failed: bool) -> bool:
        """A birth has ended; False: it was none."""
        if key in self._unborn:
            self._unborn.discard(key)
            if failed:
                birth.unborn(key, self.memory)
            return failed
        if key in self._asked:
            self._asked.discard(key)
            if self._births is not None:
                self._births.accepts({each.local_port for each in self._asked})
            return failed
        return key.listens

    def _born_uses(self) -> Sequence[SocketUse]:
        """What an audit of sockets does not know of."""
        now_ns = time.monotonic_ns()
        heirs, self._heirs = self._heirs, {}
        self.observer.adopt(heirs | self._connects.adopt(self.memory))
        listening = [
            use for each in self._listeners.values() for use in each.uses(self.memory, now_ns)
        ]
        return [*self._connects.uses(self.memory, now_ns), *listening]

    def _tell(self, key: FlowKey, event: Event) -> None:
        """Tell the moves of the NIC that a flow is of."""
        flow = self.memory.table.get(key)
        moving = None if flow is None else self._moving.get(flow.nic)
        if moving is not None:
            moving.tell(event)

    def _bear(self, watch: NicWatch, births: Sequence[Birth]) -> None:
        if births:
            self._begin(watch, [Wanted(*each) for each in births])

    def _only(self, watch: NicWatch, event: Listening) -> bool:
        """It receives through this NIC, and through no other."""
        here = [
            each
            for each in self.watches.values()
            if self._is_in(each, event.netns) and each.owns(event.key.local)
        ]
        return here == [watch]

    def _is_in(self, watch: NicWatch, netns: int) -> bool:
        return self._births is not None and self._births.is_of(netns, watch.nic.netns)
