# SPDX-License-Identifier: GPL-2.0-or-later
"""Two sockets of two cores, each a NUMA node with one L3 cache: as we and lscpu(1) see them."""

from __future__ import annotations

from pathlib import Path

from atfnd.model import Cpu
from atfnd.observe.machine.topology import topology
from tests.guest.lscpu import lscpu

ONLINE = Path("/sys/devices/system/cpu/cpu3/online")
ALONE = (
    Cpu(0, True, 0, 0, 0, (0,), (0, 1)),
    Cpu(1, True, 0, 0, 1, (1,), (0, 1)),
    Cpu(2, True, 1, 1, 0, (2,), (2, 3)),
    Cpu(3, True, 1, 1, 1, (3,), (2, 3)),
)


def test_sockets_nodes_and_caches() -> None:
    assert topology().cpus == lscpu().cpus == ALONE


def test_the_nodes_are_at_a_distance() -> None:
    assert [(node.cpus, node.distances) for node in topology().nodes] == [
        ((0, 1), {0: 10, 1: 21}),
        ((2, 3), {0: 21, 1: 10}),
    ]
    for node, distances in enumerate(["10 21", "21 10"]):
        path = Path(f"/sys/devices/system/node/node{node}/distance")
        assert path.read_text().strip() == distances


def test_a_cpu_goes_offline_and_comes_back() -> None:
    ONLINE.write_text("0")
    try:
        seen = topology()
        assert seen.cpus == lscpu().cpus
        assert seen.cpus[3] == Cpu(3, False, None, None, None, (), ())
        assert seen.cpus[2] == Cpu(2, True, 1, 1, 0, (2,), (2,))
        assert seen.cpus[:2] == ALONE[:2]
    finally:
        ONLINE.write_text("1")
    assert topology().cpus == lscpu().cpus == ALONE
