# SPDX-License-Identifier: GPL-2.0-or-later
"""The third paper's matrix: a flow's packets on one CPU, its application on another, for all pairs.

As its Figs. 2 and 3: for each pair of a CPU that polls the flow's queue and one that its receiver
is confined to, one TCP stream as fast as it goes, and one connection of requests and answers. No
daemon: one exact rule leads the flow to its queue. The sender, the wire and the peer's acks run
wherever the scheduler puts them, on the same CPUs: on a small machine they are part of what is
measured. `busy` is the time all CPUs were not idle (/proc/stat), everything included.

Then the same with a daemon whose policy says `placement: auto`, for each CPU of the application: a
stream is waited for until a trial has decided, or none began. What was chosen stands beside the
best and the worst cell of that CPU.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import psutil

from atfnd.model import Match
from bench import plot
from bench.bed import Bed, BedMaker, lab_bed
from bench.children import Child, child, program, until
from bench.connections import connections
from bench.daemon import Daemon, daemon
from bench.report import Report
from bench.stats import median

__all__ = ["Cell", "Chosen", "chosen", "measured", "report", "run"]

STREAM_PORT, ASK_PORT = 5301, 5302
SETTLE_S, SECONDS = 0.5, 2.0
NEVER = "near core: that was never full"
AUTO = """\
version: 1
about: Every TCP flow under auto.
flows:
  - name: auto
    match: {{ protocol: tcp }}
    placement: auto
    order: {order}
"""
LED_S = 180.0
DECIDE_S = 180.0  # for a core to be full three looks in a row, and a trial's two moves


class Traffic(NamedTuple):
    """A program of ours, its roles on the host and on the peer."""

    name: str
    roles: tuple[str, str]
    port: int


STREAM = Traffic("streams", ("receive", "send"), STREAM_PORT)
ASKED = Traffic("rr", ("serve", "drive"), ASK_PORT)


class Cell(NamedTuple):
    """One pair in one round."""

    flow_cpu: int
    app_cpu: int
    bytes_per_s: float
    bytes_per_busy_s: float
    p50_ns: int  # from request to answer
    p99_ns: int


class Chosen(NamedTuple):
    """What `auto` came to for a stream."""

    flow_cpu: int
    app_cpu: int
    why: str  # by what measurement
    cells: tuple[Cell, ...]  # its rounds; their flow_cpu: where its packets were led then


def run(rounds: int) -> Report:
    """`rounds` rounds of every pair, forwards and backwards in turn; then `auto`, as often."""
    cells = []
    with lab_bed() as bed:
        pairs = [(flow, app) for flow in range(len(bed.cpus)) for app in range(len(bed.cpus))]
        for turn in range(rounds):
            for queue, app in pairs[:: -1 if turn % 2 else 1]:
                cells.append(measured(bed, queue, bed.cpus[app]))
    autos = [chosen(cpu, rounds) for cpu in dict.fromkeys(bed.cpus)]
    return report(cells, autos)


def measured(bed: Bed, queue: int, app_cpu: int) -> Cell:
    """One pair: the stream, then the requests."""
    with _connected(bed, STREAM, app_cpu), _led(bed, queue):
        time.sleep(SETTLE_S)
        bytes_per_s, bytes_per_busy_s = _carried(bed)
    with _connected(bed, ASKED, app_cpu) as asking, _led(bed, queue):
        p50_ns, p99_ns = _took(asking)
    return Cell(bed.cpus[queue], app_cpu, bytes_per_s, bytes_per_busy_s, p50_ns, p99_ns)


def chosen(app_cpu: int, rounds: int, make: BedMaker = lab_bed) -> Chosen:
    """Where `auto` has the packets of an application on this CPU, and what it carries then: a
    stream, and then one that answers requests. Each has a NIC and a daemon of its own: queues that
    follow a thread would be missed by the other one, and filters outlive their daemon."""
    streams: list[tuple[int, float, float]] = []
    cells: list[Cell] = []
    with make() as bed, _auto(bed) as running, _connected(bed, STREAM, app_cpu):
        _led_to(running)
        _decided(running)
        for _ in range(rounds):
            streams.append((_led_to(running), *_carried(bed)))
        reported = [f"{each['what']}: {each['why']}" for each in _events(running)]
    with make() as bed, _auto(bed) as running:
        for flow_cpu, bytes_per_s, bytes_per_busy_s in streams:
            with _connected(bed, ASKED, app_cpu) as asking:
                _led_to(running)
                took_ns = _took(asking)
            cells.append(Cell(flow_cpu, app_cpu, bytes_per_s, bytes_per_busy_s, *took_ns))
    why = reported[-1] if reported else NEVER
    return Chosen(streams[-1][0], app_cpu, why, tuple(cells))


def _auto(bed: Bed) -> AbstractContextManager[Daemon]:
    return daemon(bed.nic, AUTO.format(order=bed.order))


def _decided(running: Daemon) -> None:
    """Wait until `auto` has come to an end with the stream: a trial was kept or taken back. On a
    core that is never full none begins."""
    end = time.monotonic() + DECIDE_S
    while time.monotonic() < end:
        if {"kept", "back"} & {each["kind"] for each in _events(running)}:
            return
        time.sleep(SETTLE_S)


def _events(running: Daemon) -> list[dict[str, Any]]:
    return [each for each in running.events() if each["kind"] in ("trial", "kept", "back")]


def _led_to(running: Daemon) -> int:
    """The CPU where the one flow there is is delivered, by a filter of its own or its port's."""

    def led() -> list[int]:
        rows = (row for row in running.flows() if not row["remote"].endswith(":*"))
        return [row["target_cpu"] for row in rows if row["state"] in ("steered", "port")]

    return int(until(led, "the flow is steered", LED_S)[0])


def _carried(bed: Bed) -> tuple[float, float]:
    """Bytes a second, and a busy second."""
    before, busy_s, began = _bytes(bed), _busy_s(), time.monotonic()
    time.sleep(SECONDS)
    carried, seconds = _bytes(bed) - before, time.monotonic() - began
    return carried / seconds, carried / max(_busy_s() - busy_s, 0.01)


def _took(asking: Child) -> tuple[int, int]:
    """From request to answer, p50 and p99, after a while."""
    time.sleep(SECONDS)
    p50_ns, p99_ns = json.loads(asking.stop().splitlines()[-1])["took_ns"]
    return p50_ns, p99_ns


@contextlib.contextmanager
def _connected(bed: Bed, traffic: Traffic, app_cpu: int) -> Iterator[Child]:
    """One connection to a receiver on `app_cpu`; yields its other end."""
    ours, theirs = (
        program(traffic.name, role, bed.address, traffic.port) for role in traffic.roles
    )
    with child(*ours, netns=bed.host, cpus=[app_cpu]) as receiver:
        receiver.said("ready")
        with child(*theirs, netns=bed.peer) as sender:
            sender.said("connected")
            yield sender


@contextlib.contextmanager
def _led(bed: Bed, queue: int) -> Iterator[None]:
    """A rule leads the one connection there is to this queue."""
    with bed.open() as nic:
        [key] = until(lambda: connections(bed), "it is accepted")
        location = nic.insert(Match.of(key), queue)
        try:
            yield
        finally:
            nic.delete(location)


def _bytes(bed: Bed) -> int:
    return sum(each.bytes for each in connections(bed).values())


def _busy_s() -> float:
    """Time that CPUs were not idle, all together, in steps of a tick."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait)


def report(cells: Sequence[Cell], autos: Sequence[Chosen] = ()) -> Report:
    """A row and a picture's cell for each pair: the median of its rounds. What `auto` chose beside
    the best and the worst cell of its application's CPU."""
    report = Report("matrix", "a flow's CPU against its application's, after the third paper")
    report.samples["cells"] = [each._asdict() for each in cells]
    report.samples["auto"] = [
        {**auto._asdict(), "cells": [each._asdict() for each in auto.cells]} for auto in autos
    ]
    report.notes += [f"auto, application on CPU {auto.app_cpu}: {auto.why}" for auto in autos]
    pairs: dict[tuple[int, int], list[Cell]] = {}
    for each in cells:
        pairs.setdefault((each.flow_cpu, each.app_cpu), []).append(each)
    cpus = sorted({flow for flow, _ in pairs})
    for field, what, unit, scale in (
        ("bytes_per_s", "throughput", "MB/s", 1e-6),
        ("bytes_per_busy_s", "carried in a busy second", "MB", 1e-6),
        ("p50_ns", "request to answer, p50", "us", 1e-3),
        ("p99_ns", "request to answer, p99", "us", 1e-3),
    ):
        values = {}
        for (flow, app), found in sorted(pairs.items()):
            at = f"packets on CPU {flow}, application on CPU {app}"
            estimate = median(getattr(each, field) * scale for each in found)
            values[flow, app] = report.add(what, at, unit, estimate).value
        for auto in autos:
            estimate = median(getattr(each, field) * scale for each in auto.cells)
            here = sorted(value for (_, app), value in values.items() if app == auto.app_cpu)
            best, worst = (here[0], here[-1]) if field.endswith("_ns") else (here[-1], here[0])
            at = f"auto on CPU {auto.flow_cpu}, application on CPU {auto.app_cpu}"
            report.add(what, f"{at}; cells: best {best:.3g}, worst {worst:.3g}", unit, estimate)
        plot.heat(
            f"matrix-{field.removesuffix('_ns').replace('_', '-')}",
            f"{what} ({unit})",
            ("the application's CPU", "the flow's CPU"),
            [str(cpu) for cpu in cpus],
            [[values[flow, app] for app in cpus] for flow in cpus],
        )
    return report
