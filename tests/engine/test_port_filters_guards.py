# SPDX-License-Identifier: GPL-2.0-or-later
"""The rule of a port is written and deleted without a packet that another rule would reorder."""

from __future__ import annotations

from atfnd.engine.filters import port_filters
from atfnd.model import ActionKind, FlowState
from tests.engine.test_aggregate_guards import short
from tests.engine.test_port_filters import PORT, SECOND_NS, Server, connection, listening
from tests.values import THREAD, flow

__all__: list[str] = []

ANYWHERE = PORT._replace(local=bytes(4))


def test_a_rule_for_all_addresses_stays_when_its_port_listens_on_one() -> None:
    server = Server(listening(1, ANYWHERE))
    server.done(server.look())
    server.listeners.closed(1, 100)
    [delete] = server.look(now_ns=100 + 10 * SECOND_NS)
    assert (delete.action.kind, delete.action.key) == (ActionKind.DELETE, ANYWHERE)
    again = listening(2, PORT)
    server.listeners.opened(again, server.memory.table)
    [revoked] = port_filters.wanted_again(again, server.listeners, server.memory)
    assert (revoked.action.kind, revoked.action.key) == (ActionKind.REWRITE, ANYWHERE)


def test_a_rule_that_moves_flows_is_no_birth() -> None:
    """They have sent data through another queue: only a hold proves that it has drained."""
    waiting = [
        flow(number, state=FlowState.OVERFLOW, thread=THREAD, app_cpu=1) for number in (1, 2)
    ]
    server = short(*waiting, queue=None)
    births = server.look(connection(1, 3), connection(2, 3), now_ns=10 * SECOND_NS)
    [(key, first_data_ns)] = [(each.action.key, each.first_data_ns) for each in births]
    assert (key, first_data_ns) == (PORT, None)


def test_a_rule_that_moves_nobody_is_a_birth() -> None:
    server = short(queue=None)
    server.memory.table.put(flow(1)._replace(state=FlowState.STEERED, location=1, target_queue=1))
    [birth] = server.look(connection(1, 1), now_ns=10 * SECOND_NS)
    assert birth.first_data_ns is not None
