# SPDX-License-Identifier: GPL-2.0-or-later
"""`placement: auto` on a lab NIC: a full core is tried, and what was measured decides. Of two CPUs
`llc` is the other one.

An application that hardly ever sleeps, of a priority above the NAPI threads, starves the one on its
core: off it there is more to be had. One that they may interrupt loses, where the one on the other
core comes to be starved by a rival there."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.meter import FlowCount
from tests.applications import CPUS, Application, delivered
from tests.bed import Bed, a_bed
from tests.daemons import Row, policy
from tests.labs import Lab
from tests.wait import until

GAINS, LOSES = map(itertools.count, (24800, 24900))  # local ports
RULES = """\
  - name: gains
    match: { ports: 24800-24899 }
    placement: auto
    order: immediate
  - name: loses
    match: { ports: 24900-24999 }
    placement: auto
    order: immediate
"""
RIVAL = """
import os, signal, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(20))
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
while True:
    signal.sigwait({signal.SIGALRM})
    end = time.monotonic() + 0.008
    while time.monotonic() < end:
        pass
"""
TRIAL_S = 120  # after the last one, and where looks are rare: one a minute on a NIC
FIGURES = re.compile(
    r"([\d.]+) x the bytes a CPU-second, ([\d.]+) x the bytes a second and ([\d.]+) x the time a "
    r"byte of near core: near core [\d.]+ .?B/s at [\d.]+ .?B a CPU-second and [\d.e+]+ ns a byte, "
    r"near llc [\d.]+ .?B/s at [\d.]+ .?B a CPU-second and [\d.e+]+ ns a byte"
)


@pytest.fixture(scope="module")
def bed(shared_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("daemon")
    with a_bed(shared_lab, folder, "bpf", policy(RULES)) as made:
        name, usual = shared_lab.nic.name, ["env", "ATFND_PACE=1"]  # windows of two seconds
        made.daemon.start("--nic", name, "--arm", name, wrapped=usual)
        yield made


def busy(bed: Bed, ports: Iterator[int], *, starves: bool) -> Application:
    """It does not wait for the next request, so that its core is full, whatever else this machine
    does: it is of real-time priority, as the NAPI threads are (5 and 10)."""
    app = bed.apps.tcp(port=next(ports))
    app.talks.tell("load 16000")
    app.talks.tell("ask")
    app.host.tell("busy")
    app.host.tell("rest")
    for pid, priority in ((app.peer.process.pid, 1), (app.pid, 20 if starves else 1)):
        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(priority))
    os.sched_setaffinity(app.peer.process.pid, {cpu for cpu in CPUS if cpu != app.cpu})
    return app


@contextmanager
def rival(cpu: int) -> Iterator[None]:
    """A process that no NAPI thread of a host interrupts has four fifths of a CPU."""
    with subprocess.Popen([sys.executable, "-c", RIVAL, str(cpu)]) as process:
        try:
            yield
        finally:
            process.kill()


def events_of(bed: Bed, policy: str) -> list[Row]:
    return [each for each in bed.daemon.events("trial", "kept", "back") if each["rule"] == policy]


def ended(bed: Bed, policy: str) -> Row:
    """The event that a trial ends with."""

    def last() -> Row | None:
        return next((each for each in events_of(bed, policy) if each["kind"] != "trial"), None)

    found = until(last, f"a trial of {policy} ends", TRIAL_S)
    assert found is not None
    return found


def seen_off_its_core(bed: Bed, app: Application) -> None:
    """Twenty segments in a row came in elsewhere."""

    def next_ones() -> FlowCount:
        start, nothing = bed.meter.read(), FlowCount(0, 0, 0, app.cpu)

        def arrived() -> FlowCount | None:
            now = bed.meter.read().since(start).flows.get(app.key, nothing)
            return now if now.local_segments + now.remote_segments >= 20 else None

        found = until(arrived, f"20 segments of {app.key}", 30)
        assert found is not None
        return found

    until(lambda: next_ones().local_segments == 0, f"{app.key} is delivered off {app.cpu}", 30)


def explained(bed: Bed, app: Application) -> str:
    row = bed.row(app, lambda row: row["state"] == "steered", "is steered")
    return " ".join(bed.daemon.ctl("explain", f"cookie:{row['cookie']}").stdout.split())


@pytest.mark.timeout(300)
def test_a_full_core_is_tried_and_what_pays_is_kept_and_remembered(bed: Bed) -> None:
    app = busy(bed, GAINS, starves=True)
    bed.steered(app)
    delivered(bed.meter, app, segments=20)
    until(lambda: events_of(bed, "gains"), "a trial begins", TRIAL_S)
    seen_off_its_core(bed, app)
    kept = ended(bed, "gains")
    reported = events_of(bed, "gains")
    assert [(each["kind"], each["what"].split(": ")[1]) for each in reported] == [
        ("trial", "near core -> near llc"),
        ("trial", "near llc -> near core, to compare"),
        ("kept", "near core -> near llc"),
    ], reported
    assert {each["nic"] for each in reported} == {bed.lab.nic.name}
    assert re.match(rf"it takes \d+% of CPU {app.cpu}; it carries ", reported[0]["why"])
    for each in reported[1:]:
        figures = FIGURES.fullmatch(each["why"])
        assert figures is not None, each
        efficiency, rate, time = map(float, figures.groups())
        assert max(efficiency, rate) >= 1.24 or time <= 0.81  # told to two places
    seen_off_its_core(bed, app)
    assert "auto: near llc since" in explained(bed, app)
    printed = bed.daemon.ctl("events").stdout
    assert FIGURES.search(" ".join(printed.split())), printed
    app.end()
    bed.unknown_to_table(app)
    heir = busy(bed, GAINS, starves=True)
    seen_off_its_core(bed, heir)
    assert "auto: near llc since" in explained(bed, heir)
    assert events_of(bed, "gains")[-1]["seq"] == kept["seq"]
    heir.end()


@pytest.mark.timeout(400)
def test_what_does_not_pay_goes_back_and_waits(bed: Bed) -> None:
    """The trial before was a minute ago at least, on this NIC."""
    app = busy(bed, LOSES, starves=False)
    bed.steered(app)
    until(lambda: events_of(bed, "loses"), "a trial begins", TRIAL_S)
    with rival(next(cpu for cpu in CPUS if cpu != app.cpu)):
        back = ended(bed, "loses")
    (trial,) = (each for each in events_of(bed, "loses") if each["kind"] == "trial")
    first = next(iter(events_of(bed, "gains")), None)
    assert first is None or trial["at_ns"] - first["at_ns"] >= 60 * 10**9
    assert (back["kind"], back["what"].split(": ")[1]) == ("back", "near llc -> near core")
    figures = FIGURES.fullmatch(back["why"])
    assert figures is not None, back
    delivered(bed.meter, app)
    said = explained(bed, app)
    assert re.search(
        r"auto: near core since .* x the bytes .* near llc is not tried again within \d+ s", said
    ), said
    app.end()
