# SPDX-License-Identifier: GPL-2.0-or-later
"""A made-up machine for the autopilot: one CPU, a server on it, and what each way of polling its
queue costs. Decisions are the engine's own; what it writes takes effect at once."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from atfnd.engine.command import Begin, Log
from atfnd.engine.engine import Engine
from atfnd.engine.event import Event, MovesReported, OriginalsRead, UsageRead
from atfnd.engine.ownership.owner import Owned
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.trials.receiving import said
from atfnd.engine.trials.subjects import DEFERRED, INTERRUPT, SUSPENDED
from atfnd.engine.trials.usage import QueueCount, UsageReading
from atfnd.model import Cpu, CpuTime, Mode, NicView, Outcome, Reception, ReceptionMode, Thread
from atfnd.model.reception import OF_NAPI
from tests.values import NIC, THREAD, flow, memory_of, one_rule

__all__ = ["ARMED", "FIXED", "FULL", "OTHER", "ZERO", "Machine", "carried", "delay_us"]

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
OTHER = replace(THREAD, tid=THREAD.tid + 1)


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


def delay_us(mode: Reception, epoll: bool) -> float:
    """From a packet to its answer, while the CPU has time."""
    return 60 + mode.timeout_ns / 2000


@dataclass
class Machine:
    """`offered` packets a second to queue 0 of the first CPU; with a second queue, twice the bytes
    to queue 1 of the second one. `epoll`: that of the server takes part in suspension; `owned`: the
    queues are the server's. `costs`: times what a packet should cost in a mode. `found`: what
    settings were before a daemon wrote them. `others`: the server's thread is known, and threads of
    others take what it and the queue leave of the CPU."""

    offered: float = 0.0
    epoll: bool = True
    owned: bool = True
    noise: float = 0.0
    seed: int = 1
    queues: int = 1
    others: bool = False
    view: NicView = ARMED
    costs: dict[Reception, float] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    found: dict[str, str] = field(default_factory=dict)
    now_ns: int = 10**12
    log: list[tuple[int, Log]] = field(default_factory=list)
    modes: list[Reception] = field(default_factory=list)  # of queue 0, by window
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
            known.owned = {at: Owned(("thread", 100 + at), 0) for at in range(self.queues)}
        self._packets, self._idle_ns, self._ran_ns = [0] * self.queues, [0] * self.queues, 0
        if self.others:
            self.used_by(THREAD)
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

    def used_by(self, thread: Thread) -> None:
        """What is known of the only flow of the queue; OTHER does nothing."""
        self.memory.table.put(flow(1, thread=thread, app_cpu=0, target_queue=0))

    def wants(self, wanted: Reception) -> None:
        """What the policy says of the NIC."""
        known = self.memory.nics["nic"]
        known.view = replace(known.view, reception=wanted)

    @property
    def mode(self) -> Reception:
        """What is set up on queue 0."""
        found = Reception.found(self.memory.nics["nic"].view.settings, 0)
        assert found is not None
        return found

    def look(self, seconds: float = 2.0, **changes: Any) -> list[str]:
        """The kinds of what is said in these seconds. `changes`: to what is counted."""
        before = len(self.log)
        for _ in range(int(seconds * 10**9 / LOOK_NS)):
            self.now_ns += LOOK_NS
            for queue in range(self.queues):
                self._pass_time(queue)
            counts = {("nic", queue): self._count(queue, changes) for queue in range(self.queues)}
            idle_ns = dict(enumerate(self._idle_ns))
            if self.others:
                idle_ns = dict.fromkeys(idle_ns, 0)
            ran_ns = {THREAD.tid: self._ran_ns, OTHER.tid: 0}
            time = CpuTime(self.now_ns, {}, {}, ran_ns, {}, idle_ns)
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

    def _pass_time(self, queue: int) -> None:
        mode = Reception.found(self.memory.nics["nic"].view.settings, queue) or INTERRUPT
        cost = self.costs.get(mode, 1.0) * (1 + self._random.gauss(0, self.noise))
        most = carried(mode, FULL, self.epoll) / cost
        pps = min(self.offered, most) * (1 + self._random.gauss(0, self.noise))
        share = min(1.0, _share(mode, pps, self.epoll) * cost) if pps else 0.0
        self._packets[queue] += int(pps * LOOK_NS / 10**9)
        self._idle_ns[queue] += int((1 - share) * LOOK_NS)
        if queue == 0:
            self._ran_ns += int(share * LOOK_NS)
            self.modes.append(mode)
            self.carried.append(pps)
            self.busy.append(share)

    def _count(self, queue: int, changes: Mapping[str, Any]) -> QueueCount:
        packets = self._packets[queue]
        return replace(QueueCount(queue, packets, packets * PACKET_BYTES * (queue + 1)), **changes)
