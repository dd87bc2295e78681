# SPDX-License-Identifier: GPL-2.0-or-later
"""The other topology: two sockets of one core with two threads."""

from __future__ import annotations

from atfnd.model import Cpu
from atfnd.observe.machine.topology import topology
from tests.guest.lscpu import lscpu

GUEST = ["--cpus", "2x1x2"]


def test_siblings() -> None:
    expected = (
        Cpu(0, True, 0, 0, 0, (0, 1), (0, 1)),
        Cpu(1, True, 0, 0, 0, (0, 1), (0, 1)),
        Cpu(2, True, 1, 1, 0, (2, 3), (2, 3)),
        Cpu(3, True, 1, 1, 0, (2, 3), (2, 3)),
    )
    assert topology().cpus == lscpu().cpus == expected
