# SPDX-License-Identifier: GPL-2.0-or-later
"""`bench waiting`: whose wait a wait for a lock is, and what is reported of waits."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from bench import plot, waiting
from bench.bed import lab_bed
from bench.netns import inode
from bench.waiting import Load, Run
from bench.waits import Waits, WaitTotals
from tests.wait import until

__all__: list[str] = []

NONE = WaitTotals(*(0,) * len(WaitTotals._fields))


@pytest.fixture(autouse=True)
def _pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot, "FOLDER", tmp_path)


@contextmanager
def locked_from_two_cpus(of: socket.socket) -> Iterator[None]:
    """Two processes lock the socket as often as they can."""

    def locked(cpu: int) -> None:
        os.sched_setaffinity(0, {cpu})
        while True:
            of.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    start = multiprocessing.get_context("fork").Process
    both = [start(target=locked, args=(cpu,)) for cpu in sorted(os.sched_getaffinity(0))[:2]]
    for each in both:
        each.start()
    try:
        yield
    finally:
        for each in both:
            each.kill()
            each.join()


def test_a_wait_is_a_sockets_if_it_is_for_the_lock_of_one_of_the_namespace() -> None:
    here = inode(None)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        closing(Waits(here)) as waits,
        closing(Waits(here + 1)) as elsewhere,
    ):
        near = socket.create_connection(listener.getsockname())
        far = listener.accept()[0]
        with near, far:
            far.sendall(b"x")
            assert near.recv(1) == b"x"
            with locked_from_two_cpus(near):
                until(lambda: waits.totals().socket_waits > 10, "the socket's lock is waited for")
        counted, others = waits.totals(), elsewhere.totals()
    assert counted.socket_ns > 0
    assert counted.bytes >= 1
    assert others.socket_waits == others.bytes == others.softirq_skbs == 0
    assert others.other_waits > 10  # the same waits, of no socket that counts there


def test_each_contender_is_counted_and_the_softirq_does_most_of_the_work() -> None:
    load = Load("waiting", (8,), 0.5, 1.0)
    measured = waiting.measure(1, lab_bed, load)
    found = {run.contender: run for run in measured["runs"]}
    assert found.keys() == {"rss", "rfs", "atfnd"}
    for run in found.values():
        assert run.counted.softirq_skbs > run.counted.backlog_skbs
        assert run.counted.bytes > 0
        assert run.counted.untracked == 0
        assert run.cpu_ns > 0
    said = {row.what for row in waiting.report(measured, load).rows}
    assert "2n = 8, processed by the thread" in said


def rounds(name: str, waited_ns: int, backlog: int = 0) -> list[Run]:
    counted = NONE._replace(
        socket_waits=waited_ns // 100, socket_ns=waited_ns, softirq_skbs=1000 - backlog,
        backlog_skbs=backlog, local_bytes=2_000_000_000, other_waits=3,
    )  # fmt: skip
    return [Run(40, name, 2.0, 10**9, counted)] * 6


def test_what_is_waited_is_per_gb_and_a_ratio_has_a_floor() -> None:
    runs = [*rounds("rss", 800_000, 20), *rounds("rfs", 400), *rounds("atfnd", 0)]
    report = waiting.report({"runs": runs, "notes": []}, waiting.LAB)
    values = {(row.what, row.contender): row.estimate.value for row in report.rows}
    assert values["2n = 40, waits for socket locks", "rss"] == 4000
    assert values["2n = 40, waited for socket locks", "rss"] == 400  # us per GB
    assert values["2n = 40, processed by the thread", "rss"] == 0.02
    assert values["2n = 40, read", "rss"] == 1000
    assert values["2n = 40, CPU", "rss"] == 0.5
    # 200 ns per GB and none are the same: both are below what a ratio can tell
    assert values["2n = 40, waited for socket locks", "atfnd / rss"] == 0.0025
    assert values["2n = 40, waited for socket locks", "atfnd / rfs"] == 1
    assert all(target.met for target in report.targets)


def test_a_kernel_that_reports_no_waits_is_not_taken_for_one_that_has_none() -> None:
    runs = [
        run._replace(counted=run.counted._replace(other_waits=0))
        for run in [*rounds("rss", 0, 20), *rounds("atfnd", 0)]
    ]
    report = waiting.report({"runs": runs, "notes": []}, waiting.SIMNIC)
    assert not any("locks" in row.what for row in report.rows)
    assert any("reports no waits" in note for note in report.notes)
    assert not any("locks" in target.what for target in report.targets)
