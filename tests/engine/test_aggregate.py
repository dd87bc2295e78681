# SPDX-License-Identifier: GPL-2.0-or-later
"""Few filters, many flows of one port: one rule serves them, and every flow stays where it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atfnd.engine.filters import aggregate, budget
from atfnd.model import (
    Action,
    ActionKind,
    Flow,
    FlowKey,
    FlowState,
)
from atfnd.model.reason import Code
from tests.engine.test_birth import owning
from tests.engine.test_port_filters import (
    EXACT_WINS,
    OTHER,
    PORT,
    SECOND_NS,
    Server,
    connection,
)
from tests.values import THREAD, flow, key


def of_port(number: int, port: int = 443) -> FlowKey:
    return key(number)._replace(local_port=port)


RULED = flow(1, state=FlowState.STEERED, location=1, target_queue=1, app_cpu=1, moved_ns=1)
WAITS = flow(9, state=FlowState.OVERFLOW, thread=OTHER, key=of_port(9, 80))


def short(*flows: Flow, queue: int | None = 1) -> Server:
    """Filters are short, thread 100 owns queue 1, and the port's rule leads there, if to any."""
    server = Server()
    server.nic = replace(EXACT_WINS, budget=10)
    server.memory.nics["nic"].owned = owning({1: THREAD, 2: OTHER})
    if queue is not None:
        port = RULED._replace(key=PORT, cookie=1, thread=None, location=50, target_queue=queue)
        server.memory.table.put(port)
    for each in (WAITS, *flows):
        server.memory.table.put(each)
    return server


@pytest.mark.parametrize(
    ("changes", "goes"),
    [
        ({}, True),
        ({"target_queue": 3}, False),  # not moved yet
        ({"thread": OTHER}, False),  # another owner's
        ({"thread": None}, False),  # nobody's: it would want a rule again
        ({"rule_name": "another"}, False),
        ({"moved_ns": 9 * SECOND_NS}, False),
        ({"state": FlowState.MANUAL}, False),
    ],
)
def test_what_may_want_another_queue_keeps_its_rule(changes: dict[str, Any], goes: bool) -> None:
    server = short(RULED._replace(**changes), RULED._replace(key=key(2), cookie=1002, location=2))
    births = server.look(connection(1, 1), connection(2, 1), now_ns=10 * SECOND_NS)
    gone = {each.action.key for each in births if each.action.kind is ActionKind.DELETE}
    assert gone == {key(2), *([key(1)] if goes else [])}


@pytest.mark.parametrize(("queue", "stranded"), [(None, True), (2, True), (1, False)])
def test_flows_whose_ports_rule_is_gone_or_leads_elsewhere_ask_for_their_own(
    queue: int | None, stranded: bool
) -> None:
    server = short(led := flow(1, state=FlowState.PORT, target_queue=1), queue=queue)
    aggregate.stranded(server.nic, server.memory, 7)
    found = server.memory.table.get(key(1))
    assert found is not None
    if not stranded:
        assert found == led
        return
    assert (found.state, found.target_queue) == (FlowState.OVERFLOW, None)
    assert server.memory.table.due_ns(key(1)) == 7  # at once
    server = short(led, queue=queue)
    insert = Action(ActionKind.INSERT, "nic", key(1), None, None, 1, Code.UNSAID(), "")
    budget.ask(insert, server.memory)  # it gets one now
    aggregate.stranded(server.nic, server.memory, 7)
    assert server.memory.table.get(key(1)) == led
