# SPDX-License-Identifier: GPL-2.0-or-later
"""What the API costs the daemon's loop: how late an event's callback is while clients dump the
whole Flow-to-Core table of FLOWS flows in a tight loop.

The server and what it shows are the daemon's own (`serve`, `Reporter`), on a loop of their own;
there is no NIC, and flows are made up. Events come through a pipe from another process, about one
a millisecond, with the time they were written; late is when their callback runs. Clients, that
process and the loop share the machine's CPUs, as they would.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

from atfnd.daemon.changes import ChangeLog
from atfnd.daemon.in_force import InForce
from atfnd.daemon.reporter import Reporter
from atfnd.engine.engine import Engine
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    Flow,
    FlowKey,
    FlowRule,
    FlowState,
    Migrant,
    Mode,
    Placement,
    Policy,
    Protocol,
    Thread,
)
from atfnd.model.reason import Code
from atfnd.observe import Observer
from atfnd.observe.machine.topology import CpuWatch
from atfnd.serve import Source
from atfnd.serve.api.http import serve
from atfnd.serve.log.event_log import EventLog
from bench.children import child, program
from bench.report import Report
from bench.stats import Estimate, median, quantile

__all__ = ["FLOWS", "report", "run"]

FLOWS = 100_000
WINDOW_S = 4.0
CLIENTS: dict[str, tuple[str, ...]] = {
    "nobody asks": (),
    "one, stream": ("stream",),
    "one, pages": ("pages",),
    "eight, stream": ("stream",) * 8,
}
P99_MS = 1.0  # a tenth of what a reaction may take at p99 (bench `reaction`)


class _NoObserver:
    """Nothing is observed."""

    name = "none"

    def lost(self) -> int:
        return 0


class _Shown:
    """What `daemon.served.Served` shows, without a daemon that takes orders."""

    audited_ns = 0

    def __init__(self, reporter: Reporter, policy: Policy) -> None:
        self._reporter, self.policy = reporter, policy

    def __getattr__(self, name: str) -> object:
        return getattr(self._reporter, name)


def shown(flows: int) -> Source:
    """A daemon's state with so many steered flows."""
    rule = FlowRule(
        name="rest", source="a bench", protocols=None, ports=None, local=None, remote=None,
        processes=None, min_bytes=0, min_age_ns=0, placement=Placement.CORE, order=Mode.STRICT,
        owner=Migrant.THREAD, dwell_ns=0, t_delete_ns=1 << 60,
    )  # fmt: skip
    policy = Policy((), (rule,), "auto", flows, 10_000_000, ())
    engine = Engine(Memory.of(policy))
    thread = Thread(4121, 4120, "nginx", None)
    now_ns = time.monotonic_ns()
    for n in range(flows):
        remote = bytes([10, n >> 16 & 255, n >> 8 & 255, n & 255])
        key = FlowKey(Protocol.TCP, bytes([10, 0, 0, 2]), 443, remote, 1024 + n % 60_000)
        flow = Flow(
            key=key, cookie=n, nic="eth0", state=FlowState.STEERED, app_cpu=n % 8,
            thread=thread, target_queue=n % 8, target_cpu=n % 8, location=n, rx_queue=n % 8,
            rx_cpu=n % 8, bytes=n * 1500, used_ns=now_ns, moved_ns=now_ns, rule_name="rest",
            why=Code.KERNEL("same core as the application"),
        )  # fmt: skip
        engine.memory.table.put(flow)
    in_force = InForce(policy)
    changes = ChangeLog(EventLog(), {}, in_force)
    observer = cast(Observer, _NoObserver())
    reporter = Reporter(engine, {}, observer, "a bench", in_force, changes, CpuWatch().read)
    return cast(Source, _Shown(reporter, policy))


class Loop:
    """A served daemon's state, and how late its events are, in ns."""

    def __init__(self) -> None:
        self.late_ns: list[int] = []
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="loop")

    def hear(self, events: int) -> None:
        """Events come through this descriptor from now on."""
        self.loop.call_soon_threadsafe(self.loop.add_reader, events, self._read, events)

    def _read(self, events: int) -> None:
        now_ns, data = time.monotonic_ns(), os.read(events, 1 << 16)
        for at in range(0, len(data), 8):
            self.late_ns.append(now_ns - int.from_bytes(data[at : at + 8], "little"))

    async def _serve(self, path: Path, flows: int) -> None:
        self._server = await serve(shown(flows), path)

    def start(self, path: Path, flows: int) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(path, flows), self.loop).result(120)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(), self.loop).result(30)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(30)
        self.loop.close()


@contextmanager
def _ticking() -> Iterator[int]:
    """A descriptor through which the times come."""
    words = program("ticks")
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as ticks:
        assert ticks.stdout is not None
        os.set_blocking(ticks.stdout.fileno(), False)
        try:
            yield ticks.stdout.fileno()
        finally:
            ticks.kill()


def measured(
    path: Path, loop: Loop, how: tuple[str, ...], window_s: float
) -> tuple[list[int], int]:
    """Lateness of the events of one window, and how many flows the clients got."""
    with ExitStack() as stack:
        clients = [stack.enter_context(child(*program("dump", each, str(path)))) for each in how]
        for client in clients:
            client.said("ready")
        loop.late_ns.clear()
        time.sleep(window_s)
        late = list(loop.late_ns)
        got = sum(client.result()["lines"] for client in clients)
    return late, got


def run(rounds: int, flows: int = FLOWS, window_s: float = WINDOW_S) -> Report:
    """`rounds` rounds, contenders in turn."""
    late: dict[str, list[list[int]]] = {name: [] for name in CLIENTS}
    rates: dict[str, list[float]] = {name: [] for name in CLIENTS}
    with tempfile.TemporaryDirectory() as folder:
        loop, path = Loop(), Path(folder) / "atfnd.sock"
        loop.start(path, flows)
        try:
            with _ticking() as events:
                loop.hear(events)
                for _ in range(rounds):
                    for name, how in CLIENTS.items():
                        found, got = measured(path, loop, how, window_s)
                        late[name].append(found)
                        rates[name].append(got / window_s)
        finally:
            loop.stop()
    return report(flows, late, rates)


def report(flows: int, late: dict[str, list[list[int]]], rates: dict[str, list[float]]) -> Report:
    """Quantiles of each round; their medians over rounds."""
    report = Report("serving", f"lateness of the loop while clients dump {flows:,} flows")
    tails: list[Estimate] = []
    for name, windows in late.items():
        for q, label in ((0.5, "p50"), (0.99, "p99"), (1.0, "worst")):
            each = [quantile(window, q).value / 1e6 for window in windows]
            found = report.add(f"events late, {label}", name, "ms", median(each))
            if label == "p99":
                tails.append(found)
                if CLIENTS[name]:
                    what = f"events late, p99, {name}"
                    report.at_most(what, found.value, P99_MS, "ms")
        report.add("flows dumped", name, "1/s", median(rates[name]))
    report.samples = {"late_p99_ms": [tail._asdict() for tail in tails], "flows_per_s": rates}
    return report
