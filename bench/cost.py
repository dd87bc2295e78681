# SPDX-License-Identifier: GPL-2.0-or-later
"""What the daemon itself takes: CPU (/proc/PID/task/*/schedstat, ns) and memory (USS, smaps).

Established sockets that are not steered: none, 1,000, 10,000, and as many as the machine takes in
OPEN_LIMIT_S or up to MOST, idle and with 1,000 connections/s of churn. Then the same sockets before
and after they are used, hence steered. What BPF programs do in the callers' calls is `overhead`'s
subject, not counted here.
"""

from __future__ import annotations

import contextlib
import json
import resource
import time
from collections.abc import Iterator

import psutil

from atfnd.observe.processes.cpu_time import ran_ns
from bench import plot
from bench.bed import Bed, lab_bed
from bench.children import child, program, until
from bench.daemon import Daemon, daemon, follow_tcp
from bench.report import Report, Target
from bench.stats import Estimate, median

__all__ = ["run"]

COUNTS = (0, 1_000, 10_000)
MOST = 100_000
OPEN_LIMIT_S = 120.0
PORT, CHURN_PORT, STEERED_PORT = 8000, 9000, 9100
PORTS_EACH = 4
CHURN_PER_S = 1000.0
WARM, STEERED = 1000, 3000
STEERED_REQUESTS_PER_S = 20_000
WINDOW_S = 2.0
IDLE_SHARE = 0.002
STEERED_BYTES, UNSTEERED_BYTES = 1024.0, 8.0


def cpu_ns(pid: int) -> int:
    """CPU time of every thread of a process, in ns; finer than stat's ticks."""
    return sum((ran_ns([pid]) or {}).values())


def memory_bytes(pid: int) -> int:
    """Memory that would be freed if the process ended (unique set size)."""
    return int(psutil.Process(pid).memory_full_info().uss)


def _cpu_shares(pid: int, windows: int) -> list[float]:
    shares = []
    for _ in range(windows):
        began, used = time.monotonic_ns(), cpu_ns(pid)
        time.sleep(WINDOW_S)
        shares.append((cpu_ns(pid) - used) / (time.monotonic_ns() - began))
    return shares


@contextlib.contextmanager
def established(bed: Bed, count: int) -> Iterator[tuple[int, str]]:
    """`count` connections through the NIC, in as many processes as the file limit asks for; yields
    how many there are and why not more."""
    each = resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 100
    opened, why, began = 0, "all open", time.monotonic()
    with contextlib.ExitStack() as stack:
        for number in range(-(-count // each)):
            port = PORT + number * PORTS_EACH
            left = OPEN_LIMIT_S - (time.monotonic() - began)
            accept = program("hold", "accept", bed.address, port, "--ports", PORTS_EACH)
            stack.enter_context(child(*accept, netns=bed.host)).said("ready")
            command = program("hold", "open", bed.address, port, "--ports", PORTS_EACH)
            command += ("--count", str(min(each, count - opened)), "--limit", str(max(1.0, left)))
            opener = stack.enter_context(child(*command, netns=bed.peer))
            opener.said("why", OPEN_LIMIT_S + 30)
            answer = json.loads(opener.text())
            opened += answer["open"]
            why = answer["why"]
            if why != "all open":
                break
        yield opened, why


@contextlib.contextmanager
def churning(bed: Bed) -> Iterator[None]:
    """Connections that open and close at CHURN_PER_S."""
    accept = program("hold", "accept", bed.address, CHURN_PORT, "--ports", PORTS_EACH)
    command = program("hold", "churn", bed.address, CHURN_PORT, "--ports", PORTS_EACH)
    with child(*accept, netns=bed.host) as server:
        server.said("ready")
        with child(*command, "--rate", str(CHURN_PER_S), netns=bed.peer) as client:
            client.said("ready")
            yield
            client.check()


def _steered(running: Daemon) -> int:
    return int(dict(running.status()["flows_by_state"]).get("steered", 0))


def _wait_for_steered(running: Daemon, flows: int) -> None:
    until(lambda: _steered(running) >= flows, f"{flows} flows are steered", 120)


def _unsteered(report: Report, count: int, rounds: int) -> tuple[int, Estimate, Estimate]:
    """One count of idle sockets; returns how many there were and the CPU shares."""
    with lab_bed() as bed, daemon(bed.nic) as running:
        pid = running.process.pid
        before = memory_bytes(pid)
        with established(bed, count) as (opened, why):
            what = f"{opened} sockets"
            time.sleep(WINDOW_S)
            idle = report.add(f"{what}, idle", "daemon", "core", median(_cpu_shares(pid, rounds)))
            memory = memory_bytes(pid)
            report.samples[what] = {"uss_before": before, "uss_idle": memory, "why": why}
            with churning(bed):
                busy = median(_cpu_shares(pid, rounds))
            report.add(f"{what}, {CHURN_PER_S:g} connections/s", "daemon", "core", busy)
            report.samples[what]["uss_after_churn"] = memory_bytes(pid)
            report.samples[what]["steered"] = _steered(running)
        report.add(f"{what}, memory", "daemon", "MiB", median([memory / 2**20]))
        if opened and why == "all open" and count == COUNTS[-1]:
            grown = (memory - before) / opened
            report.targets.append(Target(f"idle, {what}", idle.value, IDLE_SHARE, False, "core"))
            about = f"memory a flow that is not steered, {what}"
            report.targets.append(Target(about, grown, UNSTEERED_BYTES, False, "B"))
        if why != "all open":
            report.notes.append(f"{opened} of {count} sockets: {why}")
    return opened, idle, busy


def _per_steered_flow(report: Report) -> None:
    """Memory before and after STEERED flows became steered by being used. WARM flows come first:
    what they fill once (the event log, buffers) is no growth per flow. The order is `immediate`: in
    any other, one filter for the server's port serves all of them."""
    with (
        lab_bed() as bed,
        daemon(bed.nic, follow_tcp("immediate", "stay")) as running,
        contextlib.ExitStack() as stack,
    ):
        bed.deliver_all_to(1)  # the server runs where queue 0 is delivered
        serve = program("rr", "serve", bed.address, STEERED_PORT)
        stack.enter_context(child(*serve, netns=bed.host, cpus=[bed.cpus[0]])).said("ready")
        before = had = 0
        for wanted in (WARM, STEERED):
            before, had = memory_bytes(running.process.pid), _steered(running)
            drive = program("rr", "drive", bed.address, STEERED_PORT, "--connections", wanted)
            drive += ("--rate", str(STEERED_REQUESTS_PER_S))
            stack.enter_context(child(*drive, netns=bed.peer)).said("connected")
            _wait_for_steered(running, had + wanted)
            time.sleep(WINDOW_S)
        steered = _steered(running) - had
        grown = (memory_bytes(running.process.pid) - before) / steered
        report.samples["steered"] = {"flows": steered, "bytes_each": grown}
        report.add(f"memory a steered flow ({steered})", "daemon", "B", median([grown]))
        report.targets.append(Target("memory a steered flow", grown, STEERED_BYTES, False, "B"))


def run(rounds: int) -> Report:
    """`rounds` windows of CPU time at each count."""
    report = Report("cost", "CPU and memory of the daemon")
    report.notes.append(
        f"memory of unsteered flows: up to {UNSTEERED_BYTES:g} B each counts as none (page noise)"
    )
    groups, idle, busy = [], [], []
    for count in (*COUNTS, MOST):
        opened, quiet, churned = _unsteered(report, count, rounds)
        groups.append(f"{opened:,}")
        idle.append(quiet)
        busy.append(churned)
    _per_steered_flow(report)
    series = {"idle": idle, f"{CHURN_PER_S:g} connections/s": busy}
    plot.bars("cost", "CPU of the daemon, by sockets", "share of a core", groups, series)
    return report
