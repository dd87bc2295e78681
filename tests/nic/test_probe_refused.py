# SPDX-License-Identifier: GPL-2.0-or-later
"""What a probe concludes when the kernel refuses one of its filters."""

from __future__ import annotations

import errno

import pytest

from atfnd.model import Match
from tests.simulation.driver import Refusal
from tests.simulation.nic import WorldNic
from tests.simulation.world import World
from tests.values import key

__all__: list[str] = []

MATCH = Match.of(key(1))


@pytest.mark.parametrize("code", [errno.ETIMEDOUT, errno.ENOMEM, errno.EINTR, errno.EBUSY])
def test_a_refusal_that_passes_says_nothing_about_flow_types(code: int) -> None:
    nic = WorldNic(World(1), "eth0", 1, "hns3", 4)
    nic.table.refusals.append(Refusal(code))
    assert nic.probe().takes(MATCH)


def test_a_flow_type_that_is_refused_for_what_it_is_is_not_tried_again() -> None:
    nic = WorldNic(World(1), "eth0", 1, "hns3", 4)
    nic.table.refusals.append(Refusal(errno.EINVAL))
    assert not nic.probe().takes(MATCH)
