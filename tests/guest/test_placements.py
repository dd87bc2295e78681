# SPDX-License-Identifier: GPL-2.0-or-later
"""Placements on two sockets of two cores, each a node with one L3: simnic with a queue a CPU."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.applications import Application
from tests.bed import Bed, a_bed
from tests.daemons import policy
from tests.guest.arrivals import comes_to
from tests.guest.simlab import a_simlab
from tests.wait import until

RULES = """\
  - name: llc
    match: { ports: 24000 }
    placement: { near: llc, avoid: smt }
    order: immediate
  - name: node
    match: { ports: 24001 }
    placement: { near: node }
    order: immediate
  - name: fixed
    match: { ports: 24003 }
    placement: { cpus: [1] }
    order: immediate
  - name: protocol
    match: { ports: 24004 }
    placement: { dedicated: [3] }
    order: immediate
  - name: choice
    match: { ports: 24100-24199 }
    placement: { cpus: [1, 2] }
    order: immediate
"""
PORTS = itertools.count(24100)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with (
        a_simlab(queues=4, table=64) as lab,
        a_bed(lab, tmp_path_factory.mktemp("daemon"), "bpf", policy(RULES)) as made,
    ):
        made.start()
        yield made
        made.daemon.end()


@pytest.mark.parametrize("port", [24000, 24001], ids=["llc", "node"])
def test_it_goes_with_its_thread_from_socket_to_socket(bed: Bed, port: int) -> None:
    app = bed.apps.tcp(port=port)
    for own, near in ((3, 2), (1, 0), (0, 1)):  # one of the last two RSS has not right
        app.pin(own)
        comes_to(bed, app, near)
    if port == 24000:
        row = bed.row(app, lambda row: row["placed"] and row["app_cpu"] == 0, "is placed")
        assert (row["target_cpu"], row["rx_cpu"], row["fell_back"]) == (1, 1, None)
        answer = " ".join(bed.daemon.ctl("explain", f"cookie:{row['cookie']}").stdout.split())
        assert "Steered and verified: its packets arrive on CPU 1." in answer
        assert "under the same last-level cache as the application's CPU 0" in answer
    app.end()


@pytest.mark.parametrize(("port", "cpu"), [(24003, 1), (24004, 3)], ids=["cpus", "dedicated"])
def test_named_cpus_get_it_from_both_sockets(bed: Bed, port: int, cpu: int) -> None:
    app = bed.apps.tcp(port=port)
    for own in (0, 2):
        app.pin(own)
        comes_to(bed, app, cpu)
    app.end()


@contextmanager
def hogged(cpu: int) -> Iterator[None]:
    hog = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    os.sched_setaffinity(hog.pid, {cpu})
    try:
        yield
    finally:
        hog.kill()
        hog.wait()


def led(bed: Bed) -> set[int]:
    """The CPUs where two new flows are led whom RSS delivers elsewhere."""
    apps: list[Application] = []
    while len(apps) < 2:
        app = bed.apps.tcp(port=next(PORTS), by_rss=True)
        if app.cpu in (0, 3):
            apps.append(app)
        else:
            app.end()
    there = {bed.row(app, lambda row: row["placed"], "is placed")["target_cpu"] for app in apps}
    for app in apps:
        app.end()
    return there


def test_of_cpus_that_are_equally_good_a_busy_one_is_spared(bed: Bed) -> None:
    """Else two flows would go to one each."""
    with hogged(2):
        until(lambda: led(bed) == {1}, "CPU 2 is seen to be busy", 120)
