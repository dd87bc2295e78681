# SPDX-License-Identifier: GPL-2.0-or-later
"""What the kit decides, packs and says, without a lab. `make test-distributions` runs it."""

from __future__ import annotations

import json
import re

import pytest

from atfnd.errors import OperatorError
from atfnd.model import Cpu
from bench.applications import Cell
from bench.kit.measuring import Measured, Parts, parts
from bench.kit.page import answered, page, said
from bench.verdicts import Run

LIGHT = Cell("redis", 16, pinned=True, saturated=False).name
FULL_LOAD = Cell("redis", 16, pinned=True, saturated=True).name
RUN = Run(0, LIGHT, "rss", 4000.0, 90e3, 1200e3, 20e3, 0.0, 0.5, 0.5, 0.0)
PARTS = Parts((1, 0, 2), 0, (3,))


def machine(cores: int, smt: int = 1, llc: int = 0, node: int = 0) -> list[Cpu]:
    """CPUs of so many cores. `llc`, `node`: cores under each one, 0: all. Second threads have the
    upper numbers, as on most machines."""
    found = []
    for index in range(cores * smt):
        core = index % cores
        here = [core // llc * llc + each for each in range(llc)] if llc else range(cores)
        shared = tuple(core + thread * cores for core in here for thread in range(smt))
        threads = tuple(core + thread * cores for thread in range(smt))
        found.append(Cpu(index, True, core // node if node else 0, 0, core, threads, shared))
    return found


def test_few_cores_do_everything() -> None:
    assert parts(machine(2)) == Parts((1, 0), 0, ())
    assert parts(machine(1, smt=2)) == Parts((0, 1), None, ())
    with pytest.raises(OperatorError, match="two CPUs"):
        parts(machine(1))


def test_clients_have_whole_cores_of_their_own_where_the_server_is() -> None:
    assert parts(machine(4)) == Parts((1, 0), 0, (2, 3))
    found = parts(machine(32, smt=2, llc=8, node=16))
    assert found.clients == (14, 15, 46, 47)
    assert found.serving[:2] == (1, 2)
    assert found.neighbour == 2  # not 33, the other thread of its core
    assert sorted({*found.serving, *found.clients}) == list(range(64))


def test_a_neighbour_shares_the_cache() -> None:
    assert parts(machine(8, llc=1)).neighbour is None
    assert parts(machine(6, llc=2)).neighbour == 0
    assert len(parts(machine(128)).serving) == 64  # queues of a lab NIC


def rounds(ours: float, count: int = 7, others: float = 0.0, cell: str = LIGHT) -> list[Run]:
    """RSS, RFS, and atfnd with so many times their CPU and p99."""
    return [
        RUN._replace(
            turn=turn, cell=cell, contender=name, others=others, cpu_ns=20e3 * ratio,
            p99_ns=1200e3 * ratio,
        )
        for turn in range(count)
        for name, ratio in (("rss", 1.0), ("rfs", 1.0), ("atfnd", ours), ("neighbour", 1.5))
    ]  # fmt: skip


def test_it_says_in_how_many_cells_atfnd_is_worse() -> None:
    by_cell, left_out = answered(rounds(1.2) + rounds(0.8, cell=FULL_LOAD))
    assert said(by_cell) == (
        "Of 2 cells atfnd is worse in 1, maybe worse in 0, no worse in 0, better in 1."
    )
    assert left_out == 0


@pytest.mark.parametrize("runs", [rounds(0.8, count=5), rounds(0.8, others=1.0)])
def test_few_rounds_or_loud_ones_say_nothing(runs: list[Run]) -> None:
    assert said(answered(runs)[0]).startswith("Nothing can be said")
    assert "not said" in page(Measured(runs, PARTS, []), {}, 60.0, "now")


def test_a_round_without_answers_is_left_out_for_everybody() -> None:
    runs = rounds(0.8)
    by_cell, left_out = answered([runs[0]._replace(per_s=0.0, p99_ns=0.0), *runs[1:]])
    assert left_out == 1
    assert {run.turn for run in by_cell[LIGHT]} == set(range(1, 7))


def test_the_page_has_losses_first_and_everything_inside() -> None:
    runs = rounds(0.8) + rounds(1.2, cell=FULL_LOAD)
    without_rfs = [run for run in runs if run.contender != "rfs"]
    for measured in (runs, without_rfs):
        text = page(Measured(measured, PARTS, ["a <note>"]), {"kernel": "6.8"}, 900.0, "now")
        assert text.index('class="worse"') < text.index('class="better"')
        assert "It is not a NIC of this machine" in text
        assert "a &lt;note&gt;" in text
        assert "0-2" in text
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")  # nothing is fetched
        [samples] = re.findall(r'id="samples">(.*)</script>', text)
        assert [Run(**each) for each in json.loads(samples)] == measured
