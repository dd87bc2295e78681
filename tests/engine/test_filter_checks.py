# SPDX-License-Identifier: GPL-2.0-or-later
"""Entries against what the NIC and the machine have: who took a rule away, what an
earlier run left, what is idle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.engine import audit
from atfnd.engine.table.flow_table import FlowTable, t_delete_in_force_ns
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    ActionKind,
    Cpu,
    Filter,
    Match,
    SocketUse,
)
from tests.values import NIC, flow, key, memory_of, one_rule

__all__: list[str] = []

S = 1_000_000_000
OURS = Filter(7, Match.of(key(1)), 1)
USE = SocketUse(1001, key(1), 1, 101, 1, 0)


def memory() -> Memory:
    return memory_of(FlowTable(100), one_rule(0, 1000 * S))


def test_an_earlier_runs_rule_stays_on_a_queue_whose_cpu_went_offline() -> None:
    """The kernel lets that queue run on several."""
    known = memory()
    known.cpus = {n: Cpu(n, n != 1, 0, 0, n, (n,), (n,)) for n in (1, 2, 3)}
    nic = replace(NIC, queues=tuple(replace(each, cpu=None) for each in NIC.queues))
    [flow_of], plan = audit.adopt(nic, [OURS], {Match.of(key(1)): USE}, known, S)
    assert plan == ()
    assert (flow_of.location, flow_of.target_queue, flow_of.target_cpu) == (7, 1, None)
    assert flow_of.app_cpu == 2


@pytest.mark.parametrize("why", ["no socket", "no queue", "no room"])
def test_an_earlier_runs_rule_that_cannot_be_kept_is_deleted(why: str) -> None:
    known = memory()
    if why == "no room":
        known.table.capacity = 0
    sockets = {} if why == "no socket" else {Match.of(key(1)): USE}
    rule = OURS._replace(queue=9) if why == "no queue" else OURS
    adopted, [delete] = audit.adopt(NIC, [rule], sockets, known, S)
    assert (adopted, known.table.get(key(1))) == ([], None)
    assert (delete.kind, delete.location, delete.old) == (ActionKind.DELETE, 7, rule.queue)
    assert not delete.live


def test_a_full_table_forgets_only_as_many_idle_flows_as_make_it_less_full() -> None:
    """T_delete grows as the table empties: one audit does not forget them all."""
    known = memory_of(FlowTable(100), one_rule(100, S))
    for number in range(100):
        known.table.put(flow(number, used_ns=99 * S + S // 2))
    uses = [SocketUse(1000 + number, key(number), 1, 101, 1, 0) for number in range(100)]
    audit.check_sockets(uses, {"nic": NIC}, known, 100 * S)
    left = len(known.table)
    rests_ns = [t_delete_in_force_ns(S, count, 100) for count in (left, left + 1)]
    assert rests_ns[1] < S // 2 <= rests_ns[0]
