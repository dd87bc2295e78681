# SPDX-License-Identifier: GPL-2.0-or-later
"""`bench ordering`: what is sent arrives and is counted, moves are made as they were asked for, and
what is reported is what was found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.bed import Bed, lab_bed, succeed
from bench.ordering import LOAD, WAYS, measured
from bench.traffic.datagrams import Load, built, received, sent
from tests.wait import until

pytestmark = pytest.mark.usefixtures("own_affinity")

RECEIVED = "/sys/class/net/r0/statistics/rx_packets"
NAMES = [way.name for way in WAYS]


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    with lab_bed(rules=64, queues=2) as made:
        yield made


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("datagrams"))


def test_every_datagram_of_every_flow_arrives_once(bed: Bed, program: Path) -> None:
    with received(program, bed, 6, Load(2000, 2, 4)) as traffic:
        with sent(program, bed, traffic, bed.cpus) as sending:
            read = ("ip", "netns", "exec", bed.host or "", "cat", RECEIVED)
            until(lambda: int(succeed(*read)) > 100, "some have come")
            tally = sending.finish()
        arrived = list(traffic.datagrams())
    assert tally.lost == 0
    assert tally.received == len(arrived) > 100
    assert {each.flow for each in arrived} == set(range(6))
    assert not any(each.late for each in arrived)
    assert len({stream.cookie for stream in traffic.streams}) == 6


@pytest.mark.parametrize("name", NAMES)
def test_a_run_of_each_way_moves_what_it_was_asked_to(bed: Bed, program: Path, name: str) -> None:
    way = WAYS[NAMES.index(name)]
    few = way._replace(moves=min(way.moves, 5))
    found = measured(program, bed, few, LOAD.active)
    assert found.received > 0
    assert found.moves == few.moves
