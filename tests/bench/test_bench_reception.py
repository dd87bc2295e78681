# SPDX-License-Identifier: GPL-2.0-or-later
"""`bench reception`: each mode is in force while it is measured, and gone afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import plot, reception
from bench import report as report_module
from bench.polling import INTERRUPT, Polling, dedicated, deferred, suspended
from bench.reception import Load, Measured, Run

__all__: list[str] = []

pytestmark = pytest.mark.usefixtures("own_affinity")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot, "FOLDER", tmp_path)
    monkeypatch.setattr(report_module, "FOLDER", tmp_path)


def serves(modes: tuple[Polling, ...]) -> set[str]:
    """The kinds of traffic whose server polled much itself, which is by suspension alone."""
    measured = reception.measure(1, Load((0.0, 1.0), 0.2, 0.4), modes)
    assert measured.undone
    found = {(run.kind, run.mode, run.load): run for run in measured.runs}
    assert len(found) == 2 * 3 * 2
    polled = set()
    for (kind, mode, load), run in found.items():
        assert 0 <= run.napi_share + run.server_share <= 2
        if load == 0:
            assert run.p50_ns is None
            continue
        assert run.per_s > 0
        assert (run.p50_ns is None) == (kind == "stream")
        # a softirq of another device may interrupt the server, and is then a poll of its
        if run.by_server > 0.01:
            assert mode == "suspended 200 us"
            polled.add(kind)
    assert found["stream", "dedicated 100 us", 1.0].wakes_per_s > 0
    return polled


def test_each_mode_serves_and_only_suspension_has_the_server_poll() -> None:
    """The timer may come before the server and stay first for a run (docs/internals/bench.md). So
    each kind of traffic has three runs at most."""
    modes, polled = (INTERRUPT, dedicated(100, 0.1), suspended(200)), set[str]()
    for _ in range(3):
        polled |= serves(modes)
        if polled == {"requests", "stream"}:
            return
    assert polled == {"requests", "stream"}


def run(mode: str, load: float, kind: str = "requests", **values: Any) -> Run:
    usual = Run(kind, mode, load, 1000.0, 100_000, 300_000, 1000.0, 0.1, 0.2, 0.0, 0.0)
    return usual._replace(**values)


def kept(runs: list[Run], undone: bool = True) -> dict[str, bool]:
    report = reception.report(Measured(runs, undone, "Numerical result out of range"))
    assert any("Numerical result out of range" in note for note in report.notes)
    return {target.what: target.met for target in report.targets}


def test_a_deferred_queue_is_held_to_its_timeout() -> None:
    mode = deferred(20).name
    said = kept(
        [
            *(run("interrupt", load) for load in (0.0, 0.2, 1.0)),
            run(mode, 0.0, wakes_per_s=0),
            run(mode, 0.2, wakes_per_s=50_000, p50_ns=119_000),
            run(mode, 1.0, wakes_per_s=50_001, p50_ns=900_000),
        ]
    )
    assert not said["2: requests, most wakes, deferred 20 us"]
    # at capacity, delay is that of who asks again
    assert said["2: requests at 20%, p50 beside interrupt's, deferred 20 us"]
    assert "2: requests at 100%, p50 beside interrupt's, deferred 20 us" not in said
    assert not said["1: requests, idle, wakes, interrupt"]


def test_suspension_is_held_against_interrupts_of_its_round() -> None:
    mode = suspended(20).name
    calm = [run("interrupt", 0.2), run("interrupt", 1.0), run(mode, 0.2, server_share=0.26)]
    said = kept([*calm, run(mode, 1.0, wakes_per_s=380, per_s=2000, p99_ns=299_000)])
    assert all(met for what, met in said.items() if what.startswith("3: "))
    said = kept([*calm, run(mode, 1.0, wakes_per_s=210, per_s=990, p99_ns=301_000)])
    assert [what for what, met in said.items() if what.startswith("3: ") and met] == [
        "3: CPU at 20%, suspended 20 us / interrupt"
    ]


def test_a_protocol_core_polls_alike_at_any_load() -> None:
    mode = dedicated(100).name
    loads = (0.2, 0.5, 1.0)
    calm = [run("interrupt", load) for load in loads]
    grows = [
        run(mode, load, wakes_per_s=8000 + 1000 * load, napi_share=load / 10) for load in loads
    ]
    said = kept([*calm, *grows], undone=False)
    assert all(met for what, met in said.items() if what.startswith("4: "))
    assert not said["5: values of the NAPI as before"]
    falls = [
        run(mode, load, wakes_per_s=8000 * load, napi_share=share, server_share=0.3)
        for load, share in zip(loads, (0.1, 0.2, 0.19), strict=True)
    ]
    said = kept([*calm, *falls])
    assert not any(met for what, met in said.items() if what.startswith("4: "))
