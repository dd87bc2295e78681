# SPDX-License-Identifier: GPL-2.0-or-later
"""`bench owners` and `bench ordering-tcp`: what they do to a lab NIC, and what they tell of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from atfnd.move.verdict import Mode
from bench import ordering_tcp, owners, plot
from bench.bed import Bed, lab_bed
from bench.locality import PORTS
from bench.ordering_tcp import CASES, NONE, Case
from bench.tcp_reordering import Counters

pytestmark = pytest.mark.usefixtures("own_affinity")

TABLE = 16


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    with lab_bed(rules=TABLE, queues=len(PORTS)) as made:
        yield made


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of those that would have been drawn."""
    drawn: list[str] = []
    monkeypatch.setattr(plot, "bars", lambda name, *_, **__: drawn.append(name))
    return drawn


@pytest.mark.parametrize(("method", "rules", "writes"), [("exact", TABLE, TABLE), ("follow", 2, 2)])
def test_an_owners_flows_are_placed_as_far_as_the_table_goes(
    bed: Bed, method: str, rules: int, writes: int
) -> None:
    with bed.meter() as meter:
        found = owners.measured(bed, meter, TABLE, 40, method)
    assert (found.rules, found.writes) == (rules, writes)
    assert found.placed >= rules / 40 if method == "exact" else found.placed == 1
    assert found.placed_after == 1 or method == "exact"
    with bed.open() as nic:
        assert nic.filters() == []
        assert tuple(queue.cpu for queue in nic.queues()) == bed.cpus


def test_owners_are_judged_by_writes_and_by_their_flows(pictures: list[str]) -> None:
    run = owners.Run(10, 40, "follow", 2, 1.0, 1.0, 2, 4000)
    exact = run._replace(method="exact", rules=10, placed=0.6, placed_after=0.5, writes=10)
    found = owners.report([run, run, exact])
    assert all(target.met for target in found.targets)
    assert not all(t.met for t in owners.report([run._replace(placed_after=0.9)]).targets)
    writes = {row.contender: row.estimate.value for row in found.rows if "writes" in row.what}
    assert writes == {"follow": 1, "exact": 5}
    assert set(pictures) == {"owners"}


def test_tcp_streams_are_moved_as_often_as_asked(bed: Bed) -> None:
    often = Case("immediate", Mode.IMMEDIATE, 50)
    still, moved = ordering_tcp.measured(bed, "stalled", (NONE, often), 1.0)
    assert (still.moves, still.deferred) == (0, 0)
    assert 0 < moved.moves <= 50
    assert still.bytes_per_s > 0
    assert moved.bytes_per_s > 0
    with bed.open() as nic:
        assert nic.filters() == []


def test_holds_alone_are_holds_and_cpu_alone_is_as_much_as_asked(bed: Bed) -> None:
    holds, cpu = CASES[-2:]
    held, spent = ordering_tcp.measured(bed, "stalled", (holds, cpu), 1.0)
    assert held.moves > 0
    # no strict move was made before: as much as is assumed of one, for each piece
    assert spent.cpu_s >= spent.moves * ordering_tcp.SPENT_S > 0
    assert spent.deferred == 0


def test_tcp_is_compared_with_the_same_round_unmoved() -> None:
    still = ordering_tcp.Run("full", NONE.name, 1e8, 0, 0, 0, 0.0, Counters(0, 0, 0, 0))
    strict = still._replace(case="strict, 8 moves/s", bytes_per_s=0.99e8, moves=24)
    found = ordering_tcp.report([still, strict, still, strict])
    [target] = found.targets
    assert target.met
    assert target.reached == pytest.approx(0.99)
    assert f"{2 * 24} moves" in " ".join(found.notes)
