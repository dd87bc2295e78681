# SPDX-License-Identifier: GPL-2.0-or-later
"""Strict moves keep order: the real machine in every state it can reach beside a modelled NIC."""

from __future__ import annotations

import pytest

from atfnd.move.port import Stage
from tests.move import births
from tests.move.check import check
from tests.move.cpus import check_follow
from tests.move.scenes import BORN, MOVED, REFUSED, Case

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


@pytest.mark.parametrize("case", REFUSED, ids=_name)
def test_what_strict_cannot_promise_is_not_tried(case: Case) -> None:
    found = check(case.scene, case.wanted, case.port)
    assert found.broken is None, str(found)
    assert found.verdicts == {"deferred"}


def test_a_queue_that_follows_keeps_order_where_delivery_is_inline() -> None:
    found = check_follow(frozenset())
    assert found.broken is None, str(found)
    assert "proven" in found.verdicts


@pytest.mark.parametrize("stage", Stage, ids=lambda stage: stage.name)
def test_no_queue_follows_over_a_stage_of_each_cpu(stage: Stage) -> None:
    found = check_follow(frozenset({stage}))
    assert found.broken is None, str(found)
    assert found.verdicts == {"deferred"}
