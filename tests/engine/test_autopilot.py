# SPDX-License-Identifier: GPL-2.0-or-later
"""The reception `auto` in a closed loop: what it chooses on a made-up machine, of one CPU, a server
on it, and what each way of polling its queue costs. Decisions are the engine's own; what it writes
takes effect at once."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import pytest

from atfnd.compare.trial import Trial, TrialPhase
from atfnd.engine.command import Begin, Log
from atfnd.engine.engine import Engine
from atfnd.engine.event import Disarmed, Event, MovesReported, OriginalsRead, UsageRead
from atfnd.engine.ownership.owner import Owned
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.trials.receiving import said
from atfnd.engine.trials.subjects import (
    DEFERRED,
    INTERRUPT,
    LLC,
    PLACING,
    SUSPENDED,
    Application,
)
from atfnd.engine.trials.usage import QueueCount, UsageReading
from atfnd.model import Cpu, CpuTime, Mode, NicView, Outcome, Reception, ReceptionMode
from atfnd.model.reason import UNSAID
from atfnd.model.reception import OF_NAPI, TIMEOUT
from tests.values import NIC, THREAD, flow, memory_of, one_rule

AUTO = Reception(ReceptionMode.AUTO)
ZERO = {f"{kind}:{queue}": "0" for queue in range(4) for kind in OF_NAPI}
ARMED = replace(NIC, up=True, settings=ZERO, reception=AUTO)
SHORT = Reception(ReceptionMode.DEFERRED, 20_000, 100)
PROTOCOL_CORE = Reception(ReceptionMode.DEDICATED, 100_000, 10_000)
PROMPT = Reception(ReceptionMode.SUSPENDED, 20_000, 100, 20_000_000)
FIXED = (INTERRUPT, SHORT, DEFERRED, PROMPT, SUSPENDED, PROTOCOL_CORE)
FULL = float("inf")  # each connection asks again as soon as it is answered
PACKET_BYTES = 100
LOOK_NS = 2 * 10**9
POLL_US = 9.0


def _share(mode: Reception, pps: float, epoll: bool) -> float:
    """Of the CPU, for so many packets a second; above 1: more than it can."""
    if mode.mode is ReceptionMode.INTERRUPT:
        return pps * 45e-6
    timer = POLL_US * 1000 / mode.timeout_ns
    if mode.mode is ReceptionMode.SUSPENDED and epoll:
        work = pps * 28e-6
        return (work + timer) / (1 + timer)  # it polls only while the server sleeps
    return pps * 31e-6 + timer


def carried(mode: Reception, offered: float, epoll: bool) -> float:
    """Packets a second."""
    low, high = 0.0, 1e5
    while high - low > 1:
        middle = (low + high) / 2
        low, high = (middle, high) if _share(mode, middle, epoll) <= 1 else (low, middle)
    return min(offered, low)


@dataclass
class Machine:
    """`offered` packets a second to queue 0 of the first CPU. `epoll`: the server's takes part in
    suspension; `owned`: the queue is the server's. `costs`: times what a packet should cost in a
    mode. `found`: what settings were before a daemon wrote them. `others`: the server's thread is
    known, and threads of others take what it and the queue leave of the CPU."""

    offered: float = 0.0
    epoll: bool = True
    owned: bool = True
    noise: float = 0.0
    seed: int = 1
    others: bool = False
    view: NicView = ARMED
    costs: dict[Reception, float] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    found: dict[str, str] = field(default_factory=dict)
    now_ns: int = 10**12
    log: list[tuple[int, Log]] = field(default_factory=list)
    modes: list[Reception] = field(default_factory=list)  # by window
    carried: list[float] = field(default_factory=list)  # packets a second
    busy: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self.memory = memory_of(FlowTable(100), one_rule(0, 1 << 60, Mode.STRICT))
        self.engine = Engine(self.memory)
        self.memory.know_cpus([Cpu(at, True, 0, 0, at, (at,), (0, 1, 2, 3)) for at in range(4)])
        known = self.memory.nics["nic"]
        known.view = self.view
        if self.owned:
            known.owned = {0: Owned(("thread", 100), 0)}
        self._packets = self._idle_ns = self._ran_ns = 0
        if self.others:
            self.memory.table.put(flow(1, thread=THREAD, app_cpu=0, target_queue=0))
        self.take(OriginalsRead("nic", self.found))

    def take(self, event: Event) -> None:
        """As the executor does."""
        for command in self.engine.handle(event, self.now_ns):
            if isinstance(command, Begin):
                done = [
                    Outcome(each.action, self.now_ns, 34 * (each.action.setting in self.refused),
                            None, "refused")
                    for each in command.wanted
                ]  # fmt: skip
                self.take(MovesReported(done))
            elif isinstance(command, Log):
                self.log.append((self.now_ns, command))

    @property
    def mode(self) -> Reception:
        """What is set up on queue 0."""
        return Reception.found(self.memory.nics["nic"].view.settings, 0) or INTERRUPT

    def look(self, seconds: float = 2.0, **changes: Any) -> list[str]:
        """The kinds of what is said in these seconds. `changes`: to what is counted."""
        before = len(self.log)
        for _ in range(int(seconds * 10**9 / LOOK_NS)):
            self.now_ns += LOOK_NS
            self._pass_time()
            counted = QueueCount(0, self._packets, self._packets * PACKET_BYTES)
            idle_ns = {0: 0 if self.others else self._idle_ns}
            time = CpuTime(self.now_ns, {}, {}, {THREAD.tid: self._ran_ns}, {}, idle_ns)
            counts = {("nic", 0): replace(counted, **changes)}
            self.take(UsageRead({}, UsageReading(time, counts=counts)))
        return [each.kind for _, each in self.log[before:]]

    def until(self, kind: str, seconds: float = 300.0) -> Log:
        """The first such event from now on."""
        for _ in range(int(seconds * 10**9 / LOOK_NS)):
            if kind in self.look():
                found: Log = next(each for _, each in reversed(self.log) if each.kind == kind)
                return found
        raise AssertionError(f"no {kind} in {seconds} s: {self.log}")

    def said(self) -> str:
        return said("nic", self.memory, self.now_ns)[0]

    def events(self) -> Mapping[str, int]:
        kinds = [each.kind for _, each in self.log]
        return {kind: kinds.count(kind) for kind in ("trial", "kept", "back")}

    def _pass_time(self) -> None:
        mode = self.mode
        cost = self.costs.get(mode, 1.0) * (1 + self._random.gauss(0, self.noise))
        most = carried(mode, FULL, self.epoll) / cost
        pps = min(self.offered, most) * (1 + self._random.gauss(0, self.noise))
        share = min(1.0, _share(mode, pps, self.epoll) * cost) if pps else 0.0
        self._packets += int(pps * LOOK_NS / 10**9)
        self._idle_ns += int((1 - share) * LOOK_NS)
        self._ran_ns += int(share * LOOK_NS)
        self.modes.append(mode)
        self.carried.append(pps)
        self.busy.append(share)


MINUTE_S = 60.0
CAPACITY_PPS = carried(INTERRUPT, FULL, epoll=True)
LOADS = (0.0, 0.2, 0.5, 0.8, 1.0)
AS_BEFORE = pytest.mark.parametrize(
    ("owned", "epoll"), [(True, True), (True, False), (False, True)]
)


def offered(load: float) -> float:
    return FULL if load == 1.0 else load * CAPACITY_PPS


@AS_BEFORE
@pytest.mark.parametrize("load", LOADS)
def test_it_carries_what_the_best_fixed_mode_carries(load: float, owned: bool, epoll: bool) -> None:
    machine = Machine(offered(load), epoll=epoll, owned=owned, noise=0.01)
    machine.look(5 * MINUTE_S)
    reach = [each for each in FIXED if owned or each.mode is not ReceptionMode.SUSPENDED]
    best = max(carried(each, offered(load), epoll) for each in reach)
    assert fmean(machine.carried[-30:]) >= 0.95 * best
    usual = min(1.0, load)  # of the CPU, by interrupts
    assert fmean(machine.busy[-30:]) <= 1.05 * usual


@AS_BEFORE
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("load", [0.2, 0.5, 0.68, 0.7, 0.72, 0.8, 0.9, 1.0])
def test_it_does_not_oscillate_at_a_constant_load(
    load: float, seed: int, owned: bool, epoll: bool
) -> None:
    """In ten minutes, whatever is kept is kept, and trials without success become rare."""
    machine = Machine(offered(load), epoll=epoll, owned=owned, noise=0.02, seed=seed)
    machine.look(10 * MINUTE_S)
    events = machine.events()
    begun = sum("compare" not in each.what for _, each in machine.log if each.kind == "trial")
    assert events["kept"] <= 1
    assert begun <= 8  # one or two modes each: after 0, 1, 3 and 7 minutes
    kept = next((at for at, (_, each) in enumerate(machine.log) if each.kind == "kept"), None)
    assert kept is None or kept == len(machine.log) - 1
    if load >= 0.8:
        assert kept is not None
    if load <= 0.5:  # its CPU has time: interrupts delay least
        assert set(machine.modes) == {INTERRUPT}
    assert owned or SUSPENDED not in machine.modes


def test_of_two_that_pay_what_carries_most_is_kept() -> None:
    machine = Machine(FULL, costs={SUSPENDED: 1.3})
    machine.until("kept")
    assert machine.mode == DEFERRED
    machine = Machine(FULL, costs={DEFERRED: 1.3})
    machine.until("kept")
    assert machine.mode == SUSPENDED


def test_it_follows_the_load() -> None:
    machine = Machine(FULL, noise=0.01)
    machine.until("kept")
    machine.offered = 0.3 * CAPACITY_PPS
    said = machine.until("back", 15)
    assert re.fullmatch(r"with interrupts it would take (29|30|31)% of CPU 0", str(said.why))
    machine.offered = FULL
    machine.until("kept", 2 * MINUTE_S)
    assert machine.mode == SUSPENDED


def test_what_is_kept_and_becomes_worse_than_interrupts_goes_back() -> None:
    """Suspension where the timer comes to be first: both happen to one server."""
    machine = Machine(FULL, noise=0.01)
    machine.until("kept")
    machine.costs[SUSPENDED] = 2.4
    said = machine.until("back", 15)
    assert "x the bytes a CPU-second of interrupts" in str(said.why)
    machine.until("kept", 2 * MINUTE_S)
    assert machine.mode == DEFERRED


def test_nothing_is_tried_during_a_trial_of_where_flows_belong() -> None:
    machine = Machine(FULL)
    machine.engine._placements_tried = lambda *of: None  # type: ignore[method-assign]
    trials = machine.memory.nics["nic"].trials
    app = Application("nic", "rest", "app", None)
    trying = Trial(PLACING, LLC, UNSAID, TrialPhase.TRIED)
    trials.states[app] = trying
    assert machine.look(MINUTE_S) == []
    assert "another trial goes on" in machine.said()
    del trials.states[app]
    machine.until("trial")
    trials.states[app] = trying
    assert machine.look() == ["back"]
    assert machine.mode == INTERRUPT


def test_a_daemon_begins_with_interrupts_whatever_the_one_before_it_kept() -> None:
    kept = {f"{kind}:0": value for kind, value in DEFERRED.values.items()}
    machine = Machine(
        FULL, view=replace(ARMED, settings=ZERO | kept), found=dict.fromkeys(kept, "0")
    )
    machine.look(2)
    assert machine.mode == INTERRUPT
    machine.until("kept", MINUTE_S)


def test_where_the_kernel_refuses_a_mode_or_another_program_has_its_say_nothing_is_tried() -> None:
    name = f"{TIMEOUT}:0"
    refusing = Machine(FULL, refused={name})
    refusing.look(5 * MINUTE_S)
    assert refusing.events()["trial"] <= 1
    assert refusing.mode == INTERRUPT
    manual = Machine(FULL, view=replace(ARMED, manual=frozenset({name})))
    assert manual.look(5 * MINUTE_S) == []
    assert "nothing else can be had here" in manual.said()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"packets": None}, "does not count packets and bytes by queue"),
        ({"bytes": None}, "does not count packets and bytes by queue"),
        ({"cpu": None}, "is not confined to one CPU"),
    ],
)
def test_what_cannot_be_measured_has_interrupts(changes: dict[str, None], why: str) -> None:
    machine = Machine(FULL)
    assert machine.look(MINUTE_S, **changes) == []
    assert why in machine.said()


def test_a_policy_that_no_longer_asks_ends_it() -> None:
    machine = Machine(FULL)
    machine.until("kept")
    known = machine.memory.nics["nic"]
    known.view = replace(known.view, reception=Reception())
    assert machine.look() == ["back"]
    assert machine.log[-1][1].what == f"queue 0: {SUSPENDED} -> as its policy asks"
    assert machine.mode == INTERRUPT
    assert machine.memory.nics["nic"].reception.auto.states == {}


def test_a_trial_ends_with_the_policy_and_with_the_nic() -> None:
    machine = Machine(FULL)
    machine.until("trial")
    machine.memory.in_force = replace(machine.memory.in_force)
    assert machine.look() == ["back"]
    assert str(machine.log[-1][1].why) == "void: another policy is in force"
    machine.until("trial", 2 * MINUTE_S)
    machine.take(Disarmed("nic"))
    assert machine.look() == ["back"]
    assert str(machine.log[-1][1].why) == "void: the NIC is not armed, or down"


def test_what_others_take_of_its_cpu_does_not_count() -> None:
    machine = Machine(0.5 * CAPACITY_PPS, others=True)
    assert machine.look(10 * MINUTE_S) == []
    machine.offered = FULL
    machine.until("kept")
    assert machine.mode == SUSPENDED


def test_a_load_that_comes_and_goes_is_tried_once_a_minute() -> None:
    machine = Machine(FULL, owned=False)
    for _ in range(30):
        machine.offered = FULL
        machine.look(14)
        machine.offered = 0.0
        machine.look(4)
    begun = ("trial", f"queue 0: interrupt -> {DEFERRED}")
    trials = [at for at, each in machine.log if (each.kind, each.what) == begun]
    assert len(trials) > 3
    assert min(b - a for a, b in itertools.pairwise(trials)) >= 60 * 10**9
