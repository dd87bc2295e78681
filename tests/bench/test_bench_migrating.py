# SPDX-License-Identifier: GPL-2.0-or-later
"""`bench migrating`: receivers change places, and what is reported is what was found."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import migrating, plot
from bench.bed import lab_bed
from bench.migrating import Run, contenders, measured
from bench.traffic.datagrams import built

pytestmark = pytest.mark.usefixtures("own_affinity")

RUN = Run(
    contender="atfnd, strict", streams=40, local=0.9, settled=1.0, moves=80, reordered=0, late=0,
    received=1000, ring_drops=0, writes=80,
)  # fmt: skip


def test_migrations_of_flows_are_counted_and_nothing_is_left(tmp_path: Path) -> None:
    with lab_bed(queues=2) as bed, bed.meter() as meter:
        found = measured(built(tmp_path), bed, meter, "rss", 10, swaps=1)
        assert found.moves == 10
        assert found.received > 0
        assert found.local is not None
        assert 0 <= found.local <= 1
        assert found.writes is None
        with bed.open() as nic:
            assert nic.filters() == []


def test_every_order_of_moves_is_a_contender() -> None:
    assert set(contenders()) == {"rss", "rfs", *(f"atfnd, {o}" for o in migrating.ORDERS)}


def test_a_late_packet_of_strict_moves_misses_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot, "bars", lambda *_, **__: None)
    good = migrating.report([RUN, RUN])
    assert all(target.met for target in good.targets)
    writes = [row.estimate.value for row in good.rows if "writes" in row.what]
    assert writes == [80 / migrating.SWAPS / 2]
    bad = migrating.report([RUN, RUN._replace(late=1, reordered=1)])
    assert not any(target.met for target in bad.targets)
