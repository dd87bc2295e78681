# SPDX-License-Identifier: GPL-2.0-or-later
"""Which rule real flows fall under, by what the kernel tells of them: one daemon, a flow for each
kind of match. Before each rule stands one that differs in that match alone, and does not hold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bed import Bed, a_bed
from tests.daemon.matches import KINDS, port, rules, under
from tests.daemons import OBSERVERS, policy
from tests.labs import Lab
from tests.observe.groups import GROUP, UNIT, a_group


def first(observer: str) -> int:
    """Of the ports."""
    return 7000 + 100 * OBSERVERS.index(observer)


@pytest.fixture(scope="module", params=OBSERVERS)
def bed(
    request: pytest.FixtureRequest, shared_lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("daemon")
    with a_bed(shared_lab, folder, request.param, policy(rules(first(request.param)))) as made:
        made.start()
        yield made


@pytest.mark.parametrize("kind", KINDS)
def test_by_what_is_asked(bed: Bed, kind: str) -> None:
    app = bed.apps.tcp(port=port(first(bed.observer), kind))
    under(bed, app, f"yes-{kind}")
    bed.steered(app)
    app.end()


@pytest.mark.parametrize("kind", ["cgroup", "unit"])
def test_by_its_control_group(bed: Bed, kind: str) -> None:
    with a_group() as move:
        move(f"{GROUP}/{UNIT}")
        app = bed.apps.tcp(port=port(first(bed.observer), kind))
        move(None)
        try:
            under(bed, app, f"yes-{kind}")
        finally:
            app.end()


def test_a_connection_from_here(bed: Bed) -> None:
    """Only BPF sees who asked for it; where nobody listens, the other observer does not know."""
    app = bed.apps.tcp_connected(port=port(first(bed.observer), "connected"))
    under(bed, app, "yes-connected" if bed.observer == "bpf" else "everything")
    app.end()


def test_a_connection_from_before(bed: Bed) -> None:
    """Of one that was established before the daemon ran, the listener tells."""
    bed.daemon.end()
    app = bed.apps.tcp(port=port(first(bed.observer), "before"))
    bed.start()
    under(bed, app, "yes-before")
    app.end()
