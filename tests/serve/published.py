# SPDX-License-Identifier: GPL-2.0-or-later
"""A published daemon made of model values, served by the real server on a real Unix socket.

Two interfaces: `lab:lab` (armed, four queues on CPUs 0-3, rules) and `eth1` (not armed).
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from atfnd.compare.verdict import compare
from atfnd.diagnose.gain import Around, Parts, not_measured, summarised
from atfnd.diagnose.pairs import Counted, not_counted, of_nic, paired
from atfnd.engine.table.flow_table import FlowTable
from atfnd.errors import OperatorError
from atfnd.model import (
    Action,
    ActionKind,
    Counts,
    CpuTime,
    CpuUse,
    Event,
    Figure,
    Finding,
    Flow,
    FlowKey,
    FlowState,
    ForwardedCount,
    ForwardedTotals,
    Gain,
    GuardState,
    History,
    HostStanding,
    InterfaceRule,
    Lateness,
    Level,
    Match,
    Measurement,
    MeasuringStep,
    NapiTime,
    NicCounts,
    NicGuard,
    NicReads,
    NicView,
    Pair,
    Pairs,
    Placement,
    Planned,
    Policy,
    ReadBytes,
    Restored,
    Sample,
    SocketFound,
    Status,
    Survey,
    SurveyedReads,
    Topology,
    WouldDo,
)
from atfnd.model.reason import Code
from atfnd.serve.api.http import serve
from tests.diagnose.machines import topology
from tests.serve.shown import flow, key, lab, rule
from tests.values import RULE

__all__ = [
    "Published",
    "Serving",
    "flow",
    "key",
    "lab",
    "rule",
    "serving",
    "three_flows",
    "topology",
]

T = TypeVar("T")


class Published:
    """A `Source`: what a daemon would publish."""

    def __init__(self) -> None:
        self.table = FlowTable(8192)
        theirs = rule(9, Match(4, None, None, 0, None, 0, None, 22), 0)
        self.views = [
            lab(theirs, *(rule(100 + n, Match.of(key(40_000 + n)), 3) for n in range(3))),
            replace(lab(), name="eth1", armed=False, owned=frozenset(), netns=None),
        ]
        self.findings = [
            Finding("lab:lab", Level.OK, "steers each flow by a filter of its own"),
            Finding("eth1", Level.WARNING, "irqbalance (pid 7) moves it", "ban them"),
            Finding(None, Level.NOTE, "eth9 is not watched", "--nic eth9"),
        ]
        self.audited = 0
        self.found = list[SocketFound]()
        self.spent = (
            CpuTime(
                7 * 10**9, {0: 5 * 10**9, 1: 10**9}, {0: 10**9, 1: 0}, {900: 2 * 10**9}, {}, {}
            ),
            [NapiTime("lab:lab", 0, 0, 2 * 10**9)],
        )
        self.remark_on_auto = "auto: core"
        self.unseen: str | None = None  # why nothing can be surveyed
        self.cpus = topology()
        read = SurveyedReads("lab:lab", 4121, 4120, "iperf3", 3, 3, False, 600, 60, 0, None, 1)
        self.forwarded: tuple[ForwardedCount, ...] = (
            ForwardedCount(1, 2, 3, 1, 3, 3_000, 1_500_000),
            ForwardedCount(1, 2, 3, 0, 0, 6_000, 3_000_000),
            ForwardedCount(1, 3, 7, 0, 2, 1_000, 64_000),
            ForwardedCount(9, 2, 3, 0, 2, 700, 70_000),
            ForwardedCount(9, 3, 2, 0, 1, 300, 30_000),
            ForwardedCount(8, 3, 2, 0, 1, 100, 10_000),
        )
        self.pairs_wanted = list[float]()  # for how long, by whom it was
        self.forwarded_totals: ForwardedTotals | None = None
        self.surveyed = Survey(
            (
                read,
                read._replace(rx_cpu=5, bytes=300),
                read._replace(rx_cpu=None, bytes=50),
                read._replace(nic="eth1", tid=7, pid=7, application="sshd", allowed=8, calls=3),
                read._replace(nic="eth1", rx_cpu=2, bytes=400),
            ),
            9,
        )
        self.measured = list[str]()  # now
        self.measuring_fails: str | None = None
        self.mistake: str | None = None  # in the policy's files
        self._news = asyncio.Event()
        self.reloads = self.reloaded = 0  # begun, and done once the gate is open
        self.gate = asyncio.Event()
        self.gate.set()
        self.log = [
            Event(n, n * 1000, 1_700_000_000.5, "insert", "lab:lab", key(n), f"#{n}", "why", "bulk")
            for n in range(1, 1501)
        ]

    def tell(self, event: Event) -> None:
        """One more event; called on the server's loop."""
        self.log.append(event)
        self._news.set()
        self._news = asyncio.Event()

    def fill(self, remote_ports: Iterable[int]) -> None:
        """Put a steered flow for each of these ports in the table."""
        for port in remote_ports:
            self.table.put(flow(port))

    reads = NicReads(
        "lab:lab", ReadBytes(850, 50, 7), ReadBytes(50, 50), ReadBytes(199, 1), 10_000_000_000
    )

    guard = NicGuard("lab:lab", GuardState.WATCHING, 12, 1, 0, -0.041, "")

    def status(self) -> Status:
        return Status(
            version="0.1.0",
            pid=4242,
            since_wall_s=1_700_000_000.0,
            since_ns=1,
            observer="bpf",
            observer_why="tracepoints attached",
            armed=tuple(nic.name for nic in self.views if nic.armed),
            disarmed=(),
            table_entries=len(self.table),
            table_capacity=8192,
            t_delete_ns=30_000_000_000,
            overflow=3,
            flows_by_state=(("wanted", 0), ("steered", 2), ("observed", 1)),
            actions_applied=17,
            actions_refused=1,
            events_lost=0,
            resyncs=1,
            policy_files=("/etc/atfnd/policies.d/a.yaml",),
            reads=(self.reads,),
            guards=(self.guard,),
            host=(
                HostStanding("netdev-budget", "set", "2", "2", "300", ""),
                HostStanding("netdev-budget-usecs", "left", "8000", None, None, ""),
            ),
            cpu=CpuUse(allowed=0.01, used=0.0125, over=True, waiting=3),
        )

    def history(self) -> History:
        """Of the second and the third minute."""
        ended = (("hold", "proven", 2),)
        shares = (None, 0.25, 0.5, 0.98, 0.98)
        at_ns = (n * 10**10 + 60 * 10**9 for n in range(len(shares)))
        samples = (Sample(at, share, ended) for at, share in zip(at_ns, shares, strict=True))
        return History(10.0, tuple(samples))

    def counts(self) -> Counts:
        nics = [
            NicCounts(
                nic.name, nic.armed, nic.paused, nic.up, len(nic.owned), nic.foreign, nic.budget,
                nic.caps.filter_slots, self.reads if nic.armed else None,
            )
            for nic in self.views
        ]  # fmt: skip
        flows = Counter((f.nic, f.state, f.rule_name) for f in self.table)
        changes = {("lab:lab", "insert", 0): 16, ("lab:lab", "insert", errno.ENOSPC): 1}
        lateness = Lateness((0.001, 0.01), (90, 9, 1), 0.25)
        status = replace(self.status(), moves=(("hold", "proven", 3),))
        return Counts(status, flows, changes, tuple(nics), lateness, 0, self.forwarded_totals)

    def flows(self) -> Sequence[Flow | None]:
        return self.table.slots()

    def sockets(self) -> Iterator[SocketFound | None]:
        yield None
        yield from self.found

    @property
    def audited_ns(self) -> int:
        return self.audited

    def names(self) -> Sequence[str]:
        return [nic.name for nic in self.views]

    def nics(self) -> Sequence[NicView]:
        return self.views

    def topology(self) -> Topology:
        return topology()

    def events(self, after_seq: int, limit: int) -> Sequence[Event]:
        return [event for event in self.log if event.seq > after_seq][:limit]

    def cpu_time(self) -> tuple[CpuTime, Sequence[NapiTime]]:
        return self.spent

    async def later_than(self, seq: int) -> None:
        while self.log[-1].seq <= seq:
            await self._news.wait()

    def rss_queue(self, nic: str, key: FlowKey) -> int | None:
        return key.remote_port % 4 if key.remote_port else None

    def left_by(self, key: FlowKey) -> str | None:
        return "`control` (built-in:12)" if 22 in (key.local_port, key.remote_port) else None

    async def arm(self, nic: str) -> None:
        self._set(nic, armed=True)

    async def disarm(self, nic: str | None) -> None:
        if nic == "stuck0":
            raise OSError(errno.EPERM, "Operation not permitted")
        for name in [view.name for view in self.views] if nic is None else [nic]:
            self._set(name, armed=False)

    async def pause(self, nic: str) -> None:
        self._set(nic, armed=False, paused=True)

    async def resume(self, nic: str) -> None:
        self._set(nic, armed=True, paused=False)

    async def measure(
        self, nic: str, total_s: float, slot_s: float, settle_s: float, against: str | None
    ) -> AsyncGenerator[MeasuringStep | Measurement, None]:
        """Pairs of slots that last no time."""
        (view,) = (each for each in self.views if each.name == nic)
        if not view.armed:
            what = f"{nic} is not armed: there is nothing to compare"
            raise OperatorError(what, f"atfnctl arm {nic}, then measure", exit_code=1)
        if settle_s >= slot_s:
            raise OperatorError("nothing is left of a slot")
        self.measured.append(nic)
        nothing: dict[Figure, float | None] = dict.fromkeys(Figure)
        pairs = min(int(total_s // (2 * slot_s)), 200)
        try:
            for number in range(1, 2 * pairs + 1):
                left_s = (2 * pairs - number) * slot_s
                yield MeasuringStep(number, 2 * pairs, number % 2 == 1, left_s)
                if number % 2 == 0:
                    part = [
                        (nothing | {Figure.RTT: 90.0 + n % 2}, nothing | {Figure.RTT: 100.0})
                        for n in range(number // 2)
                    ]
                    yield compare(nic, part, against)
                    if self.measuring_fails is not None:
                        raise OperatorError(self.measuring_fails, exit_code=1)
        finally:
            self.measured.remove(nic)

    async def restore(self, nic: str) -> Sequence[Restored]:
        self._set(nic, armed=False, paused=False)
        refusal = Restored(nic, "rss", errno.ESTALE, "left at 0-3: another program set it")
        left = [Restored(nic, "xps", errno.EPERM, "is left")] if nic == "eth1" else []
        return [refusal, *left]

    @property
    def policy(self) -> Policy:
        leave = replace(RULE, name="control", source="built-in:12", placement=Placement.LEAVE)
        bulk = replace(RULE, name="bulk", source="a.yaml:7")
        anywhere = InterfaceRule("*", "built-in:8", False, None, 0)
        return Policy((anywhere,), (leave, bulk), "auto", 8192, 0, ("a.yaml",))

    async def plan(self, nic: str) -> Sequence[Planned]:
        if nic == "lab:lab":
            return []
        kind, why = ActionKind.INSERT, "its thread runs on CPU 3"
        action = Action(kind, nic, key(40_002), None, 0, 3, Code.KERNEL(why), "bulk")
        return [Planned(action, None, ("ethtool -N eth1 flow-type tcp4 action 3",), None)]

    def port_remarks(self, key: FlowKey) -> tuple[str, ...]:
        return ()

    def remarks(self, flow: Flow) -> tuple[str, ...]:
        return (
            (f"{self.remark_on_auto}.",) if self.remark_on_auto and flow.rule_name == "auto" else ()
        )

    async def recording(self, seconds: float, most: int) -> AsyncGenerator[str, None]:
        for number in range(most):
            yield f'{{"line": {number}, "of_s": {seconds}}}\n'

    async def reload(self) -> Policy:
        self.reloads += 1
        await self.gate.wait()
        self.reloaded += 1
        if self.mistake is not None:
            raise OperatorError(self.mistake)
        return self.policy

    async def doctor(self, nic: str | None) -> tuple[Sequence[NicView], Sequence[Finding]]:
        views = [view for view in self.views if nic in (None, view.name)]
        if not views:
            raise OperatorError(f"no interface {nic!r} here", "there are: lo")
        return views, [each for each in self.findings if nic in (None, each.nic)]

    async def pairs(self, nic: str | None, seconds: float) -> Pairs:
        if self.unseen is not None:
            return not_counted(self.unseen)
        counted = Counted(seconds, 9, self.forwarded)
        return of_nic(self._paired(counted), nic)

    def latest_pairs(self, nic: str | None) -> Pairs:
        if self.unseen is not None:
            return not_counted(self.unseen)
        return of_nic(self._paired(Counted(2.0, 0, self.forwarded)), nic)

    def want_pairs(self, seconds: float) -> None:
        self.pairs_wanted.append(seconds)

    def _paired(self, counted: Counted) -> Pairs:
        names = {(1, 2): "lab:lab", (1, 3): "eth1"}
        first, second = (replace(self.views[1].queues[n], cpu=cpu) for n, cpu in ((0, 2), (1, 3)))
        egress = replace(self.views[1], queues=(first, second))
        nics = {(1, 2): self.views[0], (1, 3): egress}
        found = paired(counted, names, {}, nics, Parts(self.cpus), {9: "wire"})
        return replace(found, pairs=tuple(map(_ruled, found.pairs)))

    async def gain(self, nic: str | None, seconds: float) -> Gain:
        if self.unseen is not None:
            return not_measured(self.unseen, self.cpus)
        views = [view for view in self.views if nic in (None, view.name)]
        would_do = {view.name: WouldDo(3, 1, 2) for view in views}
        around = Around(self.cpus, {3: 0.5}, {}, would_do, {4121: "affinity"}.get)
        return summarised(self.surveyed, seconds, views, around)

    def _set(self, name: str, **changes: bool) -> None:
        for n, nic in enumerate(self.views):
            if nic.name == name:
                if not nic.caps.filters:
                    raise OperatorError(f"{name} has no filters", "use another interface")
                self.views[n] = replace(nic, **changes)  # type: ignore[arg-type]
                return
        raise KeyError(name)


def three_flows() -> Published:
    """Two flows steered by rules 100 and 101, one observed."""
    source = Published()
    for n in range(3):
        state = FlowState.STEERED if n < 2 else FlowState.OBSERVED
        entry = flow(40_000 + n, state)._replace(location=100 + n)
        source.table.put(entry)
    return source


class Serving:
    """The server's thread, as a test sees it."""

    def __init__(self, source: Published, socket: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.source = source
        self.socket = socket
        self._loop = loop

    def do(self, change: Callable[[], T]) -> T:
        """Run `change` between two steps of the server, as the daemon's own loop would."""

        async def step() -> T:
            return change()

        return asyncio.run_coroutine_threadsafe(step(), self._loop).result(10)


@contextmanager
def serving(socket: Path, source: Published | None = None) -> Iterator[Serving]:
    """Serve until the block ends; what `serve` raises is raised here."""
    source = source or Published()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="serve")
    thread.start()
    try:
        server = asyncio.run_coroutine_threadsafe(serve(source, socket), loop).result(10)
        try:
            yield Serving(source, socket, loop)
        finally:
            asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def _ruled(pair: Pair) -> Pair:
    """A forwarding rule is for two of the interfaces."""
    if (pair.ingress, pair.egress) != ("lab:lab", "eth1"):
        return pair
    return replace(pair, rule="gateway", why="channels of one number are on one CPU")
