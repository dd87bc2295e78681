# SPDX-License-Identifier: GPL-2.0-or-later
"""Strict moves keep order: the real machine in every state it can reach beside a modelled NIC."""

from __future__ import annotations

import pytest

from tests.move import births
from tests.move.check import check
from tests.move.scenes import BORN, MOVED, Case

_name = "{0.scene.name}".format


@pytest.mark.parametrize("case", MOVED, ids=_name)
def test_a_strict_move_keeps_order_and_lets_go(case: Case) -> None:
    found = check(case.scene, case.wanted, case.port)
    assert found.broken is None, str(found)
    assert "proven" in found.verdicts


@pytest.mark.parametrize("case", BORN, ids=_name)
def test_a_birth_keeps_order_while_its_connection_is_established(case: Case) -> None:
    found = check(case.scene, case.wanted, case.port)
    assert found.broken is None, str(found)
    assert ("verified" if case.wanted.action.key == births.PORT else "proven") in found.verdicts
