# SPDX-License-Identifier: GPL-2.0-or-later
"""`bench matrix`: each pair of CPUs is what it says, and the pictures show all of them."""

from __future__ import annotations

from typing import Any

import pytest

from bench import matrix, plot
from bench.bed import lab_bed
from bench.matrix import Cell, Chosen

pytestmark = pytest.mark.usefixtures("own_affinity")


def test_a_pair_is_measured_where_it_says_and_leaves_no_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matrix, "SECONDS", 0.5)
    with lab_bed(queues=2) as bed, bed.meter() as meter:
        before = meter.totals()
        cell = matrix.measured(bed, 1, bed.cpus[1])
        found = meter.totals().since(before)
        assert (cell.flow_cpu, cell.app_cpu) == (bed.cpus[1], bed.cpus[1])
        assert cell.bytes_per_s > 0
        assert cell.bytes_per_busy_s > 0
        assert 0 < cell.p50_ns <= cell.p99_ns
        assert found.local_segments > found.remote_segments  # before the rule, RSS delivered some
        with bed.open() as nic:
            assert nic.filters() == []


def test_the_matrix_is_drawn_with_the_flows_cpu_down(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(plot, "heat", lambda name, *rest: drawn.setdefault(name, rest))
    cells = [Cell(f, a, 1e6 * (10 * f + a), 2e6, 3000, 4000) for f in (0, 2) for a in (0, 2)]
    found = matrix.report(cells * 2)
    assert set(drawn) == {
        "matrix-bytes-per-s", "matrix-bytes-per-busy-s", "matrix-p50", "matrix-p99",
    }  # fmt: skip
    _, axes, labels, values = drawn["matrix-bytes-per-s"]
    assert (axes[1], labels) == ("the flow's CPU", ["0", "2"])
    assert values == [[0, 2], [20, 22]]
    assert len(found.rows) == 16


def test_what_auto_chose_stands_beside_the_best_and_the_worst_cell_of_its_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plot, "heat", lambda *_: None)
    cells = [
        Cell(f, a, 1e6 * (10 * f + a + 1), 2e6, 1000 * (1 + f), 4000)
        for f in (0, 2)
        for a in (0, 2)
    ]
    auto = Chosen(2, 0, "near llc: it paid", (Cell(2, 0, 19e6, 2e6, 2500, 4000),) * 3)
    found = matrix.report(cells, [auto])
    said = {row.what: row for row in found.rows if row.contender.startswith("auto")}
    throughput = said["throughput"]
    assert throughput.contender == ("auto on CPU 2, application on CPU 0; cells: best 21, worst 1")
    assert throughput.estimate.value == 19
    assert said["request to answer, p50"].contender.endswith("cells: best 1, worst 3")
    assert found.notes == ["auto, application on CPU 0: near llc: it paid"]


def test_auto_is_asked_what_it_chose_and_measured_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "SECONDS", 0.5)
    monkeypatch.setattr(matrix, "LED_S", 90.0)
    monkeypatch.setattr(matrix, "DECIDE_S", 2.0)  # whatever is in force by then
    found = matrix.chosen(1, 2, lambda: lab_bed(queues=2))
    assert found.app_cpu == 1
    assert len(found.cells) == 2
    for cell in found.cells:
        assert cell.bytes_per_s > 0
        assert 0 < cell.p50_ns <= cell.p99_ns
        assert cell.app_cpu == found.app_cpu
    assert found.flow_cpu == found.cells[-1].flow_cpu
    if found.why == matrix.NEVER:
        assert {cell.flow_cpu for cell in found.cells} == {found.app_cpu}
    else:
        assert found.why.startswith("near "), found
