# SPDX-License-Identifier: GPL-2.0-or-later
"""`bench applications`: a cell with real servers on a lab NIC, and what its table says of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from atfnd.errors import OperatorError
from bench import applications
from bench.applications import Wanted, cells
from bench.applications_report import Run, Verdict, judged, report

__all__: list[str] = []

LIGHT, FULL = "redis × 4, pinned, light", "redis × 4, pinned, saturated"
RUN = Run(0, LIGHT, "rss", 100.0, 50e3, 100e3, 1000.0, 0.0, 0.0, 2.0, 0.5, 0, 0.0)


def test_a_cell_with_a_real_server(tmp_path: Path) -> None:
    wanted = Wanted(1, (LIGHT,), window_s=1.0, interrupts=True, warm_s=1.0)
    measured = applications.measure(wanted, tmp_path)
    found = {run.contender: run for run in measured["runs"]}
    assert list(found) == ["rss", "rfs", "atfnd", "static"]
    rates = [run.per_s for run in found.values()]
    assert min(rates) > 0.5 * max(rates)  # the same is asked of all
    for run in found.values():
        assert run.cpu_ns > 0
        assert run.p99_ns is not None
        assert run.p50_ns is not None
        assert run.p99_ns >= run.p50_ns > 0
        assert run.switches > 0
        assert run.lost == 0
    assert found["static"].read_locality == 1  # filter and server are on one CPU
    assert found["rss"].daemon == found["static"].daemon == 0 < found["atfnd"].daemon
    assert "packets come by interrupts" in measured["notes"][0]
    assert report(measured).name == "applications-interrupts"

    resumed = applications.measure(wanted._replace(resume=True), tmp_path)
    assert resumed["runs"] == measured["runs"]  # nothing was measured again


def test_streams_and_a_server_that_forks(tmp_path: Path) -> None:
    wanted = Wanted(1, ("iperf3-tcp × 1, pinned, satur", "postgresql × 4, pinned, satur"), 1.0)
    runs = applications.measure(wanted, tmp_path)["runs"]
    of_each = [[run.contender for run in runs if run.cell.startswith(n)] for n in ("post", "ip")]
    begins_anew = ["rfs", "atfnd", "static", "rss"]  # another one begins with each cell
    assert of_each == [["rss", "rfs", "atfnd"], begins_anew]
    assert all(run.per_s > 0 for run in runs)
    assert {run.p99_ns is None for run in runs if "iperf3" in run.cell} == {True}


def of(contender: str, measure: str, *ratios: float) -> list[Run]:
    """A round for each ratio, to RUN, of the measure."""
    changed = RUN._asdict() | {"contender": contender}
    return [
        Run(**(changed | {"turn": turn, measure: changed[measure] * ratio}))
        for turn, ratio in enumerate(ratios)
    ]


@pytest.mark.parametrize(
    ("measure", "ours", "verdict"),
    [
        ("per_s", (0.9,) * 6, Verdict.LOST),
        ("per_s", (0.9, 0.9, 0.9, 0.9, 0.9, 1.0), Verdict.OPEN),
        ("per_s", (0.99,) * 6, Verdict.KEPT),
        ("per_s", (2.0,) * 6, Verdict.KEPT),  # the goal asks for less CPU, or a better p99
        ("p99_ns", (1.06,) * 6, Verdict.LOST),
        ("p99_ns", (1.04,) * 6, Verdict.KEPT),
        ("p99_ns", (0.9,) * 6, Verdict.BETTER),
        ("cpu_ns", (1.03,) * 6, Verdict.LOST),
        ("cpu_ns", (1.03, 1.03, 1.03, 1.03, 1.03, 1.0), Verdict.OPEN),
        ("cpu_ns", (1.01,) * 6, Verdict.KEPT),
        ("cpu_ns", (0.9, 0.9, 0.9, 0.9, 0.9, 1.01), Verdict.KEPT),
        ("cpu_ns", (0.9,) * 6, Verdict.BETTER),
    ],
)
def test_it_is_judged_by_the_interval_against_the_better_rival(
    measure: str, ours: tuple[float, ...], verdict: Verdict
) -> None:
    worse = {"per_s": 0.5}.get(measure, 2.0)
    runs = of("rss", measure, *(1.0,) * 6) + of("rfs", measure, *(worse,) * 6)
    found = judged(LIGHT, runs + of("atfnd", measure, *ours))
    assert found.verdict is verdict
    name = {"per_s": "operations", "p99_ns": "p99", "cpu_ns": "CPU an operation"}[measure]
    rival, ratio = found.ratios[name]
    assert rival == "rss"
    assert ratio.value == pytest.approx(sorted(ours)[3])


def test_a_cell_that_is_better_in_one_measure_and_worse_in_another_is_lost() -> None:
    runs = [RUN._replace(contender=name) for name in ("rss", "rfs")]
    runs.append(RUN._replace(contender="atfnd", cpu_ns=500.0, p99_ns=200e3))
    assert judged(LIGHT, runs).verdict is Verdict.LOST


def test_p99_is_not_judged_where_requests_wait_for_their_turn() -> None:
    runs = [RUN._replace(cell=FULL, contender=name) for name in ("rss", "rfs")]
    runs.append(RUN._replace(cell=FULL, contender="atfnd", p99_ns=900e3))
    assert judged(FULL, runs).verdict is Verdict.KEPT


def test_losses_are_reported_first() -> None:
    runs = [
        RUN._replace(cell=cell, contender=name) for cell in (FULL, LIGHT) for name in ("rss", "rfs")
    ]
    runs.append(RUN._replace(cell=FULL, contender="atfnd", cpu_ns=500.0))
    runs.append(RUN._replace(cell=LIGHT, contender="atfnd", cpu_ns=2000.0))
    found = report({"runs": runs, "notes": [], "name": "applications"})
    assert found.rows[0].what == f"lost: {LIGHT}: operations"
    assert [target.reached for target in found.targets] == [1, 0.5]
    assert [target.met for target in found.targets] == [False, True]
    assert "1 rounds: an interval is no 95 % interval, nor is a verdict" in found.notes


def test_the_cells_of_a_kind_of_load_are_summed_up_by_their_median() -> None:
    runs = list[Run]()
    for server, ours in (("redis", 900.0), ("nginx", 1100.0), ("haproxy", 2000.0)):
        cell = f"{server} × 4, pinned, light"
        runs += [RUN._replace(cell=cell, contender="rss"), RUN._replace(cell=cell, contender="rfs")]
        runs.append(RUN._replace(cell=cell, contender="atfnd", cpu_ns=ours))
    runs += [RUN._replace(cell=FULL, contender=name) for name in ("rss", "rfs", "atfnd")]
    found = report({"runs": runs, "notes": [], "name": "applications"})
    rows = {(row.what, row.contender): row.estimate for row in found.rows}
    by_load = rows["3 cells, pinned, light: CPU an operation", "atfnd / rss"]
    assert by_load[:3] == pytest.approx((1.1, 0.9, 2.0))
    assert rows["1 cells, pinned, saturated: CPU an operation", "atfnd / rfs"].value == 1


def test_parts_are_chosen_by_server_or_by_words() -> None:
    assert {cell.server for cell in cells(("redis",))} == {"redis"}
    assert {cell.server for cell in cells(("nginx",))} == {"nginx"}  # not nginx-2
    assert len(cells(("redis", "unbound × 64"))) == 8 + 4
    with pytest.raises(OperatorError, match="no cell of mysql"):
        cells(("mysql",))
    assert applications.seconds(Wanted(6)) > 10 * applications.seconds(Wanted(6, ("redis",)))
