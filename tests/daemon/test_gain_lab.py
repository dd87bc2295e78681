# SPDX-License-Identifier: GPL-2.0-or-later
"""`atfnctl gain` with real servers on a lab NIC: one on the CPU of its packets, one on another, one
that wanders by a script. Their shares are known; the NIC is only looked at."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bed import Bed, a_bed
from tests.daemons import Daemon, Row, standing
from tests.labs import Lab
from tests.observe.observing import RIGHT, WRONG, Pair, directed, wanders_to
from tests.wait import until

SCRIPT = (RIGHT, WRONG, WRONG)  # a message on each, and again
SIZE = 1000


class Wanderer:
    """A thread that may run on any CPU. It goes where the script says, reads what has arrived, and
    notes the CPU it was on before and after. If these differ, it does not know where it read."""

    def __init__(self, pair: Pair) -> None:
        self._pair, self._end = pair, threading.Event()
        self.read, self.tid = Counter[tuple[int, int]](), 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        cpu_now = ctypes.CDLL(None).sched_getcpu
        self.tid = threading.get_native_id()
        sender, receiver = self._pair
        while not self._end.is_set():
            for cpu in SCRIPT:
                sender.send(bytes(SIZE))
                assert select.select([receiver], [], [], 60)[0]
                wanders_to(cpu)
                before = cpu_now()
                receiver.recv(SIZE, socket.MSG_DONTWAIT)
                self.read[before, cpu_now()] += SIZE

    def close(self) -> None:
        self._end.set()
        self._thread.join()

    def off(self) -> tuple[float, float]:
        """The least and the greatest share of its bytes that it may have read on WRONG."""
        total = self.read.total()
        return self.read[WRONG, WRONG] / total, 1 - self.read[RIGHT, RIGHT] / total


@contextmanager
def a_wanderer(lab: Lab) -> Iterator[Wanderer]:
    """All its packets arrive on RIGHT."""
    made = Wanderer(directed(lab, lab.udp_pair))
    try:
        until(lambda: len(made.read) > 1, "it wanders")
        yield made
    finally:
        made.close()


@pytest.fixture
def bed(lab: Lab, tmp_path: Path) -> Iterator[Bed]:
    with a_bed(lab, tmp_path, "bpf") as made:
        made.start(arm=False)
        yield made


def of_thread(gain: Row, tid: int) -> Row:
    rows: list[Row] = gain["threads"]
    [row] = [each for each in rows if each["tid"] == tid]
    return row


def test_it_says_of_each_server_what_is_known_of_it_and_leaves_the_nic_alone(
    lab: Lab, bed: Bed
) -> None:
    right, wrong = bed.apps.tcp(by_rss=True), bed.apps.tcp()
    with a_wanderer(lab) as wanderer:
        bed.row(wrong, lambda row: row["state"] == "observed", "is observed")
        before = standing(lab)
        gain = bed.daemon.get("/v1/gain?seconds=3")
    assert standing(lab) == before
    assert bed.daemon.events("insert", "queue-cpu", "setting") == []
    assert (gain["why_not"], gain["missed_bytes"]) == (None, 0)
    assert gain["seconds"] >= 3

    there, elsewhere = of_thread(gain, right.pid), of_thread(gain, wrong.pid)
    assert (there["off_cpu"], elsewhere["off_cpu"]) == (0, 1)
    for app, row in ((right, there), (wrong, elsewhere)):
        said = row["habit"], row["pinned_by"], row["home"], row["cpus"], row["allowed"]
        assert said == ("pinned", "affinity", "cpu", [app.cpu], 1)
        assert row["calls"] > 100

    row = of_thread(gain, wanderer.tid)
    least, most = wanderer.off()
    assert most - least < 0.05  # it knows where it read
    assert least - 0.02 <= row["off_cpu"] <= most + 0.02
    assert (row["habit"], row["pinned_by"], row["allowed"]) == ("wandering", None, 2)
    assert row["pid"] == os.getpid()

    [nic] = gain["nics"]
    threads = [there, elsewhere, row]
    assert nic["bytes"]["total"] == sum(each["bytes"]["total"] for each in threads)
    assert nic["off_cpu_bytes"]["pinned"] == elsewhere["bytes"]["total"]
    assert (nic["armed"], nic["method"]) == (False, "filters")
    assert nic["would_do"]["filters"] >= 1


def test_all_that_arrives_right_needs_no_arming(lab: Lab, bed: Bed) -> None:
    bed.apps.tcp(by_rss=True)
    until(lambda: bed.daemon.status()["locality"] == 1, "it is read")
    done = bed.daemon.ctl("gain", lab.nic.name, "--for", "1")
    assert (done.returncode, done.stderr) == (0, "")
    advice = f"{lab.nic.name}: Do not arm: 100% of the bytes are read where they arrive already."
    assert advice in done.stdout.splitlines()


def test_of_an_armed_nic_it_shows_what_steering_has_reached(bed: Bed) -> None:
    app = bed.apps.tcp()
    bed.daemon.order("arm", bed.lab.nic.name)
    bed.steered(app)

    def settled() -> bool:
        gain = bed.daemon.get("/v1/gain?seconds=1")
        return bool(gain["nics"][0]["off_cpu"] == 0 and gain["nics"][0]["verdict"] == "armed")

    until(settled, "all is read where it arrives", 30)


def test_who_asks_meanwhile_gets_the_same_look(bed: Bed) -> None:
    bed.apps.tcp()
    with ThreadPoolExecutor() as pool, bed.daemon.asking("/v1/gain?seconds=5"):
        asked = [pool.submit(bed.daemon.get, "/v1/gain?seconds=60") for _ in range(2)]
        answers = [each.result() for each in asked]
    assert answers[0] == answers[1]
    assert answers[0]["seconds"] < 60
    assert bed.daemon.get("/v1/gain?seconds=1")["seconds"] < 2  # and the next one is its own


def test_a_daemon_ends_in_the_midst_of_a_look(bed: Bed) -> None:
    bed.apps.tcp()
    with bed.daemon.asking("/v1/gain?seconds=60"):
        assert bed.daemon.end(signal.SIGTERM) == 0
    assert "Traceback" not in bed.daemon.said()
    assert "never retrieved" not in bed.daemon.said()


def test_under_sock_diag_it_is_not_measured(lab: Lab, tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    try:
        daemon.start("--nic", lab.nic.name, "--observer", "sock_diag")
        said = "the sock_diag observer does not see where packets are processed"
        assert daemon.get("/v1/gain?seconds=60")["why_not"] == said
        assert daemon.ctl("gain").stdout == f"not measured: {said}\n"
    finally:
        daemon.reap()
