# SPDX-License-Identifier: GPL-2.0-or-later
"""`bench owners`: what it does to a lab NIC, and what it tells of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import owners
from bench.bed import Bed, lab_bed
from bench.connections import PORTS
from bench.traffic import messages

pytestmark = pytest.mark.usefixtures("own_affinity")

TABLE = 16


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    with lab_bed(rules=TABLE, queues=len(PORTS)) as made:
        yield made


@pytest.mark.parametrize(("method", "rules", "writes"), [("exact", TABLE, TABLE), ("follow", 2, 2)])
def test_an_owners_flows_are_placed_as_far_as_the_table_goes(
    bed: Bed, tmp_path: Path, method: str, rules: int, writes: int
) -> None:
    with bed.meter() as meter:
        found = owners.measured(messages.built(tmp_path), bed, meter, TABLE, 40, method)
    assert (found.rules, found.writes) == (rules, writes)
    assert found.placed >= rules / 40 if method == "exact" else found.placed == 1
    assert found.placed_after == 1 or method == "exact"
    with bed.open() as nic:
        assert nic.filters() == []
        assert tuple(queue.cpu for queue in nic.queues()) == bed.cpus


def test_owners_are_judged_by_writes_and_by_their_flows() -> None:
    run = owners.Run(10, 40, "follow", 2, 1.0, 1.0, 2, 4000)
    exact = run._replace(method="exact", rules=10, placed=0.6, placed_after=0.5, writes=10)
    found = owners.report([run, run, exact])
    assert all(target.met for target in found.targets)
    assert not all(t.met for t in owners.report([run._replace(placed_after=0.9)]).targets)
    writes = {row.contender: row.estimate.value for row in found.rows if "writes" in row.what}
    assert writes == {"follow": 1, "exact": 5}
