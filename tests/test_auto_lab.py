# SPDX-License-Identifier: GPL-2.0-or-later
"""`placement: auto` on a lab NIC: a busy application is tried off its core, and what follows is
what was measured, whatever that is on this machine. Of two CPUs `llc` is the other one."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

from bench.meter import FlowCount
from tests.applications import Application, delivered
from tests.bed import Bed, a_bed
from tests.daemons import OBSERVERS, Row, policy
from tests.labs import Lab
from tests.wait import until

__all__: list[str] = []

TRIED, USUAL = map(itertools.count, (24800, 24900))  # local ports
RULES = """\
  - name: tried
    match: { ports: 24800-24899 }
    placement: auto
    order: immediate
"""
MARGIN = 1.25  # atfnd.decide.trial.Terms: of the product of both gains
TRIAL_S = 90


@pytest.fixture(scope="module", params=OBSERVERS)
def bed(
    request: pytest.FixtureRequest, shared_lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("daemon")
    with a_bed(shared_lab, folder, request.param, policy(RULES)) as made:
        made.start()
        yield made


def busy(bed: Bed) -> Application:
    """It never waits, so that its core is full, and it carries megabytes a second."""
    app = bed.apps.tcp(port=next(TRIED))
    app.talks.tell("load 16000")
    app.host.tell("busy")
    return app


def events_of(bed: Bed) -> list[Row]:
    return bed.daemon.events("trial", "kept", "back")


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


@pytest.mark.timeout(300)
def test_a_full_core_is_tried_once_and_the_measurement_decides(bed: Bed) -> None:
    app = busy(bed)
    bed.steered(app)
    until(lambda: events_of(bed), "a trial begins", TRIAL_S)
    seen_off_its_core(bed, app)
    last = until(
        lambda: next((e for e in events_of(bed) if e["kind"] != "trial"), None),
        "the trial ends",
        TRIAL_S,
    )
    assert last is not None
    first = events_of(bed)[0]
    assert (first["kind"], first["policy"], first["nic"]) == ("trial", "tried", bed.lab.nic.name)
    assert re.match(
        rf"softirq and its threads take \d+% of CPU {app.cpu}; it carries ", first["why"]
    )
    figures = re.match(r"([\d.]+) x the bytes a CPU-second and ([\d.]+) x the bytes a", last["why"])
    kept = last["kind"] == "kept"
    if figures is not None:
        gain = float(figures[1]) * float(figures[2])
        assert gain >= MARGIN - 0.05 if kept else gain <= MARGIN + 0.05  # it is told to 2 places
    else:
        assert (kept, last["why"][:6]) == (False, "void: ")
    row = bed.row(
        app, lambda row: (row["target_cpu"] != app.cpu) is kept, f"is where {last['kind']} has it"
    )
    if kept:
        seen_off_its_core(bed, app)
    else:
        delivered(bed.meter, app)
    told = " ".join(bed.daemon.ctl("explain", f"cookie:{row['cookie']}").stdout.split())
    assert ("auto: llc since" if kept else "auto: core") in told
    app.end()


def test_other_flows_are_nobodys_business(bed: Bed) -> None:
    usual = bed.apps.tcp(port=next(USUAL))
    row = bed.steered(usual)
    told = bed.daemon.ctl("explain", f"cookie:{row['cookie']}").stdout
    assert "auto" not in told
    delivered(bed.meter, usual)
    usual.end()
