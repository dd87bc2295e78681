# SPDX-License-Identifier: GPL-2.0-or-later
"""Two sockets of one core with two threads: siblings, and placements with a queue a CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from atfnd.model import Cpu
from atfnd.observe.machine.topology import topology
from tests.bed import Bed, a_bed
from tests.daemons import policy
from tests.guest.arrivals import comes_to
from tests.guest.simlab import a_simlab

GUEST = ["--cpus", "2x1x2"]
RULES = """\
  - name: smt
    match: { ports: 24000 }
    placement: { near: smt }
    order: immediate
  - name: llc
    match: { ports: 24001 }
    placement: { near: llc }
    order: immediate
  - name: apart
    match: { ports: 24002 }
    placement: { near: llc, avoid: smt }
    order: immediate
"""


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with (
        a_simlab(queues=4, table=64) as lab,
        a_bed(lab, tmp_path_factory.mktemp("daemon"), "bpf", policy(RULES)) as made,
    ):
        made.start()
        yield made
        made.daemon.end()


def test_siblings_are_known() -> None:
    assert topology().cpus == (
        Cpu(0, True, 0, 0, 0, (0, 1), (0, 1)),
        Cpu(1, True, 0, 0, 0, (0, 1), (0, 1)),
        Cpu(2, True, 1, 1, 0, (2, 3), (2, 3)),
        Cpu(3, True, 1, 1, 0, (2, 3), (2, 3)),
    )


@pytest.mark.parametrize("port", [24000, 24001], ids=["smt", "llc"])
def test_it_comes_to_the_other_thread_of_the_core(bed: Bed, port: int) -> None:
    app = bed.apps.tcp(port=port)
    for own, sibling in ((0, 1), (3, 2), (2, 3)):
        app.pin(own)
        comes_to(bed, app, sibling)
    app.end()


def test_or_never_there_if_the_sibling_is_to_be_avoided(bed: Bed) -> None:
    app = bed.apps.tcp(port=24002)
    for own in (1, 2):
        app.pin(own)
        comes_to(bed, app, own)
        row = bed.row(app, lambda row: row["app_cpu"] == app.cpu, "is known")
        assert row["fell_back"].endswith("on its own CPU instead")
    app.end()
