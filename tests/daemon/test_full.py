# SPDX-License-Identifier: GPL-2.0-or-later
"""A full Flow-to-Core table, a full NIC: newcomers go by RSS until there is room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.applications import Application, delivered
from tests.bed import Bed, a_bed
from tests.daemons import policy
from tests.labs import Lab, a_lab

ROOM = 4


@pytest.fixture(scope="module")
def small_lab() -> Iterator[Lab]:
    """Its NIC holds four filters."""
    with a_lab(slots=ROOM) as made:
        yield made


def fill(bed: Bed) -> tuple[list[Application], list[Application]]:
    """Four flows that are steered, and then two more that are not."""
    first = [bed.apps.tcp() for _ in range(ROOM)]
    for app in first:
        bed.steered(app)
    late = [bed.apps.tcp() for _ in range(2)]
    for app in late:
        row = bed.row(app, lambda row: row["state"] == "overflow", "overflows")
        assert (row["filter"], bed.rule(app)) == (None, None)
    return first, late


@pytest.mark.parametrize("full", ["table", "NIC"])
def test_nobody_is_evicted_and_newcomers_wait_for_room(
    small_lab: Lab, tmp_path: Path, observer: str, full: str
) -> None:
    config = policy(table=ROOM) if full == "table" else policy()
    with a_bed(small_lab, tmp_path, observer, config) as bed:
        bed.start()
        first, late = fill(bed)
        for app in first:
            bed.steered(app)
            delivered(bed.meter, app)
        status = bed.daemon.status()
        assert status["overflow"] == len(late)
        if full == "table":
            assert (status["table_entries"], status["table_capacity"]) == (ROOM, ROOM)
            assert status["t_delete_s"] == 30 / 16  # a full table forgets sooner
        for gone in first[:2]:
            gone.end()
        for app in late:
            bed.steered(app)
            delivered(bed.meter, app)
        assert len(small_lab.nic.filters()) == ROOM
