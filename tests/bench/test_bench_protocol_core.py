# SPDX-License-Identifier: GPL-2.0-or-later
"""`bench protocol-core`: whose time is whose, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import plot, protocol_core
from bench import report as report_module
from bench.polling import INTERRUPT, dedicated
from bench.protocol_core import Case, Load, Run

__all__: list[str] = []

pytestmark = pytest.mark.usefixtures("own_affinity")

ALONE = Case("copy", 0, dedicated(100))
SAME = Case("copy", 1, INTERRUPT)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot, "FOLDER", tmp_path)
    monkeypatch.setattr(report_module, "FOLDER", tmp_path)


def test_messages_go_both_ways_and_only_a_dedicated_core_polls_for_nothing() -> None:
    cases = (SAME, ALONE, Case("discard", 0, dedicated(100)), Case("transmit", 0, INTERRUPT))
    load = Load((4096, 16384), 5e6, 4096, (10e6,), 0.3)
    runs = protocol_core.measure(1, load, cases)
    assert len(runs) == 4 * 3
    for run in runs:
        assert run.bytes_per_s > 0
        assert run.app_share > 0
        assert run.work_share > 0
        assert run.packets_per_poll >= 1
        if "dedicated" in run.case:
            assert run.empty_per_s > 0
    report = protocol_core.report(runs, load)
    assert any(row.what == "copy, 4 KiB, the application's CPU" for row in report.rows)


def run(case: Case, size: int, rate: float = 1e6, **values: Any) -> Run:
    usual = Run(case.name, size, rate, rate, 100 / size, 0.2, 0.1, 0.1, 0.8, 5, 100, 50, 1.0)
    return usual._replace(**values)


def kept(runs: list[Run]) -> dict[str, bool]:
    load = Load((1024, 4096), 1e6, 1024, (2e6, 4e6), 1.0)
    return {target.what: target.met for target in protocol_core.report(runs, load).targets}


def test_the_applications_cpu_falls_with_size_and_the_threads_does_not() -> None:
    names = [f"{ALONE.name}: slope of the application's CPU"]
    names += [f"{ALONE.name}: change of the thread's CPU"]
    names += ["copy, 1 KiB, the application's CPU, core / same core"]
    others = [
        run(each, 1024, rate, yielded_share=share)
        for each in (ALONE, SAME)
        for rate, share in ((2e6, 0.7), (4e6, 0.65))
    ]
    good = [run(case, size) for case in (ALONE, SAME) for size in (1024, 4096)]
    said = kept([*good, *others])
    assert all(said[name] for name in names)
    assert said[f"{ALONE.name}: yielded, a rate / the next smaller one"]
    flat = [
        run(ALONE, size, app_share=0.5, thread_share=size / 4096, yielded_share=0.6)
        for size in (1024, 4096)
    ]
    said = kept([*flat, *good[2:], *others])
    assert not any(said[name] for name in names)
    assert not said[f"{ALONE.name}: yielded, a rate / the next smaller one"]


def test_time_that_is_missing_is_said() -> None:
    runs = [run(case, size, sum_of_shares=0.9) for case in (ALONE, SAME) for size in (1024, 4096)]
    runs += [
        run(case, 1024, rate, sum_of_shares=0.9) for case in (ALONE, SAME) for rate in (2e6, 4e6)
    ]
    assert not kept(runs)["shares of the thread's time, sum - 1"]
