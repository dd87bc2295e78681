# SPDX-License-Identifier: GPL-2.0-or-later
"""Connects and listeners on the loop: flows that keep their order are placed before their data.

Only for rules of the policy that keep order and match from the first byte on; without any, nothing
is attached.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial

from atfnd.decide import birth, budget, ports
from atfnd.decide.birth import Birth
from atfnd.decide.listeners import Listeners
from atfnd.decide.newborn import Newborn, keeps_order_from_birth, ordered
from atfnd.matching import Matching
from atfnd.model import (
    Accepted,
    ActionKind,
    Connected,
    Connecting,
    FlowKey,
    FlowRule,
    Listening,
    Policy,
    SocketGone,
    SocketUse,
    Thread,
    ThreadReads,
)
from atfnd.move.event import Established, Event, EvidenceLost, Gone, Wanted
from atfnd.observe.births import Births
from atfnd.observe.nics import NicWatch, nic_of
from atfnd.programmed import Programmed
from atfnd.recording import Recorder
from atfnd.replay.recording import LookAt

__all__ = ["Born"]


class Born(Programmed):
    """The part of the daemon that places flows at their birth."""

    _matching: Matching
    recorder: Recorder
    _recordings: int  # that are being made
    _births: Births | None
    _newborn: Newborn
    _unborn: set[FlowKey]  # connects whose rule is being written
    _asked: set[FlowKey]  # ports whose rule is being written
    _unjudged: set[FlowKey]  # ports with a rule that another policy may not want
    _births_lost: int

    def _open_births(self, policy: Policy) -> None:
        self._births = None
        self._unborn, self._asked, self._births_lost = set(), set(), 0
        self._unjudged = set()
        self._start_births(policy)

    def _start_births(self, policy: Policy) -> None:
        """Attach, if this policy wants it, or somebody records."""
        if self._recordings or any(map(keeps_order_from_birth, policy.flows)):
            try:
                self._births = Births()
                self._births.start()
            except OSError as refusal:
                self.log.add("births", "flows are not placed at their birth", str(refusal))
                self._births = None

    def _births_as(self, policy: Policy) -> None:
        """Another policy is in force: attach if it wants that, and have ports looked at again. Or
        what happens is recorded, for whatever policy."""
        if self._births is None:
            self._start_births(policy)
            if self._births is not None:
                asyncio.get_running_loop().add_reader(self._births.fileno(), self._hear)
                self._serve_births()
            return
        self._unjudged = {flow.key for flow in self.memory.table if flow.key.listens}
        self._judge_ports()
        self._look_at_ports()

    def _judge_ports(self) -> None:
        """Whether another policy wants the rules of these ports; of those whose rule is just being
        written, later."""
        for key in list(self._unjudged):
            entry = self.memory.table.get(key)
            if any(moving.concerns(key) for moving in self._moving.values()):
                continue
            self._unjudged.discard(key)
            for nic, known in self._newborn.listeners.items() if entry is not None else ():
                listens = key in known.sockets or key in known.closed_ns
                if listens and entry and not self._still_wants(nic, key, entry.policy, known):
                    known.unwanted.add(key)
                else:
                    known.unwanted.discard(key)

    def _still_wants(self, nic: str, key: FlowKey, policy: str, known: Listeners) -> bool:
        """The policy has one rule for a port's connections. Of one whose thread is not known, the
        rule it was given its filter by (none, if that was adopted) still is one that does so."""
        now_ns, threads = time.monotonic_ns(), {each.thread for each in known.rivals(key)}
        if not threads or None in threads:
            rules = [rule for rule in self.policy.flows if policy in ("", rule.name)]
            return any(map(keeps_order_from_birth, rules))
        each_has = (ordered(self._of_port(nic, now_ns, key, each)) for each in threads if each)
        return all(rule is not None for rule in each_has)

    def _end_births(self) -> None:
        """Detach when another policy wants none and nothing is left of them."""
        self._judge_ports()
        wanted = self._recordings or any(map(keeps_order_from_birth, self.policy.flows))
        if self._births is None or wanted:
            return
        ports = any(flow.key.listens for flow in self.memory.table)
        if not (
            ports or self._unborn or self._asked or self._newborn.connects.waiting(self.memory)
        ):
            self._close_births()
            self._newborn.keep(())

    def _close_births(self) -> None:
        if self._births is not None:
            asyncio.get_running_loop().remove_reader(self._births.fileno())
            self._births.close()
            self._births = None

    def _serve_births(self) -> None:
        """The NICs have changed."""
        self._newborn.keep(self.watches)
        if self._births is not None:
            self._births.serve(sorted({w.nic.netns for w in self.watches.values()}, key=str))
            self._find_listeners()

    def _find_listeners(self) -> None:
        """These are all there are."""
        if self._births is None:
            return
        found, now_ns = self._births.listeners(), time.monotonic_ns()
        for name, watch in self.watches.items():
            here = [each for each in found if self._only(watch, each)]
            self._newborn.found(name, here, self.memory, now_ns)
        self.recorder.found()

    def _hear(self) -> None:
        """One wake-up: what connects, listens, was answered or accepted."""
        if self._births is None:
            return
        events = self._births.drain()
        self.recorder.heard(events, self._received_by)
        for fresh in self._newborn.connects.heard(events, self.memory):
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
        for watch in self._received_by(event):
            now_ns = time.monotonic_ns()
            rule = ordered(self._matching.connecting(event, watch.view.name, now_ns))
            if rule is None or watch.tunnel_of(event.key) is not None:
                continue
            if birth.again(event, watch.view, rule, self.memory, now_ns):
                self._tell(event.key, Gone(event.key))  # the socket that had it
                self._agenda.schedule()
                return
            self._know_cpuset(event.thread, rule)
            queue = watch.predicted(event.key)
            rss = queue.index if queue else None
            born = self._newborn.connecting(event, watch.view, rule, rss, self.memory, now_ns)
            if born is not None:
                self._unborn.add(event.key)
                self._bear(watch, [born])

    def _accepted(self, event: Accepted) -> None:
        for name, watch in self.watches.items():
            known = self._newborn.listeners.get(name)
            for port in ports.exposed(event, watch.view, known, self.memory):
                self._tell(port, Established(port, None))

    def _opened(self, event: Listening) -> None:
        for name, watch in self.watches.items():
            if self._only(watch, event):
                self._bear(watch, self._newborn.opened(event, name, self.memory))

    def _closed(self, event: SocketGone) -> None:
        self._carry_out(self._newborn.closed(event.cookie, self.memory, time.monotonic_ns()))

    def _look_at_ports(self) -> None:
        """Which ports need a rule, or another one. Accepted connections are told from before the
        sockets are read."""
        if self._births is None or not self._newborn.listening():
            return
        keys = {key for known in self._newborn.listeners.values() for key in known.sockets}
        self._births.accepts({key.local_port for key in keys | self._asked})
        uses = self.observer.inventory()
        self.recorder.looked(LookAt.PORTS, uses)
        for name, watch in self.watches.items():
            now_ns = time.monotonic_ns()
            rule_of = partial(self._of_port, name, now_ns)
            born = self._newborn.look_at_ports(watch.view, rule_of, uses, self.memory, now_ns)
            self._asked |= {key for each in born if (key := each.action.key) is not None}
            self._heirs |= self._keeping(born)
            self._bear(watch, born)
        self._births.accepts({key.local_port for key in self._asked})

    def _keeping(self, born: Sequence[Birth]) -> dict[int, int]:
        """The sockets of connections that keep the queue of their port's rule by one of their own:
        the observer is to know them, with the CPU they are used on."""
        keys = [each.action.key for each in born if each.action.kind is ActionKind.INSERT]
        flows = [self.memory.table.get(key) for key in keys if key is not None and not key.wide]
        return {flow.cookie: flow.app_cpu for flow in flows if flow is not None}

    def _read_first(self, event: ThreadReads) -> None:
        """Who serves a port is seen by who reads its connections."""
        watch = nic_of(event, self.watches.values())
        if watch is None:
            return
        self.recorder.reads(event, watch.view.name)
        if self._newborn.read(event, watch.view.name):
            self._look_at_ports()

    def port_remarks(self, key: FlowKey) -> tuple[str, ...]:
        """As `serve.Source.port_remarks`."""
        found = (self._newborn.why_no_port(nic, key) for nic in self.watches)
        return tuple(each for each in found if each is not None)

    def _of_port(
        self, nic: str, now_ns: int, key: FlowKey, thread: Thread | None
    ) -> FlowRule | None:
        return self._matching.of_port(key, thread, nic, now_ns)

    def _was_born(self, key: FlowKey, *, failed: bool) -> bool:
        """A birth has ended; False: it was none."""
        if key in self._unborn:
            self._unborn.discard(key)
            if failed:
                birth.unborn(key, self.memory)
            return failed
        if key in self._asked:
            self._asked.discard(key)
            if failed:
                self._not_had(key)
            if self._births is not None:
                self._births.accepts({each.local_port for each in self._asked})
            return failed
        if key.wide and not key.listens and failed:
            self._not_had(key)
        return failed if key.wide and not key.listens else key.listens

    def _not_born(self, key: FlowKey | None) -> None:
        """What was to be written at a birth was dropped, for its entry is gone."""
        if key is not None and self.memory.table.get(key) is None:
            self._unborn.discard(key)
            self._asked.discard(key)

    def _not_had(self, key: FlowKey) -> None:
        """A rule for many flows was put off or refused."""
        entry = self.memory.table.get(key)
        if entry is not None and entry.location is None:
            budget.put_off(key, entry.nic, self.memory, time.monotonic_ns())
            if not key.listens:
                self.memory.table.remove(key)

    def _born_uses(self) -> Sequence[SocketUse]:
        """What an audit of sockets does not know of."""
        heirs, self._heirs = self._heirs, {}
        self.observer.adopt(heirs | self._newborn.connects.adopt(self.memory))
        return self._newborn.uses(self.memory, time.monotonic_ns())

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
        return self._received_by(event) == [watch]

    def _received_by(self, event: Connecting | Listening) -> list[NicWatch]:
        """The NICs of its namespace that have its local address."""
        return [
            each
            for each in self.watches.values()
            if self._births is not None
            and self._births.is_of(event.netns, each.nic.netns)
            and each.owns(event.key.local)
        ]
