# SPDX-License-Identifier: GPL-2.0-or-later
"""What the daemon shows: the `serve.Source` of the API, read from the loop's own state.

All methods run on the loop and return at once, except `doctor`. None changes anything.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import overload

from atfnd import __version__
from atfnd.daemon.agenda import Punctuality
from atfnd.daemon.changes import ChangeLog
from atfnd.daemon.cpu_times import CpuTimeReader
from atfnd.daemon.glance import glance
from atfnd.daemon.in_force import InForce
from atfnd.daemon.planning import planned
from atfnd.daemon.session import NicSession, Sessions
from atfnd.daemon.surveying import pinned_by
from atfnd.diagnose.dedicated import examine_dedicated
from atfnd.diagnose.doctor import examine
from atfnd.diagnose.host_settings import budget_of, examine_host
from atfnd.diagnose.machine import examine_machine
from atfnd.engine import host_settings
from atfnd.engine.engine import Engine
from atfnd.engine.filters.budget import share
from atfnd.engine.placement import auto
from atfnd.engine.plan import copy_of
from atfnd.engine.table.flow_table import t_delete_in_force_ns
from atfnd.engine.trials import receiving
from atfnd.errors import OperatorError
from atfnd.model import (
    Counts,
    CpuTime,
    Distance,
    Event,
    Finding,
    Flow,
    FlowKey,
    ForwardedTotals,
    Habit,
    NapiTime,
    NicCounts,
    NicGuard,
    NicReads,
    NicView,
    Planned,
    Status,
    Topology,
)
from atfnd.model.rss_hash import rss_index
from atfnd.observe import Observer
from atfnd.observe.machine.machine import machine
from atfnd.observe.processes.cpuset import cpu_users
from atfnd.serve.log.event_log import EventLog
from atfnd.serve.notify import Notify

__all__ = ["Reporter", "stays"]

_PART = 1000  # slots copied before the loop has its turn
_WAITS = "Its move waits for CPU time of atfnd itself (daemon.cpu): others are worth more."


class Reporter:
    """Reads the loop's own state."""

    def __init__(
        self,
        engine: Engine,
        sessions: Sessions,
        observer: Observer,
        observer_why: str,
        in_force: InForce,
        changes: ChangeLog,
        topology: Callable[[], Topology],
    ) -> None:
        self.memory, self._sessions = engine.memory, sessions
        self._observer, self._observer_why = observer, observer_why
        self._in_force, self._changes = in_force, changes
        self.topology, self._cpu_times = topology, CpuTimeReader()
        self._since_wall_s, self._since_ns = time.time(), time.monotonic_ns()
        self.punctuality, self.notify = Punctuality(), Notify()
        self.resyncs: Callable[[], int] = lambda: 0
        self.disarmed: Callable[[], tuple[str, ...]] = tuple
        self.guard: Callable[[str], NicGuard | None] = lambda nic: None
        self.forwarded: Callable[[], ForwardedTotals | None] = lambda: None

    def status(self) -> Status:
        """The daemon at a glance."""
        table, in_force = self.memory.table, self.memory.in_force
        return Status(
            version=__version__,
            pid=os.getpid(),
            since_wall_s=self._since_wall_s,
            since_ns=self._since_ns,
            observer=self._observer.name,
            observer_why=self._observer_why,
            armed=tuple(name for name, each in self._sessions.items() if each.view.armed),
            disarmed=self.disarmed(),
            table_entries=len(table),
            table_capacity=table.capacity,
            t_delete_ns=t_delete_in_force_ns(in_force.t_delete_ns, len(table), table.capacity),
            overflow=self.memory.overflow,
            flows_by_state=tuple((s.value, n) for s, n in table.by_state().items()),
            actions_applied=sum(n for (_, _, code), n in self._changes.changes.items() if not code),
            actions_refused=sum(n for (_, _, code), n in self._changes.changes.items() if code),
            events_lost=self._observer.lost(),
            resyncs=self.resyncs(),
            policy_files=self._in_force.policy.files,
            reads=self._reads(),
            guards=self._guards(),
            moves=tuple((*how, n) for how, n in sorted(self._changes.moves.items())),
            cpu=self.memory.cpu.cpu_use(),
            host=host_settings.shown(self.memory),
            late_packets=self._changes.late_packets,
        )

    def _guards(self) -> tuple[NicGuard, ...]:
        return tuple(each for name in self._sessions if (each := self.guard(name)) is not None)

    def _reads(self) -> tuple[NicReads, ...] | None:
        """By NIC; None: this observer does not measure it."""
        found = tuple(reads for each in self._sessions.values() if (reads := each.watch.reads()))
        return found or (() if self._observer.name == "bpf" else None)

    def tell_ready(self) -> None:
        """Tell the service manager that the first look, or another policy, is complete."""
        self.notify.ready(self._in_short())

    def say_started(self, log: EventLog, socket_path: Path) -> None:
        """What an operator wants to know of a start."""
        watched = ", ".join(self._sessions) or "no interface yet"
        armed = ", ".join(name for name, each in self._sessions.items() if each.view.armed)
        what = f"atfnd {__version__} watches {watched}; armed: {armed or 'none'}"
        what += f"; socket {socket_path}; observer {self._observer.name}"
        log.add("start", what, self._observer_why)

    def tell_alive(self) -> None:
        """Tell the service manager that the loop has made another pass."""
        self.notify.alive(self._in_short())

    def _in_short(self) -> str:
        """All NICs in one line. Cheap: it is computed on every pass of the loop."""
        armed = [name for name, each in self._sessions.items() if each.view.armed]
        named = f": {' '.join(armed)}" if armed else ""
        table, refused = self.memory.table, self._in_force.refused
        filters = sum(table.filters_in(name) for name in self._sessions)
        said = f"{len(armed)} of {len(self._sessions)} NICs armed{named}"
        said += f"; {len(table)} flows known, {filters} by a filter"
        return f"{said}; not reloaded: {refused}" if refused else said

    def counts(self) -> Counts:
        """The daemon in numbers: nothing is read to get them."""
        table = self.memory.table
        return Counts(
            status=self.status(),
            flows=table.standing(),
            changes=self._changes.changes,
            nics=tuple(map(self._counts_of, self._sessions.values())),
            lateness=self.punctuality.counted(),
            log_lost=self._changes.log.lost,
            forwarded=self.forwarded(),
        )

    def _counts_of(self, session: NicSession) -> NicCounts:
        view = session.view
        return NicCounts(
            name=view.name,
            armed=view.armed,
            paused=view.paused,
            up=view.up,
            filters=self.memory.table.filters_in(view.name),
            foreign=view.foreign,
            filters_max=share(view),
            filter_slots=view.caps.filter_slots,
            reads=session.watch.reads(),
        )

    def flows(self) -> Sequence[Flow | None]:
        """The live Flow-to-Core table by slot, then the last flows that found it full."""
        return _Joined(self.memory.table.slots(), list(self.memory.table.overflowed.values()))

    def nics(self) -> Sequence[NicView]:
        """Every NIC with its filters and counters, as fresh as `NicWatch.shown` has them."""
        views = []
        for name, session in self._sessions.items():
            try:
                shown = session.shown(partial(self._locations, name))
                views.append(self._decided(name, shown))
            except OSError as error:
                if error.errno != errno.ENODEV:  # it is gone, and the loop is about to hear of that
                    why = error.strerror or str(error)
                    what = f"{name} cannot be read now: {why}"
                    raise OperatorError(what, "ask again in a while", exit_code=1) from error
        return views

    def _decided(self, nic: str, shown: NicView) -> NicView:
        """With what is decided for its queues."""
        known = self.memory.nics[nic].reception
        return replace(
            shown,
            owners=self._owners(nic),
            homes=self._homes_of(nic),
            receptions=dict(known.of_rules),
            not_received={queue: str(why) for queue, why in known.why_not.items()},
            piloted=receiving.said(nic, self.memory, time.monotonic_ns()),
        )

    def names(self) -> Sequence[str]:
        """The NICs, without a look at them."""
        return list(self._sessions)

    def _locations(self, nic: str) -> frozenset[int]:
        """The locations of our filters in it."""
        steered = self.memory.table.steered(nic)
        return frozenset(flow.location for flow in steered if flow.location is not None)

    def _owners(self, nic: str) -> dict[int, str]:
        """The owner of each of its queues: `thread 4711`."""
        owned = self.memory.nics[nic].owned
        return {queue: f"{each.owner[0]} {each.owner[1]}" for queue, each in owned.items()}

    def _homes_of(self, nic: str) -> dict[int, int]:
        """The CPUs that its queues go back to when they have no owner."""
        return dict(self.memory.nics[nic].lent.homes)

    async def plan(self, nic: str) -> Sequence[Planned]:
        """As `serve.Source.plan`: what the daemon decides with, on a copy of what it knows. The
        flows are copied a part at a time, and the rest is done in a thread."""
        view = self._sessions[nic].shown(partial(self._locations, nic))
        cpus, flows, table = self.topology(), list[Flow](), self.memory.table.slots()
        for at in itertools.count(step=_PART):
            flows += (flow for flow in table[at : at + _PART] if flow and flow.nic == nic)
            await asyncio.sleep(0)
            if at >= len(table):
                break
        known, now_ns = copy_of(self.memory, nic), time.monotonic_ns()
        more = host_settings.planned(nic, self.memory)
        deferred = self.memory.table.deferred()
        return await asyncio.to_thread(planned, view, cpus, known, flows, now_ns, deferred, more)

    def cpu_time(self) -> tuple[CpuTime, Sequence[NapiTime]]:
        """As `serve.Source.cpu_time`."""
        return self._cpu_times.shown(each.view for each in self._sessions.values())

    def _glance(self, nic: str) -> NicView:
        return glance(nic, self._in_force.policy)

    async def doctor(self, nic: str | None) -> tuple[Sequence[NicView], Sequence[Finding]]:
        """As `serve.Source.doctor`. Slow reads run in a thread."""
        around, dedicated = await asyncio.to_thread(machine), self._in_force.policy.dedicated()
        users = await asyncio.to_thread(cpu_users, dedicated)
        looked = []
        for name in list(self._sessions) if nic is None else [nic]:
            try:
                looked.append(await asyncio.to_thread(self._glance, name))
            except OperatorError:
                if nic is not None:
                    raise  # else it has gone since we began
        known = {view.name: view for view in self.nics()}
        watched = nic is None or nic in known
        views = [_as_now(known[view.name], view) if view.name in known else view for view in looked]
        cpus = self.topology()
        findings = [each for view in views for each in examine(view, cpus, around, watched=watched)]
        status = self.status()
        observer = status.observer, status.observer_why
        findings += examine_machine(around, observer, None if nic is not None else self._sessions)
        findings += examine_dedicated(dedicated, users, cpus)
        findings += examine_host(status.host, around, known.values())
        return views, findings

    def events(self, after_seq: int, limit: int) -> Sequence[Event]:
        """Oldest first, numbered above `after_seq`."""
        return self._changes.log.after(after_seq, limit)

    def remarks(self, flow: Flow) -> tuple[str, ...]:
        """As `serve.Source.remarks`."""
        now_ns = time.monotonic_ns()
        tried = auto.said(flow, self.memory, now_ns)
        waits = _WAITS if flow.key in self.memory.cpu.waiting else None
        budget = self._budget_of(flow)
        tried = None if tried is None else f"{tried}."
        found = tried, waits, stays(flow, now_ns), budget
        return tuple(each for each in found if each is not None)

    def _budget_of(self, flow: Flow) -> str | None:
        queues = self._sessions[flow.nic].view.queues if flow.nic in self._sessions else ()
        queue = next((each for each in queues if each.index == flow.rx_queue), None)
        return None if queue is None else budget_of(queue, host_settings.shown(self.memory))

    async def later_than(self, seq: int) -> None:
        """As `serve.Source.later_than`."""
        await self._changes.log.later(seq)

    def rss_queue(self, nic: str, key: FlowKey) -> int | None:
        """Where RSS alone would deliver a flow."""
        return rss_index(self._sessions[nic].view, key)


class _Joined(Sequence[Flow | None]):
    """Two sequences one after the other, neither copied."""

    def __init__(self, first: Sequence[Flow | None], second: Sequence[Flow | None]) -> None:
        self._first, self._second = first, second

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    @overload
    def __getitem__(self, at: int) -> Flow | None: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Flow | None]: ...
    def __getitem__(self, at: int | slice) -> Flow | Sequence[Flow | None] | None:
        border = len(self._first)
        if isinstance(at, int):
            return self._first[at] if at < border else self._second[at - border]
        start, stop, _ = at.indices(len(self))
        tail = self._second[max(0, start - border) : max(0, stop - border)]
        return [*self._first[start:stop], *tail]


def stays(flow: Flow, now_ns: int) -> str | None:
    """Where its thread runs, since when, and what follows from that. Reads its affinity and its
    cpuset. None: the thread is gone or not known, or the flow's reason says it."""
    if flow.thread is None or flow.home is Distance.MACHINE:
        return None
    try:
        cpus = len(os.sched_getaffinity(flow.thread.tid))
    except ProcessLookupError:
        return None
    if cpus < 2:
        by = pinned_by(flow.thread.tid) or "affinity"
        return f"Its thread is pinned to one CPU (by its {by}): it is followed at once."
    may = f"Its thread may run on {cpus} CPUs"
    if flow.home is not Distance.CPU:
        where = "last-level cache" if flow.home is Distance.LLC else "node"
        return f"{may} and wanders within one {where}: nothing moves while packets arrive there."
    since = ""
    if flow.habit is Habit.SETTLED:
        since = f" and is settled on CPU {flow.app_cpu} for {(now_ns - flow.home_ns) / 1e9:.1f} s"
    return f"{may}{since}: it is followed once a stay has paid for a move."


def _as_now(known: NicView, seen: NicView) -> NicView:
    """What we know of a NIC, with what was just seen of it: no event reports a change of an
    affinity, and chores run seldom."""
    return replace(
        known,
        up=seen.up,
        queues=seen.queues,
        rss=seen.rss,
        device=seen.device,
        settings=seen.settings,
        conflicts=seen.conflicts,
    )
