# SPDX-License-Identifier: GPL-2.0-or-later
"""What the API costs the daemon's loop: how late an event's callback is while clients dump the
whole Flow-to-Core table of FLOWS flows in a tight loop.

The server is the daemon's own, on a loop of its own; what it shows is that of the tests of the API
(tests/serve/published.py): there is no NIC, and flows are made up. Events come through a pipe from
another process, about one a millisecond, with the time they were written; late is when their
callback runs. Clients, that process and the loop share the machine's CPUs, as they would.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from atfnd.engine.table.flow_table import FlowTable
from atfnd.model import FlowState
from bench.children import child, program
from bench.report import Report
from bench.stats import median, quantile
from tests.serve.published import Published, serving
from tests.serve.shown import flow, key

__all__ = ["CLIENTS", "report", "run"]

FLOWS = 100_000
WINDOW_S = 4.0
CLIENTS: dict[str, tuple[str, ...]] = {
    "nobody asks": (),
    "one, stream": ("stream",),
    "one, pages": ("pages",),
    "eight, stream": ("stream",) * 8,
}
P99_MS = 1.0  # a tenth of what a reaction may take at p99 (bench `reaction`)
TICKING = """
import os, random, time
while True:
    time.sleep(random.uniform(0.0005, 0.0015))
    os.write(1, time.monotonic_ns().to_bytes(8, "little"))
"""


def shown(flows: int) -> Published:
    """So many steered flows."""
    source = Published()
    source.table = FlowTable(flows)
    for n in range(flows):
        remote = bytes([10, n >> 16 & 255, n >> 8 & 255, n & 255])
        entry = flow(443, FlowState.STEERED)
        source.table.put(entry._replace(key=key(443)._replace(remote=remote), location=n))
    return source


def dumped(
    path: Path, heard: list[int], how: tuple[str, ...], window_s: float
) -> tuple[list[int], int]:
    """Lateness of the events of one window, and how many flows the clients got."""
    with ExitStack() as stack:
        clients = [stack.enter_context(child(*program("dump", each, str(path)))) for each in how]
        for client in clients:
            client.said("ready")
        heard.clear()
        time.sleep(window_s)
        return list(heard), sum(client.result() for client in clients)


def run(rounds: int, flows: int = FLOWS, window_s: float = WINDOW_S) -> Report:
    """`rounds` rounds, contenders in turn."""
    late: dict[str, list[list[int]]] = {name: [] for name in CLIENTS}
    rates: dict[str, list[float]] = {name: [] for name in CLIENTS}
    heard: list[int] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder) / "atfnd.sock", shown(flows)) as daemon,
        subprocess.Popen((sys.executable, "-c", TICKING), stdout=subprocess.PIPE) as ticks,
    ):
        assert ticks.stdout is not None
        events = ticks.stdout.fileno()

        def hear() -> None:
            now_ns, data = time.monotonic_ns(), os.read(events, 1 << 16)
            written = (data[at : at + 8] for at in range(0, len(data), 8))
            heard.extend(now_ns - int.from_bytes(each, "little") for each in written)

        try:
            daemon.do(lambda: asyncio.get_running_loop().add_reader(events, hear))
            for _ in range(rounds):
                for name, how in CLIENTS.items():
                    found, got = dumped(daemon.socket, heard, how, window_s)
                    late[name].append(found)
                    rates[name].append(got / window_s)
            daemon.do(lambda: asyncio.get_running_loop().remove_reader(events))
        finally:
            ticks.kill()
    return report(flows, late, rates)


def report(flows: int, late: dict[str, list[list[int]]], rates: dict[str, list[float]]) -> Report:
    """Quantiles of each round; their medians over rounds."""
    report = Report("serving", f"lateness of the loop while clients dump {flows:,} flows")
    for name, windows in late.items():
        for q, label in ((0.5, "p50"), (0.99, "p99"), (1.0, "worst")):
            each = [quantile(window, q).value / 1e6 for window in windows]
            found = report.add(f"events late, {label}", name, "ms", median(each))
            if label == "p99" and CLIENTS[name]:
                report.at_most(f"events late, p99, {name}", found.value, P99_MS, "ms")
        report.add("flows dumped", name, "1/s", median(rates[name]))
    report.samples = {"late_ns": late, "flows_per_s": rates}
    return report
