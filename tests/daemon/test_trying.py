# SPDX-License-Identifier: GPL-2.0-or-later
"""The trials: what is read when, said and moved. CPU time, sockets and NIC are made up; decisions
are the engine's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from atfnd.daemon.trying import Trying
from atfnd.engine.command import Begin, Expect, Log
from atfnd.engine.engine import Engine
from atfnd.engine.event import Event, MovesReported, NicAttached, SocketReported
from atfnd.engine.placement import auto, steer
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory, RulesInForce
from atfnd.model import (
    CpuTime,
    Flow,
    FlowRule,
    NicView,
    Outcome,
    Placement,
    Plan,
    Policy,
    SocketUse,
)
from atfnd.serve.log.event_log import EventLog
from tests.engine.standing import like
from tests.engine.test_auto import CPUS
from tests.values import NIC, RULE, THREAD, key, memory_of, seen

__all__: list[str] = []

AUTO = replace(RULE, placement=Placement.AUTO)
STEP_NS = 2 * 10**9


def policy(rule: FlowRule) -> Policy:
    return Policy((), (rule,), "auto", 100, 0, ())


@dataclass
class Fake:
    """A fake kernel: a flow that carries `fast` times a gigabyte a second off its core."""

    memory: Memory
    fast: float = 2.0
    now_ns: int = 10**12
    bytes: int = 0
    spent_ns: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})
    audits: int = 0
    expected: dict[int, int] = field(default_factory=dict)
    asked: set[tuple[int, int]] = field(default_factory=set)

    def pass_time(self) -> None:
        self.now_ns += STEP_NS
        away = self.flow.target_queue == 1
        self.bytes += int(2 * 10**9 * (self.fast if away else 1))
        self.spent_ns[0] += STEP_NS
        self.spent_ns[1] += STEP_NS if away else 0

    def cpu_time(self, threads: Iterable[tuple[int, int]]) -> CpuTime:
        self.asked = set(threads)
        softirq = {0: 0, 1: self.spent_ns[1]}
        ran = {THREAD.tid: self.spent_ns[0]}
        return CpuTime(self.now_ns, dict(self.spent_ns), softirq, ran, {THREAD.tid: 0}, {})

    @property
    def flow(self) -> Flow:
        found = self.memory.table.get(key(1))
        assert found is not None
        return found

    def audit(self) -> list[SocketUse]:
        self.audits += 1
        return [SocketUse(1001, key(1), 0, None, 0, self.bytes)]

    def lost(self) -> int:
        return 0

    def expect(self, cookie: int, cpu: int, at_ns: int) -> None:
        self.expected[cookie] = cpu


class Bench:
    """The part of a daemon that tries, with one flow on its core."""

    def __init__(self, rule: FlowRule, monkeypatch: pytest.MonkeyPatch) -> None:
        said = policy(rule)
        memory = memory_of(FlowTable(100), RulesInForce.of(said))
        self.engine, self.memory, self.log = Engine(memory), memory, EventLog()
        memory.know_cpus(CPUS.values())
        self.kernel = Fake(memory)
        observer: Any = self.kernel
        executor: Any = self
        self.moved = list[Plan]()
        monkeypatch.setattr("atfnd.daemon.trying.cpu_time", self.kernel.cpu_time)
        monkeypatch.setattr("time.monotonic_ns", lambda: self.kernel.now_ns)
        self.trying = Trying(self.engine, executor, {}, observer)
        self.take(NicAttached(NIC, armed=True))
        event = seen(1, 0, bytes=0, off_since_ns=self.kernel.now_ns)
        self.take(SocketReported("nic", event, rule))
        self.moved.clear()

    def take(self, event: Event) -> None:
        """As the executor does; what is written succeeds."""
        now_ns = self.kernel.now_ns
        for command in self.engine.handle(event, now_ns):
            if isinstance(command, Begin):
                plan = tuple(each.action for each in command.wanted)
                self.moved.append(plan)
                self.take(MovesReported([Outcome(each, now_ns, 0, 100, "") for each in plan]))
            elif isinstance(command, Expect):
                self.kernel.expect(*command)
            elif isinstance(command, Log):
                self.log.add(command.kind, command.what, command.why, **command.fields)

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.kernel.pass_time()
            self.trying.look()

    def events(self) -> list[str]:
        """But for the one that says that this kernel offers no RFS."""
        return [event.kind for event in self.log.after(0, 1000) if event.kind != "method"]

    def nic(self, **changes: Any) -> None:
        view: NicView = replace(NIC, **changes)
        for event in like(view):
            self.take(event)

    def renew(self, rule: FlowRule) -> None:
        self.memory.in_force = RulesInForce.of(policy(rule))


Make = Callable[..., Bench]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    return lambda rule=AUTO: Bench(rule, monkeypatch)


def test_without_such_a_rule_nothing_is_read(make: Make) -> None:
    bench = make(RULE)
    bench.look(20)
    assert (bench.kernel.audits, bench.kernel.asked, bench.events()) == (0, set(), [])


def test_a_full_core_is_tried_and_what_pays_is_kept(make: Make) -> None:
    bench = make()
    bench.look(2)
    deliver = {(1000 + queue, 1000 + queue) for queue in range(4)}
    assert bench.kernel.asked == {(THREAD.pid, THREAD.tid)} | deliver
    assert not bench.trying.pressing()
    bench.look()
    assert bench.trying.pressing()
    assert bench.events() == []
    bench.look()
    assert bench.events() == ["trial"]
    assert bench.trying.pressing()
    assert [(a.key, a.old, a.new) for plan in bench.moved for a in plan] == [(key(1), 0, 1)]
    assert bench.kernel.expected == {1001: 1}
    bench.look(10)
    assert bench.events() == ["trial", "trial", "kept"]
    assert not bench.trying.pressing()
    assert [a.new for plan in bench.moved for a in plan] == [1, 0, 1]
    assert bench.kernel.flow.target_cpu == 1
    (event,) = [each for each in bench.log.after(0, 10) if each.kind == "kept"]
    assert (event.nic, event.rule, event.what) == ("nic", "rest", "app: near core -> near llc")
    assert event.why.startswith("1.00 x the bytes a CPU-second, 2.00 x the bytes a second")
    remark = auto.said(bench.kernel.flow, bench.memory, bench.kernel.now_ns)
    assert remark is not None
    assert remark.startswith("auto: near llc since")


@pytest.mark.parametrize(
    "changes",
    [{"armed": False}, {"up": False}, {"caps": replace(NIC.caps, filters=False)}],
    ids=str,
)
def test_a_nic_that_takes_no_filters_any_more_ends_a_trial(
    make: Make, changes: dict[str, object]
) -> None:
    bench = make()
    bench.look(4)
    bench.nic(**changes)
    moved = len(bench.moved)
    bench.look(20)
    assert bench.events() == ["trial", "back"]
    assert len(bench.moved) == moved
    (state,) = bench.memory.nics["nic"].trials.states.values()
    assert state.side is Placement.CORE


def test_a_policy_without_auto_ends_it_too_and_what_was_kept_holds_if_it_comes_back(
    make: Make,
) -> None:
    bench = make()
    bench.look(14)
    assert bench.events()[-1] == "kept"
    bench.renew(RULE)
    audits = bench.kernel.audits
    bench.look(5)
    assert bench.kernel.audits == audits
    steer.take_up(NIC, bench.memory, bench.kernel.now_ns)
    assert bench.kernel.flow.target_cpu == 0
    bench.renew(AUTO)
    bench.look()
    steer.take_up(NIC, bench.memory, bench.kernel.now_ns)
    assert bench.kernel.flow.target_cpu == 1
