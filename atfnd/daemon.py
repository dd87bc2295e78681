# SPDX-License-Identifier: GPL-2.0-or-later
"""The loop: observe, decide, move, program, publish. The only file that knows all rooms.

One asyncio loop, one thread. The observer's descriptor wakes it; two chores look for what no event
tells (idle flows, rules somebody changed), each bounded to a small share of one core.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from atfnd.agenda import Agenda
from atfnd.arming import Arming
from atfnd.chores import Pace, Rounds, Shortage, bugs
from atfnd.decide import audit, retire, steer
from atfnd.decide.memory import Memory, Settling
from atfnd.decide.newborn import Newborn
from atfnd.decide.phantom import phantoms
from atfnd.decide.strays import Strays
from atfnd.decide.table import FlowTable
from atfnd.decide.turns import Turns, decision_every_ns
from atfnd.keeping_off import KeepingOff
from atfnd.loads import Loads
from atfnd.matching import Matching
from atfnd.model import (
    FlowKey,
    Match,
    Policy,
    SocketGone,
    SocketSeen,
    SocketUse,
    ThreadReads,
)
from atfnd.observe import Observation, Observer
from atfnd.observe.interfaces import Interfaces
from atfnd.observe.nics import NicWatch, nic_of
from atfnd.observe.threads import ended_threads, sees_every_thread
from atfnd.operated import Operated
from atfnd.program.journal import Journal
from atfnd.program.orders import Orders
from atfnd.program.originals import Originals
from atfnd.recording import Recorder
from atfnd.reloading import Given
from atfnd.serve.loopback import Page
from atfnd.trying import Trying

__all__ = ["Daemon"]

_TURN_S = 0.001  # between two turns: whatever else waits is served
_BATCHES = 16  # of observations a wake-up


class Daemon(Operated):
    """Steers the flows of some NICs, and shows them."""

    _turn: asyncio.TimerHandle | None  # the next one

    def __init__(
        self,
        interfaces: Interfaces,
        observer: Observer,
        observer_why: str,
        policy: Policy,
        journal: Journal,
        originals: Originals,
        orders: Orders,
        given: Given,
    ) -> None:
        super().__init__(
            watches={},
            observer=observer,
            observer_why=observer_why,
            policy=policy,
            memory=Memory(FlowTable(policy.table_max), Settling.of(policy)),
        )
        self._matching, self._given = Matching(policy), given
        self._reloads, self._recordings, self.hangup = asyncio.Lock(), 0, asyncio.Event()
        self.interfaces, self.journal = interfaces, journal
        self._lost, self.pace = 0, Pace()
        what = "the kernel has no room: some of it is done later"
        self._shortage = Shortage(partial(self.log.add, "shortage", what))
        self._sees_threads = sees_every_thread()
        self._turns, self._turn = Turns(), None
        self.originals, self.orders = originals, orders
        self.keeping_off = KeepingOff(originals, self.record, self.log)
        self._homes, self._strays, self._newborn = {}, Strays(), Newborn()
        self.recorder = Recorder(self, self._newborn)
        self._moving, self._living, self._last_end, self._heirs = {}, {}, {}, {}
        self._open_births(policy)
        self.arming = Arming(self, originals, self._carry_out, self._write)
        self._trying = Trying(self, self._carry_out)
        self.page = Page(self, self.log)
        self.page.want(policy.web_port)
        self._agenda = Agenda(self.memory, self.arming.waiting, self._due)

    async def run(self, nics: Sequence[NicWatch], stop: asyncio.Event) -> None:
        """Adopt, then steer until `stop` is set. Rules stay in the NIC, and a restart adopts them,
        unless the policy says `on_stop: restore`."""
        loop = asyncio.get_running_loop()
        for watch in nics:
            self._attach(watch)
        self._watch()
        self._each(self.arming.meet)
        self._bootstrap()
        loop.add_reader(self.observer.fileno(), self._drain)
        if self._births is not None:
            loop.add_reader(self._births.fileno(), self._hear)
        loop.add_reader(self.interfaces.links.fileno(), self._arrivals)
        loop.add_reader(self.cpus.fileno(), self._cpus_changed)
        rounds = Rounds(self.tell_alive, self.notify.watchdog_s, self._shortage, self.pace)
        looks = [self._audit, self._reconcile, self._look_at_ports, self._look_at_spans]
        looks += [self._recover, self._leave, Loads(self.memory).look, self._look_at_reads]
        chores = [self._hangups(), self.punctuality.watch(), self.arming.balancing.keep()]
        chores.append(self.page.keep())
        chores += map(rounds.regularly, looks)
        chores.append(rounds.regularly(self._trying.look, self._trying.pressing))
        chores.append(rounds.regularly(self._keep_off, self.keeping_off.pressing))
        for look in (self.arming.check, self.arming.inspect, self._know):
            chores.append(rounds.regularly(partial(self._each, look)))
        if self.observer.poll_interval_s() is not None:
            chores.append(self._poll(rounds.part()))
        self.tell_ready()
        tasks = [
            asyncio.ensure_future(each)
            for each in (bugs(loop, self._shortage), stop.wait(), *chores)
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a bug ends the daemon loudly; the rules stay, traffic flows on
        finally:
            restoring = stop.is_set() and self.policy.on_stop == "restore"
            self.notify.stopping(restoring=restoring)
            for task in tasks:
                task.cancel()
            if self._turn is not None:
                self._turn.cancel()
            loop.remove_reader(self.observer.fileno())
            self._close_births()
            loop.remove_reader(self.interfaces.links.fileno())
            loop.remove_reader(self.cpus.fileno())
            self.cpus.close()
            if restoring:
                self.restored = [*self._restore_all(), *self.arming.balancing.lift_all()]
            for watch in self.watches.values():
                self._still(watch)
                self._detach(watch)

    async def _poll(self, ran: Callable[[], None]) -> None:
        while (every_s := self.observer.poll_interval_s()) is not None:
            await asyncio.sleep(every_s)
            try:
                self._drain()
            except OSError as error:
                if not self._shortage.take(error):
                    raise
            ran()

    def _recover(self) -> None:
        """What was observed while the kernel had no room may not have been taken into account."""
        if self._shortage.over():
            self._resync()

    # ---- observe

    def _drain(self) -> None:
        """One wake-up: of each socket what was observed last, decided and carried out in order."""
        waiting: dict[tuple[int, FlowKey | None], SocketSeen | SocketGone] = {}
        for event in self._observed():
            if isinstance(event, SocketSeen | SocketGone):
                of = event.cookie, event.key if isinstance(event, SocketSeen) else None
                waiting.pop(of, None)
                waiting[of] = event
            elif isinstance(event, ThreadReads):
                self._read_first(event)
        for latest in waiting.values():
            if isinstance(latest, SocketSeen):
                self._turns.add(latest)
            else:
                self._turns.gone(latest.cookie)
                self.recorder.gone(latest)
                self._carry_out(retire.gone(latest.cookie, self.memory))
        self._take_turns()
        lost = self.observer.lost()
        if lost > self._lost:
            self.log.add("lost", f"{lost - self._lost} events lost", "re-reading every socket")
            self._lost = lost
            self._resync()

    def _take_turns(self) -> None:
        """Decide on what waits, as far as it is its users' turn."""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        every_ns = decision_every_ns(self.policy)
        for event in self._turns.take(every_ns, time.monotonic_ns()):
            self._seen(event)
        if (due_ns := self._turns.due_ns(every_ns)) is not None:
            wait_s = max(_TURN_S, (due_ns - time.monotonic_ns()) / 1e9)
            self._turn = asyncio.get_running_loop().call_later(wait_s, self._take_turns)

    def _observed(self) -> Iterator[Observation]:
        """What waits to be read; of a long burst the first part."""
        polls = self.observer.poll_interval_s() is not None
        for _ in range(1 if polls else _BATCHES):
            if not (batch := self.observer.drain()):
                break
            yield from batch

    def _seen(self, event: SocketSeen) -> None:
        watch = nic_of(event, self.watches.values())
        if watch is None:
            return
        event = event._replace(tunnel=watch.tunnel_of(event.key))
        self.recorder.seen(watch, event)
        if self._is_only_recorded(event):
            return
        rss = None  # where an observer that sees no queue may expect it
        if event.napi_id is None and event.key.remote_port:
            rss = watch.predicted(event.key)
        now_ns = time.monotonic_ns()
        rule = self._matching.seen(event, watch.view, now_ns)
        if groups := self._matching.groups(event.thread, now_ns):
            self.observer.learn(*groups)
        rss_cpu = rss.cpu if rss else None
        self._decide(event, watch.view, rule, now_ns, rss_cpu)

    # ---- decide again, without an event

    def _audit(self) -> None:
        """Entries against sockets: gone, used, idle."""
        table = self.memory.table
        idle = not (len(table) or self.memory.overflowed or self._matching.waiting())
        if idle and not self.recorder.active():
            self._share_queues()
            return
        born, told = self._born_uses(), self.observer.audit()
        self.recorder.audited(told)
        if idle:
            self._share_queues()
            return
        uses = [*told, *born]
        before, now_ns = {flow.cookie for flow in self.memory.table}, time.monotonic_ns()
        self.audited_ns = now_ns
        if self._sees_threads:
            audit.threads_ended(ended_threads(table.threads()), self.memory)
        self._carry_out(audit.check_sockets(uses, self._views(), self.memory, now_ns))
        for event in self._matching.again(uses, table, now_ns):
            self._seen(event)
        ended = before - {flow.cookie for flow in self.memory.table}
        if aged_out := ended & {use.cookie for use in uses}:
            self.observer.forget(aged_out)
        self._share_queues()
        self._carry_out(phantoms(self._views(), self.memory, now_ns))
        self._spend(now_ns)
        if turned_away := self.memory.readmit():
            self.observer.forget(turned_away)  # used again, they are reported again

    def _look_at_reads(self) -> None:
        for watch in self.watches.values():
            watch.look_at_reads()

    def _share_queues(self) -> None:
        """Whose the queues are by now; those that nobody owns go home."""
        online = frozenset(cpu.index for cpu in self.cpus.known().cpus if cpu.online)
        for view in self._views().values():
            self._carry_out(steer.own(view, online, self.memory, time.monotonic_ns()))

    def _resync(self) -> None:
        """After lost events: the sockets as they are, and an end to entries without one."""
        self.resyncs += 1
        uses = [*self.observer.inventory(), *self._born_uses()]
        self.audited_ns = now_ns = time.monotonic_ns()
        self._carry_out(audit.check_sockets(uses, self._views(), self.memory, now_ns))

    def _bootstrap(self) -> None:
        """The sockets that were there before us, and the rules an earlier run left for them."""
        sockets = self.observer.inventory()
        nics = [nic_of(use, self.watches.values()) for use in sockets]
        for name, watch in self.watches.items():
            what = f"{nics.count(watch)} sockets receive through it"
            self.log.add("bootstrap", what, "there before this run", nic=name)
        self._adopt(sockets, list(self.watches.values()))

    def _adopt(self, inventory: Sequence[SocketUse], watches: Sequence[NicWatch]) -> None:
        """Take over the rules an earlier run left, by the journal and what the NIC holds. Orphans
        in a NIC that is not armed wait until it is."""
        sockets = {Match.of(use.key): use for use in (*inventory, *self._born_uses())}
        for watch in watches:
            name = watch.view.name
            known = {Match.of(flow.key) for flow in self.memory.table.steered(name)}
            rules = self._read_rules(watch)
            ours = [r for r in self.journal.ours(name, rules) if r.match not in known]
            if not ours:
                continue
            flows, plan = audit.adopt(watch.view, ours, sockets, self.memory, time.monotonic_ns())
            self.observer.adopt({flow.cookie: flow.app_cpu for flow in flows})
            self._carry_out(plan)
            done = "deleted" if watch.view.armed else "left, for the NIC is not armed"
            what = f"{len(flows)} rules taken over, {len(plan)} orphans {done}"
            self.log.add("adopt", what, "left by an earlier run", nic=name)

    # ---- again, when it is time

    def _due(self) -> None:
        """Moves whose time has come, and indirection entries whose flows wait."""
        self._carry_out(steer.due(self._views(), self.memory, time.monotonic_ns()))
        self._each(self.arming.turn)

    def _keep_off(self) -> None:
        self.keeping_off.look(self.policy, self.memory.table, self._views())

    # ---- what an operator may tell it

    def left_by(self, key: FlowKey) -> str | None:
        """The rule of the policy that leaves a flow alone, if one does."""
        return self._matching.left_by(key)
