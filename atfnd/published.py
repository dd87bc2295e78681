# SPDX-License-Identifier: GPL-2.0-or-later
"""What the daemon shows: the `serve.Source` of the API, read from the loop's own state.

Everything here runs on the loop and returns at once, but for `doctor`; it changes nothing.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from atfnd import __version__
from atfnd.counting import counts_of, in_short
from atfnd.cpu_times import CpuTimes
from atfnd.decide import auto
from atfnd.decide.doctor import examine
from atfnd.decide.doctor_machine import examine_machine
from atfnd.decide.means import means_of
from atfnd.decide.memory import Memory
from atfnd.decide.plan import copy_of
from atfnd.decide.table import t_delete_in_force_ns
from atfnd.errors import OperatorError
from atfnd.joined import Joined
from atfnd.keeping_off import KeepingOff
from atfnd.lateness import Punctuality
from atfnd.model import (
    Counts,
    CpuTime,
    Event,
    Finding,
    Flow,
    FlowKey,
    FlowState,
    Move,
    NapiTime,
    NicReads,
    NicView,
    Outcome,
    Planned,
    Policy,
    Status,
    Topology,
)
from atfnd.nic.driver import open_nic
from atfnd.nic.toeplitz import rss_entry
from atfnd.observe import Observer
from atfnd.observe.machine import machine
from atfnd.observe.nics import NicWatch
from atfnd.observe.topology import CpuWatch
from atfnd.planning import planned
from atfnd.serve.eventlog import EventLog
from atfnd.serve.notify import Notify
from atfnd.telling import tell

__all__ = ["Published"]

_PART = 1000  # slots copied before the loop has its turn


@dataclass
class Published:
    """The loop's state, and the counts only it can keep."""

    watches: dict[str, NicWatch]
    observer: Observer
    observer_why: str
    policy: Policy
    memory: Memory
    log: EventLog = field(default_factory=EventLog)
    since_wall_s: float = field(default_factory=time.time)
    since_ns: int = field(default_factory=time.monotonic_ns)
    changes: Counter[tuple[str, str, int]] = field(default_factory=Counter)  # NIC, kind, errno
    resyncs: int = 0
    moves: Counter[tuple[str, str]] = field(default_factory=Counter)  # by mechanism and verdict
    late_packets: int = 0  # that were overtaken in a move
    cpus: CpuWatch = field(default_factory=CpuWatch)
    cpu_times: CpuTimes = field(default_factory=CpuTimes)
    audited_ns: int = 0  # when the table's bytes were last read
    punctuality: Punctuality = field(default_factory=Punctuality)
    notify: Notify = field(default_factory=Notify)
    reload_refused: str = ""  # why the last reload was, if it was
    keeping_off: KeepingOff = field(init=False)

    def __post_init__(self) -> None:
        self.memory.know_cpus(self.cpus.known().cpus)

    def status(self) -> Status:
        """The daemon in one look."""
        table, settling = self.memory.table, self.memory.settling
        return Status(
            version=__version__,
            pid=os.getpid(),
            since_wall_s=self.since_wall_s,
            since_ns=self.since_ns,
            observer=self.observer.name,
            observer_why=self.observer_why,
            armed=tuple(name for name, watch in self.watches.items() if watch.view.armed),
            table_entries=len(table),
            table_capacity=table.capacity,
            t_delete_ns=t_delete_in_force_ns(settling.t_delete_ns, len(table), table.capacity),
            overflow=self.memory.overflow,
            flows_by_state=tuple((s.value, n) for s, n in table.by_state().items()),
            actions_applied=sum(n for (_, _, code), n in self.changes.items() if not code),
            actions_refused=sum(n for (_, _, code), n in self.changes.items() if code),
            events_lost=self.observer.lost(),
            resyncs=self.resyncs,
            policy_files=self.policy.files,
            reads=self._reads(),
            moves=tuple((*how, n) for how, n in sorted(self.moves.items())),
            late_packets=self.late_packets,
        )

    def _reads(self) -> tuple[NicReads, ...] | None:
        """By NIC; None: this observer does not measure it."""
        found = tuple(reads for watch in self.watches.values() if (reads := watch.reads()))
        return found or (() if self.observer.name == "bpf" else None)

    def tell_ready(self) -> None:
        """The service manager, that the first look or another policy is complete."""
        self.notify.ready(self._in_short())

    def tell_alive(self) -> None:
        """The service manager, that the loop went round once more."""
        self.notify.alive(self._in_short())

    def _in_short(self) -> str:
        said = in_short((watch.view for watch in self.watches.values()), self.memory)
        return f"{said}; not reloaded: {self.reload_refused}" if self.reload_refused else said

    def counts(self) -> Counts:
        """The daemon in numbers: nothing is read for them."""
        table = self.memory.table
        return Counts(
            status=self.status(),
            flows=table.standing(),
            changes=self.changes,
            nics=tuple(
                counts_of(watch.view, watch.reads(), self.memory) for watch in self.watches.values()
            ),
            lateness=self.punctuality.counted(),
            log_lost=self.log.lost,
        )

    def record(self, outcome: Outcome) -> None:
        """Count what became of an action, and log it."""
        action = outcome.action
        self.changes[action.nic, action.kind.value, outcome.errno] += 1
        watch = self.watches.get(action.nic)
        tell(self.log, outcome, {} if watch is None else watch.view.knobs, self.policy)

    def count(self, move: Move) -> None:
        """Count how a move ended."""
        self.moves[move.mechanism, move.verdict] += 1
        self.late_packets += move.late_packets

    def record_loss(self, flow: Flow) -> None:
        """Log that a flow lost its rule to somebody else, or in the NIC."""
        manual = flow.state is FlowState.MANUAL
        kind, what = ("manual", "let go") if manual else ("dropped", "by the NIC")
        self.log.add(kind, what, flow.why, nic=flow.nic, flow=flow.key)

    def flows(self) -> Sequence[Flow | None]:
        """The live Flow-to-Core table by slot, then the last flows that found it full."""
        return Joined(self.memory.table.slots(), list(self.memory.overflowed.values()))

    def nics(self) -> Sequence[NicView]:
        """Every NIC with its rules and counters, as fresh as `NicWatch.shown` has them."""
        views = []
        for name, watch in self.watches.items():
            try:
                shown = watch.shown(partial(self._locations, name))
                views.append(replace(shown, owners=self._owners(name), homes=self._homes_of(name)))
            except OSError as error:
                if error.errno != errno.ENODEV:  # it is gone, and the loop is about to be told
                    raise
        return views

    def names(self) -> Sequence[str]:
        """The NICs, without a look at them."""
        return list(self.watches)

    def _locations(self, nic: str) -> frozenset[int]:
        """Of our rules in it."""
        steered = self.memory.table.steered(nic)
        return frozenset(flow.location for flow in steered if flow.location is not None)

    def _owners(self, nic: str) -> dict[int, str]:
        """Whom its queues follow: `thread 4711`."""
        owned = self.memory.owned.get(nic, {})
        return {queue: f"{each.owner[0]} {each.owner[1]}" for queue, each in owned.items()}

    def _homes_of(self, nic: str) -> dict[int, int]:
        """The CPUs that its queues go back to when nobody owns them."""
        lent = self.memory.lent.get(nic)
        return {} if lent is None else dict(lent.homes)

    async def plan(self, nic: str) -> Sequence[Planned]:
        """As `serve.Source.plan`: what the daemon decides with, on a copy of what it knows. The
        flows are copied a part at a time, and the rest is done beside the loop."""
        view = self.watches[nic].shown(partial(self._locations, nic))
        entry_of = partial(rss_entry, view.rss) if view.rss else lambda key: None
        cpus, flows, table = self.topology(), list[Flow](), self.memory.table.slots()
        for at in itertools.count(step=_PART):
            flows += (flow for flow in table[at : at + _PART] if flow and flow.nic == nic)
            await asyncio.sleep(0)
            if at >= len(table):
                break
        known, now_ns = copy_of(self.memory, nic), time.monotonic_ns()
        deferred, more = dict(self.memory.deferred), tuple(self.keeping_off.planned(nic))
        return await asyncio.to_thread(
            planned, view, cpus, entry_of, known, flows, now_ns, deferred, more
        )

    def topology(self) -> Topology:
        """CPUs as sysfs describes them now; an offline one shares what it shared before."""
        known = self.cpus.read()
        self.memory.know_cpus(known.cpus)
        return known

    def cpu_time(self) -> tuple[CpuTime, Sequence[NapiTime]]:
        """As `serve.Source.cpu_time`."""
        return self.cpu_times.shown(watch.view for watch in self.watches.values())

    async def doctor(self, nic: str | None) -> tuple[Sequence[NicView], Sequence[Finding]]:
        """As `serve.Source.doctor`. What takes time is read beside the loop."""
        around = await asyncio.to_thread(machine)
        looked = []
        for name in list(self.watches) if nic is None else [nic]:
            try:
                looked.append(await asyncio.to_thread(_glance, name))
            except OperatorError:
                if nic is not None:
                    raise  # else it has gone since we began
        known = {view.name: view for view in self.nics()}
        watched = nic is None or nic in known
        views = [_as_now(known[view.name], view) if view.name in known else view for view in looked]
        cpus = self.topology()
        findings = [each for view in views for each in examine(view, cpus, around, watched=watched)]
        if nic is None:
            findings += examine_machine(around, self.status(), self.watches)
            findings += self.keeping_off.findings()
        return views, findings

    def events(self, after_seq: int, limit: int) -> Sequence[Event]:
        """Oldest first, numbered above `after_seq`."""
        return self.log.after(after_seq, limit)

    def remarks(self, flow: Flow) -> tuple[str, ...]:
        """As `serve.Source.remarks`."""
        tried, kept_off = (
            auto.said(flow, self.memory, time.monotonic_ns()),
            self.keeping_off.told(flow),
        )
        found = (None if tried is None else f"{tried}.", kept_off)
        return tuple(each for each in found if each is not None)

    async def later_than(self, seq: int) -> None:
        """As `serve.Source.later_than`."""
        await self.log.later(seq)

    def rss_queue(self, nic: str, key: FlowKey) -> int | None:
        """Where RSS alone would deliver a flow."""
        queue = self.watches[nic].predicted(key)
        return queue.index if queue else None


def _glance(name: str) -> NicView:
    """One look at a NIC, watched or not. OperatorError: no such interface."""
    nic = open_nic(name)
    try:
        watch = NicWatch(nic, armed=False, budget=None)
    except OSError:
        nic.close()
        raise
    try:
        watch.inspect()
        watch.steered_by(*means_of(watch.view))
        return watch.shown(frozenset)
    finally:
        watch.close()


def _as_now(known: NicView, seen: NicView) -> NicView:
    """What we know of a NIC, with what was just seen of it: nothing tells us of an affinity that
    somebody changed, and chores come seldom."""
    return replace(
        known,
        up=seen.up,
        queues=seen.queues,
        rss=seen.rss,
        device=seen.device,
        knobs=seen.knobs,
        conflicts=seen.conflicts,
    )
