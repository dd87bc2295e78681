# SPDX-License-Identifier: GPL-2.0-or-later
"""Whose epolls are to prefer busy polling, and which get back what they had."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atfnd.engine import assist
from atfnd.engine.command import AssistEpolls, PutBackEpolls
from atfnd.engine.ownership.owner import Owned
from atfnd.engine.table.memory import Memory
from atfnd.model import EpollId, EpollUser, FlowState, Reception, ReceptionMode
from tests.engine.test_reception import ARMED, SUSPENDED, asked, memory
from tests.values import THREAD, flow

__all__: list[str] = []

FLOW = flow(1, rule_name="rest", thread=THREAD)
USER = EpollUser(THREAD.pid, "nic", "rest", (FLOW.key,))
OURS, OTHERS = EpollId(THREAD.pid, 7, 4).setting, EpollId(THREAD.pid + 1, 7, 4).setting
HELD = frozenset({OURS, OTHERS})
UNUSED = "no queue of its owner asks for it"


def known(**of_rule: Any) -> Memory:
    """A thread owns a queue, by one flow."""
    made = memory(**{"reception": SUSPENDED, "assist": "epoll", **of_rule})
    made.table.put(FLOW)
    made.nics["nic"].owned = {2: Owned(("thread", THREAD.tid), 0)}
    asked(made)
    return made


def test_the_process_of_an_owner_is_assisted_and_nobody_else_any_more() -> None:
    made = known()
    assert list(assist.due(HELD, made)) == [PutBackEpolls((OTHERS,), UNUSED), AssistEpolls((USER,))]
    assert list(assist.ended(HELD, made)) == [PutBackEpolls((OTHERS,), "asked for")]


@pytest.mark.parametrize(
    "of_rule",
    [{"assist": "none"}, {"reception": Reception(ReceptionMode.DEFERRED, 50_000, 100)}],
)
def test_a_rule_that_does_not_ask_assists_nobody(of_rule: dict[str, Any]) -> None:
    both = tuple(sorted(HELD))
    assert list(assist.due(HELD, known(**of_rule))) == [PutBackEpolls(both, UNUSED)]


def test_nobody_is_assisted_who_lost_the_queue_or_where_the_mode_cannot_be_had() -> None:
    lost, lacking = known(), known()
    lost.nics["nic"].owned = {}
    lacking.nics["nic"].reception.why_not = {2: "suspended: refused"}
    for made in (lost, lacking):
        assert list(assist.due(frozenset({OURS}), made)) == [PutBackEpolls((OURS,), UNUSED)]


def test_a_nic_that_is_not_armed_keeps_what_it_has_until_an_undo() -> None:
    made = known()
    made.nics["nic"].view = replace(ARMED, armed=False)
    assert list(assist.due(HELD, made)) == []
    both = tuple(sorted(HELD))
    assert list(assist.ended(HELD, made)) == [PutBackEpolls(both, "asked for")]
    del made.nics["nic"]
    assert list(assist.due(HELD, made)) == [PutBackEpolls(both, UNUSED)]


@pytest.mark.parametrize(
    ("other", "assisted"),
    [
        ({"rx_queue": 2}, True),
        ({"rx_queue": 0}, False),
        ({"rx_queue": 0, "state": FlowState.STEERED, "target_queue": 2}, True),
        ({"rx_queue": 2, "state": FlowState.STEERED, "target_queue": 0}, False),
    ],
)
def test_a_process_is_assisted_once_all_its_flows_come_by_its_queue(
    other: dict[str, Any], assisted: bool
) -> None:
    """Else the epoll would turn from one NAPI to another, and leave the first one suspended. What
    was written before stays: a connection may always begin elsewhere."""
    made = known()
    made.table.put(flow(2, **{"rule_name": "rest", "thread": THREAD, **other}))
    found = list(assist.due(frozenset({OURS}), made))
    assert [type(each) for each in found] == ([AssistEpolls] if assisted else [])


def test_with_auto_epolls_are_assisted_whatever_is_in_force() -> None:
    made = known(reception=Reception(ReceptionMode.AUTO))
    assert list(assist.due(frozenset(), made)) == [AssistEpolls((USER,))]
