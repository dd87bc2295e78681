# SPDX-License-Identifier: GPL-2.0-or-later
"""Counters that a client makes rates of: what is counted, and when it was read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from atfnd.daemon.cpu_times import CpuTimeReader
from atfnd.engine import audit
from atfnd.engine.placement import steer
from atfnd.model import Queue, SocketUse
from tests.bed import a_bed
from tests.daemons import Row
from tests.engine.test_steer import memory, steered
from tests.labs import Lab
from tests.serve.asking import get
from tests.serve.published import Serving, flow, lab, serving, three_flows
from tests.values import NIC, RULE, seen
from tests.wait import until

__all__: list[str] = []


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path / "atfnd.sock", three_flows()) as running:
        yield running


def test_cpu_time(daemon: Serving) -> None:
    assert get(daemon, "/v1/cpu-time") == {
        "read_ns": 7 * 10**9,
        "cpus": [
            {"cpu": 0, "busy_ns": 5 * 10**9, "softirq_ns": 10**9},
            {"cpu": 1, "busy_ns": 10**9, "softirq_ns": 0},
        ],
        "napi_threads": [{"nic": "lab:lab", "queue": 0, "cpu": 0, "ran_ns": 2 * 10**9}],
    }


def test_bytes_are_as_old_as_the_audit_or_the_report(daemon: Serving) -> None:
    """An idle flow was read by the audit, one that was reported since has newer bytes."""

    def read_ns() -> list[int]:
        return [row["read_ns"] for row in get(daemon, "/v1/flows")["flows"]]

    def use() -> None:
        daemon.source.audited = 5_000
        daemon.source.table.put(flow(40_000)._replace(used_ns=9_000))
        daemon.source.table.put(flow(40_001)._replace(used_ns=4_000))

    daemon.do(use)
    assert read_ns()[:2] == [9_000, 5_000]


def test_a_flow_that_found_the_table_full_is_counted_too() -> None:
    known = memory(capacity=1)
    steered(known)
    assert steer.seen(seen(2, 1), NIC, RULE, known, 2) == ()
    (shown,) = known.table.overflowed.values()
    use = SocketUse(shown.cookie, shown.key, 1, None, None, shown.bytes + 700)
    audit.check_sockets([use], {"nic": NIC}, known, 3)
    (after,) = known.table.overflowed.values()
    assert (after.bytes, after.used_ns) == (shown.bytes + 700, 3)


def test_cpu_time_is_read_at_a_bounded_cost() -> None:
    """Of this process, as if it polled a queue."""
    polled = Queue(index=3, napi_id=8193, irq=None, pid=os.getpid(), cpu=1, threaded=True)
    me = replace(lab(), queues=(polled,))
    times = CpuTimeReader()
    first, (thread,) = times.shown([me])
    assert (thread.nic, thread.queue, thread.cpu) == (me.name, 3, 1)
    assert thread.ran_ns > 0
    while (again := times.shown([me]))[0] is first:
        pass
    assert again[0].at_ns - first.at_ns >= 99_000_000  # 0.1 s from begin to begin
    assert again[1][0].ran_ns >= thread.ran_ns
    assert all(again[0].busy_ns[cpu] >= busy_ns for cpu, busy_ns in first.busy_ns.items())


def test_the_running_daemon(shared_lab: Lab, tmp_path: Path) -> None:
    """What a flow carried by then, a queue was given, and its NAPI thread spent."""
    with a_bed(shared_lab, tmp_path, "bpf") as bed:
        bed.start()
        app = bed.apps.tcp()
        queue = bed.steered(app)["target_queue"]

        def counted() -> tuple[Row, Row, Row]:
            row = bed.daemon.flow(app.key)
            assert row is not None
            queues = bed.daemon.get("/v1/queues")["queues"]
            threads = bed.daemon.get("/v1/cpu-time")["napi_threads"]
            return row, queues[queue], next(each for each in threads if each["queue"] == queue)

        flow_then, queue_then, thread_then = counted()

        def went_on() -> bool:
            flow_now, queue_now, thread_now = counted()
            newer = (
                flow_now["read_ns"] > flow_then["read_ns"],
                queue_now["read_ns"] > queue_then["read_ns"],
            )
            more = (
                flow_now["bytes"] > flow_then["bytes"],
                queue_now["packets"] > queue_then["packets"],
                thread_now["ran_ns"] > thread_then["ran_ns"],
            )
            assert newer[0] or not more[0]
            return all((*newer, *more))

        until(went_on, "counters go on, and when they were read")
        assert queue_then["pid"] is not None
