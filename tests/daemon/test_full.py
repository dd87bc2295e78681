# SPDX-License-Identifier: GPL-2.0-or-later
"""A full Flow-to-Core table, a full NIC: newcomers go by RSS, and busy flows have the filters."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from atfnd.model import Match
from tests.applications import Application, delivered
from tests.bed import Bed, a_bed
from tests.daemons import Row, policy
from tests.labs import Lab, a_lab
from tests.wait import until

__all__: list[str] = []

ROOM = 4
SHARE = 2


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
        assert row["filter"] is None
    return first, late


def is_on(app: Application, row: Row) -> bool:
    return bool(row["app_cpu"] == app.cpu)


def nobody_was_evicted(bed: Bed, first: list[Application], late: list[Application]) -> None:
    for app in first:
        bed.steered(app)
        delivered(bed.meter, app)
    for app in late:
        assert bed.rule(app) is None
    assert bed.daemon.status()["overflow"] == len(late)


def test_a_user_who_took_all_filters_first_gives_up_half(small_lab: Lab, tmp_path: Path) -> None:
    """Two real uids; the greedy one carries more in each flow."""
    with a_bed(small_lab, tmp_path, "bpf") as bed:
        bed.start()
        greedy = [bed.apps.tcp() for _ in range(ROOM)]
        for app in greedy:
            app.host.tell("user 12345")
            app.talks.tell("load 8000")
            for _ in range(2):  # it is reported anew, with its user, and where RSS is wrong
                app.migrate()
                bed.row(app, partial(is_on, app), "is reported")
            bed.steered(app)
        victims = [bed.apps.tcp() for _ in range(2)]
        for app in victims:
            bed.steered(app)
            delivered(bed.meter, app)
        assert len(small_lab.nic.filters()) == ROOM
        left = [app for app in greedy if bed.rule(app) is None]
        assert len(left) == len(victims)
        kept = [app for app in greedy if app not in left]
        for app in kept:
            bed.steered(app)  # no user has less than its share: it stays


def test_a_full_table(shared_lab: Lab, tmp_path: Path, observer: str) -> None:
    config = policy(table=ROOM)
    with a_bed(shared_lab, tmp_path, observer, config) as bed:
        bed.start()
        first, late = fill(bed)
        nobody_was_evicted(bed, first, late)
        status = bed.daemon.status()
        assert (status["table_entries"], status["table_capacity"]) == (ROOM, ROOM)
        assert status["t_delete_s"] == 30 / 16  # a full table forgets sooner
        for gone, comes in zip(first[:2], late, strict=True):
            gone.end()
            bed.row(comes, lambda row: row["state"] in ("steered", "overflow"), "stays shown")
        for app in late:
            bed.steered(app)
            delivered(bed.meter, app)
        assert bed.daemon.status()["table_entries"] == ROOM


def test_a_full_nic(small_lab: Lab, tmp_path: Path, observer: str) -> None:
    with a_bed(small_lab, tmp_path, observer) as bed:
        bed.start()
        first, late = fill(bed)
        nobody_was_evicted(bed, first, late)
        for gone in first[:2]:
            gone.end()
        for app in late:
            bed.steered(app)
            delivered(bed.meter, app)
        assert len(small_lab.nic.filters()) == ROOM


def test_a_nic_that_others_filled(small_lab: Lab, tmp_path: Path, observer: str) -> None:
    """Our budget has room, the NIC has none: it is asked when others have taken one out."""
    others = [
        small_lab.nic.insert(Match(4, 6, None, 0, None, 0, None, 81 + location), 0, location)
        for location in range(3)
    ]
    with a_bed(small_lab, tmp_path, observer) as bed:
        bed.start()
        bed.steered(bed.apps.tcp())
        late = bed.apps.tcp()
        row = bed.row(late, lambda row: row["state"] == "overflow", "overflows")
        assert row["why"] == "the NIC's filter table is full, 3 are others': delivered by RSS"
        assert bed.daemon.status()["actions_refused"] == 0
        small_lab.nic.delete(others.pop())
        bed.steered(late)
        there = {rule.location for rule in small_lab.nic.filters()}
        assert there >= set(others)


def test_the_busy_take_the_filters_of_the_idle(
    small_lab: Lab, tmp_path: Path, observer: str
) -> None:
    share = (
        f'interfaces: [{{ match: {{ name: "*" }}, armed: true, filters: {{ max: {SHARE} }} }}]\n'
    )
    with a_bed(small_lab, tmp_path, observer, policy() + share) as bed:
        bed.start()
        first = [bed.apps.tcp() for _ in range(SHARE)]
        for app in first:
            bed.steered(app)
            app.pause()
        late = [bed.apps.tcp() for _ in range(SHARE)]
        for app in late:
            bed.steered(app)
            delivered(bed.meter, app)
        for app in first:
            row = bed.row(app, lambda row: row["state"] == "overflow", "is known on")
            assert (row["filter"], "its filter is worth 0 kB/s" in row["why"]) == (None, True)
        assert {rule.match for rule in small_lab.nic.filters()} == {Match.of(a.key) for a in late}


def test_connections_of_one_port_come_by_one_filter(small_lab: Lab, tmp_path: Path) -> None:
    """What they free is another application's."""
    config = policy(order="strict")
    with a_bed(small_lab, tmp_path, "bpf", config) as bed:
        server = bed.apps.tcp()
        first = [server, bed.apps.joins(server), bed.apps.joins(server)]
        bed.start()
        # One that got its own filter a moment later may keep it: filters are not short any more.
        until(lambda: len(small_lab.nic.filters()) <= 2, "they come by their port's rule")
        more = [bed.apps.joins(server) for _ in range(ROOM)]
        others = [bed.apps.tcp() for _ in range(ROOM - 1)]
        for app in (*first, *more, *others):  # some where a queue followed its thread: not known
            delivered(bed.meter, app)
        until(
            lambda: len(small_lab.nic.filters()) == 1 + sum(bool(bed.rule(app)) for app in others),
            "the port and others have filters",
        )
        ports = [rule.match for rule in small_lab.nic.filters() if rule.match]
        assert len(ports) > 1
        assert (server.key.local_port, None) in {(each.dst_port, each.src_port) for each in ports}
        verdicts = {each["verdict"] for each in bed.daemon.status()["moves"]}
        assert "violated" not in verdicts
