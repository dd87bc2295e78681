# SPDX-License-Identifier: GPL-2.0-or-later
"""Every kind of match, on a NIC with hardware filters: which rule a flow falls under, and that the
NIC then has a filter for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bed import Bed, a_bed
from tests.daemon.matches import KINDS, port, rules, under
from tests.daemons import policy
from tests.guest.simlab import a_simlab
from tests.observe.groups import GROUP, UNIT, a_group

__all__: list[str] = []

FIRST = 7000


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with (
        a_simlab(queues=4, table=64) as lab,
        a_bed(lab, tmp_path_factory.mktemp("daemon"), "bpf", policy(rules(FIRST))) as made,
    ):
        made.start()
        yield made
        made.daemon.end()


@pytest.mark.parametrize("kind", KINDS)
def test_by_what_is_asked(bed: Bed, kind: str) -> None:
    app = bed.apps.tcp(port=port(FIRST, kind))
    under(bed, app, f"yes-{kind}")
    bed.steered(app)
    assert bed.rule(app) is not None
    app.end()


@pytest.mark.parametrize("kind", ["cgroup", "unit"])
def test_by_its_control_group(bed: Bed, kind: str) -> None:
    with a_group() as move:
        move(f"{GROUP}/{UNIT}")
        app = bed.apps.tcp(port=port(FIRST, kind))
        move(None)
        try:
            under(bed, app, f"yes-{kind}")
        finally:
            app.end()


def test_a_connection_from_here(bed: Bed) -> None:
    app = bed.apps.tcp_connected(port=port(FIRST, "connected"))
    under(bed, app, "yes-connected")
    app.end()
