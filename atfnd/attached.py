# SPDX-License-Identifier: GPL-2.0-or-later
"""The NICs of the loop over time: they come late, flap, change queues, reset, are renamed and go.

A NIC that is not here any more leaves the loop and the table; the others are served on. What a NIC
lost by itself is put back; what somebody else changed is let go of.
"""

from __future__ import annotations

import asyncio
import errno
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from atfnd.arming import Arming
from atfnd.decide import audit, budget, queues, retire, steer
from atfnd.decide.lost import lost
from atfnd.errors import OperatorError
from atfnd.model import Match, Rule, SocketUse
from atfnd.observe.interfaces import Interfaces
from atfnd.observe.nics import NicWatch
from atfnd.program.orders import Orders
from atfnd.program.record_file import Unrecorded
from atfnd.spanning import Spanning

__all__ = ["Attached"]


class Attached(Spanning):
    """The part of the daemon that follows its NICs."""

    interfaces: Interfaces
    arming: Arming
    orders: Orders
    _unwatched: int = 0  # queues that the observer has no room for
    _homes: dict[tuple[str, int], int]  # NIC, queue: the CPU it had before that went offline

    @abstractmethod
    def _adopt(self, inventory: Sequence[SocketUse], watches: Sequence[NicWatch]) -> None: ...

    def _attach(self, watch: NicWatch) -> None:
        """Serve a NIC from now on. What the operator last said of it holds."""
        loop, name = asyncio.get_running_loop(), watch.view.name
        watch.reads_by(partial(self.observer.reads, name))
        if (armed := self.orders.armed(name)) is not None and armed != watch.view.armed:
            watch.arm(armed)
            what = "armed" if armed else "disarmed"
            self.log.add("arm" if armed else "disarm", what, "asked for before", nic=name)
        if self.orders.paused(name):
            watch.pause()
            self.log.add("pause", "paused", "asked for before", nic=name)
        self.watches[name] = watch
        for listener in watch.listeners:
            loop.add_reader(listener.fileno(), self._changed, watch)

    def _detach(self, watch: NicWatch) -> None:
        """Let go of its descriptors; changes nothing in the NIC."""
        loop = asyncio.get_running_loop()
        for listener in watch.listeners:
            loop.remove_reader(listener.fileno())
        watch.close()

    def _watch(self) -> None:
        """Tell the observer whose NAPIs are ours."""
        watches = self.watches.values()
        napis = {each: watch.view.name for watch in watches for each in watch.napi_ids.now}
        napis |= {each: watch.view.name for watch in watches for each in watch.napi_ids}
        unwatched = self.observer.watch(sorted({w.nic.netns for w in watches}, key=str), napis)
        if unwatched > self._unwatched:
            why = "there are more queues than the observer's map holds"
            self.log.add("napis", f"{unwatched} queues, past or present, are not seen", why)
        self._unwatched = unwatched
        for watch in watches:
            watch.look_at_reads()
        self._serve_births()

    def _arrivals(self) -> None:
        """A link is new, or has a new name: take what the operator wants and is not here yet."""
        if self.interfaces.links.drain() == set():
            return
        for watch in list(self.watches.values()):
            with self._while_there(watch):
                watch.still_there()  # a new name of one we have is no arrival
        self._take_new()

    def _take_new(self) -> None:
        """What the operator wants, is here and not watched."""
        for watch in self.interfaces.come(self.watches, self._not_watched):
            self._take(watch, "it has come")

    def _not_watched(self, name: str, why: str) -> None:
        self.log.add("refused", "not watched", why, nic=name)

    def _take(self, watch: NicWatch, why: str) -> None:
        """Serve a NIC that comes while we run."""
        name = watch.view.name
        self._attach(watch)
        self._watch()
        self.log.add("attach", f"watched, {len(watch.view.queues)} queues", why, nic=name)
        with self._while_there(watch):
            self.arming.meet(watch)
            self._adopt(self.observer.inventory(), [watch])

    def _changed(self, watch: NicWatch) -> None:
        """rtnetlink or ethtool has news of its namespace."""
        with self._while_there(watch):
            watch.still_there()
            if watch.changed():
                self._look_again(watch)

    @contextmanager
    def _while_there(self, watch: NicWatch) -> Iterator[None]:
        """A NIC that is renamed or gone (ENODEV) ends the block, and the daemon serves on."""
        try:
            yield
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
            self._gone(watch)

    def _each(self, look: Callable[[NicWatch], None]) -> None:
        """Look at every NIC that is still there."""
        for watch in list(self.watches.values()):
            with self._while_there(watch):
                watch.still_there()
                look(watch)

    def _gone(self, watch: NicWatch) -> None:
        name, new = watch.view.name, watch.name_now()
        del self.watches[name]
        self._still(watch)
        if new is None:
            self.arming.gone(watch)
        self._detach(watch)
        flows = retire.nic_gone(name, self.memory)
        homes = {at: cpu for at, cpu in self._homes.items() if at[0] == name}
        for at in homes:
            del self._homes[at]
        self._strays.forget(name)
        if new is None:
            for match in self.journal.left.get(name, {}):
                self.journal.release(name, match)
            self.log.add("gone", "not watched any more", "the interface is gone", nic=name)
        else:
            self.journal.rename(name, new)
            self.originals.rename(name, new)
            self._homes |= {(new, queue): cpu for (_, queue), cpu in homes.items()}
            self.log.add("gone", f"is {new} now", "the interface was renamed", nic=name)
        self._watch()
        self.observer.forget({flow.cookie for flow in flows})
        if new is not None:
            self._holds_for(new, watch)
            try:
                self._take(self.interfaces.open(new), f"it was {name}")
            except OperatorError as refusal:
                self._not_watched(new, refusal.message)

    def _holds_for(self, new: str, watch: NicWatch) -> None:
        """What holds for a NIC holds under its new name."""
        with suppress(Unrecorded):
            if self.orders.armed(new) is None:
                self.orders.say("arm" if watch.view.armed else "disarm", new)
            if watch.view.paused:
                self.orders.say("pause", new)

    def _look_again(self, watch: NicWatch) -> None:
        """Re-resolve a NIC's queues; put back the CPUs and the rules a flap or reset lost."""
        name = watch.view.name
        changed = watch.refresh()
        if changed:
            state = "up" if watch.view.up else "down"
            self.log.add("link", f"is {state}, {len(watch.view.queues)} queues", nic=name)
            self._watch()
            self._know(watch)
        self.arming.confine(watch)
        if changed:
            self._check_rules(watch)
            self._carry_out(steer.take_up(watch.view, self.memory, time.monotonic_ns()))

    def _cpus_changed(self) -> None:
        """A CPU went offline: its queues go to the nearest one; or came back, and they with it."""
        if not self.cpus.changed():
            return
        cpus = self.topology()
        online = {cpu.index for cpu in cpus.cpus if cpu.online}
        for watch in list(self.watches.values()):
            name, view = watch.view.name, watch.view
            if not view.armed:
                continue
            left = queues.homeless(view.queues, cpus, self.memory.settling.dedicated)
            for queue, _ in left:
                if queue.cpu is not None:
                    self._homes.setdefault((name, queue.index), queue.cpu)
            back = [
                (queue, self._homes.pop((name, queue.index)))
                for queue in view.queues
                if self._homes.get((name, queue.index)) in online
            ]
            with self._while_there(watch):
                self.arming.put_queues(watch, left, queues.OFFLINE)
                self.arming.put_queues(watch, back, queues.ONLINE)
                if left or back:
                    self._carry_out(steer.take_up(watch.view, self.memory, time.monotonic_ns()))

    def _reconcile(self) -> None:
        """Entries against the NICs' rules and queues."""
        self._cpus_changed()
        self._each(self._look_again)
        self._each(self._check_rules)
        self._take_new()  # no event tells of a lab: its links are in namespaces of their own

    def _check_rules(self, watch: NicWatch) -> None:
        """A rule that is not there was lost by the NIC, which gets it again, or taken out by
        somebody, who has his way. A link that is down may have lost them all: it is asked when it
        is up."""
        name = watch.view.name
        if not watch.view.up or not any(flow.nic == name for flow in self.memory.table):
            return
        now_ns, rules = time.monotonic_ns(), watch.read_rules()
        gone = lost(watch.view, rules, self.memory, disturbed=watch.disturbed())
        for flow in gone:
            self.journal.release(name, Match.of(flow.key))
            self.log.add("lost-rule", "rule lost", flow.why, nic=name, flow=flow.key)
        for flow in audit.check_rules(watch.view, rules, self.memory, now_ns):
            self.journal.release(name, Match.of(flow.key))
            self.record_loss(flow)
        self._count_others(watch, rules)
        # Without a plan, for the timer: what the NIC dropped is tried again later.
        self._carry_out(steer.take_up(watch.view, self.memory, now_ns) if gone else ())

    def _read_rules(self, watch: NicWatch) -> list[Rule]:
        """Every rule of a NIC that takes any or held ours; others' are counted."""
        if not watch.view.caps.rules and not self.journal.names(watch.view.name):
            return []
        rules = watch.read_rules()
        self._count_others(watch, rules)
        return rules

    def _count_others(self, watch: NicWatch, rules: Sequence[Rule]) -> None:
        """Rules that are neither in the table nor left by an earlier run are somebody else's."""
        name = watch.view.name
        ours = {flow.location for flow in self.memory.table.steered(name)}
        ours |= {rule.location for rule in self.journal.ours(name, rules)}
        theirs = (rule for rule in rules if rule.location not in ours)
        watch.others(tuple(rule._replace(hits=None) for rule in theirs))

    def _spend(self, now_ns: int) -> None:
        """Give the filters there are to the flows they are worth most to."""
        for name, watch in self.watches.items():
            rss = partial(self.rss_queue, name)
            budget.weigh(watch.view, self.cpus.known(), rss, self.memory, now_ns)
        views = {name: watch.view for name, watch in self.watches.items()}
        self._carry_out(steer.retry(views, self.memory, now_ns))
        for view in views.values():
            self._carry_out(budget.swaps(view, self.memory, now_ns))
