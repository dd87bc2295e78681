# SPDX-License-Identifier: GPL-2.0-or-later
"""`bench unpinned`: what it reads of a run on a lab NIC, and what it judges by."""

from __future__ import annotations

from functools import partial

from bench import unpinned
from bench.bed import lab_bed
from bench.unpinned import Case, Load, Run

__all__: list[str] = []

FEW = Case(2, 2, 400.0, pinned=True)


def test_requests_are_counted_once_and_all_that_serves_them_takes_cpu() -> None:
    measured = unpinned.measure(1, lab_bed, Load("unpinned", (FEW,), 1.0, 1.0))
    found = {run.contender: run for run in measured["runs"]}
    assert found.keys() == {"rss", "rfs", "atfnd"}
    for run in found.values():
        assert 200 < run.requests < 800
        assert run.cpu_ns > 0
        assert run.migrations == 0  # they are pinned
    assert found["atfnd"].read_locality > found["rss"].read_locality / 2
    assert found["rss"].daemon == found["rfs"].daemon == 0 < found["atfnd"].daemon
    assert unpinned.report(measured, unpinned.LAB).name == "unpinned"


def test_packets_that_come_by_interrupts_find_a_thread_that_stays() -> None:
    load = unpinned.INTERRUPTS._replace(cases=(FEW,), settle_s=1.0, window_s=1.0)
    measured = unpinned.measure(1, partial(lab_bed, interrupts=True), load)
    assert {run.contender for run in measured["runs"]} == {"rss", "rfs", "atfnd"}
    report = unpinned.report(measured, load)
    assert report.notes == ["packets come by interrupts"]
    assert not any("CPU" in row.what for row in report.rows)


def test_it_is_judged_by_the_better_rival_in_each_measure() -> None:
    rss = Run(FEW.name, "rss", 0.5, 100.0, 50.0, 0.0, 0.0, 0.0)
    rfs = rss._replace(contender="rfs", requests=90.0, cpu_ns=40.0)
    for requests, cpu_ns, daemon, met in (
        (98.0, 40.8, 0.01, [True, True, True]),
        (97.0, 41.0, 0.02, [False, False, False]),
    ):
        ours = rss._replace(contender="atfnd", requests=requests, cpu_ns=cpu_ns, daemon=daemon)
        report = unpinned.report({"runs": [rss, rfs, ours], "notes": []}, unpinned.LAB)
        assert [target.met for target in report.targets] == met
        names = [target.what.rsplit(", ", 1)[-1] for target in report.targets[:2]]
        assert names == ["atfnd / rss", "atfnd / rfs"]


def test_what_is_emulated_is_judged_by_shares_alone() -> None:
    rss = Run(FEW.name, "rss", 0.3, 300.0, 1e6, 0.0, 1.0, 0.0)
    rfs = rss._replace(contender="rfs", read_locality=0.98)
    ours = rss._replace(contender="atfnd", read_locality=0.94, cpu_ns=9e9, daemon=0.5)
    report = unpinned.report({"runs": [rss, rfs, ours], "notes": []}, unpinned.SIMNIC)
    assert [(target.reached, target.met) for target in report.targets] == [(0.94, False)]
    assert not any("CPU" in row.what for row in report.rows)
    better = ours._replace(read_locality=0.96)
    assert (
        unpinned.report({"runs": [rss, rfs, better], "notes": []}, unpinned.SIMNIC).targets[0].met
    )
