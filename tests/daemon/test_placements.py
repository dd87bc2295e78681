# SPDX-License-Identifier: GPL-2.0-or-later
"""Flows that are to arrive on another CPU than their application's: the daemon on a lab NIC, both
observers, counted by bench/meter.py. Of two CPUs the other one is a core under the same cache."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.meter import FlowCount
from tests.applications import CPUS, Application, delivered
from tests.bed import Bed, a_bed
from tests.daemons import OBSERVERS, Row, policy
from tests.labs import Lab, a_lab
from tests.wait import until

FIRST, OTHER = CPUS[:2]
NEAR, IN_ORDER, FIXED, USUAL = map(itertools.count, (24000, 24200, 24400, 24600))  # local ports
RULES = f"""\
  - name: near
    match: {{ ports: 24000-24199 }}
    placement: {{ near: llc, avoid: smt }}
    order: immediate
  - name: in-order
    match: {{ ports: 24200-24399, min_bytes: 1KiB }}  # not from birth on, by the rule of its port
    placement: {{ near: llc, avoid: smt }}
  - name: fixed
    match: {{ ports: 24400-24599 }}
    placement: {{ cpus: [{FIRST}] }}
    order: immediate
"""
DEDICATED = RULES.replace("cpus", "dedicated")


@pytest.fixture(scope="module", params=OBSERVERS)
def bed(
    request: pytest.FixtureRequest, shared_lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("daemon")
    with a_bed(shared_lab, folder, request.param, policy(RULES)) as made:
        made.start()
        yield made


def placed(bed: Bed, app: Application, cpu: int) -> Row:
    """Its row, once a rule leads it to this CPU, and it is not told otherwise."""
    return bed.row(
        app,
        lambda row: (
            (row["state"], row["app_cpu"], row["target_cpu"]) == ("steered", app.cpu, cpu)
            and bed.cpu_of(row["target_queue"]) == cpu
            and row["fell_back"] is None
            and row["placed"] is not False
        ),
        f"is placed on CPU {cpu}",
    )


def away(bed: Bed, app: Application, segments: int = 100) -> None:
    """AssertionError unless it comes to be delivered off its application's core, and stays."""

    def next_ones(count: int) -> FlowCount:
        start, nothing = bed.meter.read(), FlowCount(0, 0, 0, app.cpu)

        def arrived() -> FlowCount | None:
            now = bed.meter.read().since(start).flows.get(app.key, nothing)
            return now if now.local_segments + now.remote_segments >= count else None

        found = until(arrived, f"{count} segments of {app.key}", 30)
        assert found is not None
        return found

    until(lambda: next_ones(20).local_segments == 0, f"{app.key} is delivered off {app.cpu}", 30)
    assert next_ones(segments).local_segments == 0


def another(cpu: int) -> int:
    return OTHER if cpu == FIRST else FIRST


def by_rss(bed: Bed, ports: Iterator[int], cpu: int | None = None) -> Application:
    """An application of a rule, on the CPU that RSS delivers it on: `cpu`, if one is asked for."""
    for _ in range(20):
        app = bed.apps.tcp(port=next(ports), by_rss=True)
        if cpu in (None, app.cpu):
            return app
        app.end()
    raise AssertionError(f"RSS delivers none of 20 flows on CPU {cpu}")


def test_a_flow_is_kept_off_its_applications_core(bed: Bed) -> None:
    app = by_rss(bed, NEAR)  # RSS delivers it where it is not to be
    row = placed(bed, app, another(app.cpu))
    assert "near llc, avoid smt: queue" in row["why"]
    away(bed, app)
    app.migrate()  # to where its packets arrive
    placed(bed, app, another(app.cpu))
    away(bed, app)
    app.end()


def test_one_that_rss_keeps_off_its_core_takes_no_rule(bed: Bed) -> None:
    right = bed.apps.tcp(port=next(NEAR))
    away(bed, right)
    wrong = by_rss(bed, NEAR)
    placed(bed, wrong, another(wrong.cpu))
    away(bed, right)
    assert (bed.daemon.flow(right.key), bed.rule(right)) == (None, None)
    for app in (right, wrong):
        app.end()


def test_a_fixed_cpu_stays_whatever_the_application_does(bed: Bed) -> None:
    app = by_rss(bed, FIXED, OTHER)
    before = placed(bed, app, FIRST)
    away(bed, app)
    app.migrate()
    after = placed(bed, app, FIRST)
    delivered(bed.meter, app)
    app.migrate()
    away(bed, app)
    assert (before["filter"], before["target_queue"]) == (after["filter"], after["target_queue"])
    changes = bed.daemon.events("insert", "rewrite")
    assert len([each for each in changes if each["flow"] == str(app.key)]) == 1
    app.end()


def test_in_order_it_is_moved_by_itself_and_its_queue_stays(tmp_path: Path) -> None:
    with a_lab(queues=2) as lab, a_bed(lab, tmp_path, "bpf", policy(RULES)) as bed:
        cpus = [queue.cpu for queue in lab.nic.queues()]
        bed.start()
        app = by_rss(bed, IN_ORDER)
        for _ in range(3):
            placed(bed, app, another(app.cpu))
            away(bed, app)
            move = bed.row(app, lambda row: row["move"], "was moved, it says how")["move"]
            assert (move["mechanism"], move["late_packets"]) == ("hold", 0)
            app.migrate()
        placed(bed, app, another(app.cpu))
        assert [queue.cpu for queue in lab.nic.queues()] == cpus


def test_a_dedicated_cpu_serves_its_flows_and_no_others(lab: Lab, tmp_path: Path) -> None:
    with a_bed(lab, tmp_path, "bpf", policy(DEDICATED, order="strict")) as bed:
        bed.start()
        big = by_rss(bed, FIXED, OTHER)
        placed(bed, big, FIRST)
        away(bed, big)
        usual = by_rss(bed, USUAL, FIRST)
        usual.pin(OTHER)
        row = placed(bed, usual, OTHER)
        usual.pin(FIRST)  # its queue does not come along
        said = f"near core: CPU {FIRST} is dedicated to another rule; left on queue "
        bed.row(usual, lambda row: (row["fell_back"] or "").startswith(said), "has no place there")
        assert bed.cpu_of(row["target_queue"]) == OTHER
        said = f"CPUs {FIRST} are dedicated, and applications use them: "
        assert any(said in f["what"] for f in bed.daemon.get("/v1/doctor")["findings"])
        near = by_rss(bed, NEAR, OTHER)
        row = bed.row(near, lambda row: row["fell_back"], "has fallen back")
        assert row["target_cpu"] == OTHER
        placed(bed, big, FIRST)
