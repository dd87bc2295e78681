# SPDX-License-Identifier: GPL-2.0-or-later
"""What a filter is worth by distance, and how many of a NIC are ours."""

from __future__ import annotations

from dataclasses import replace

from atfnd.engine.filters import budget
from atfnd.engine.placement import steer
from atfnd.model import Cpu, Node, Topology
from tests.engine.test_steer import memory
from tests.values import NIC, RULE, THREAD, key, seen

__all__: list[str] = []


def test_another_node_is_farther_than_another_core() -> None:
    cpus = tuple(Cpu(n, True, n // 2, n // 2, n, (n,), (n,)) for n in range(4))
    nodes = (Node(0, (0, 1), {0: 10, 1: 31}), Node(1, (2, 3), {0: 31, 1: 10}))
    known = memory()
    small = replace(NIC, budget=0)
    for number, cpu in ((1, 2), (2, 0)):
        thread = replace(THREAD, tid=number)
        steer.seen(seen(number, cpu, thread=thread), small, RULE, known, 1)
    near = {key(1): 3, key(2): 3}.get
    for at_ns in (10**9, 2 * 10**9):
        budget.weigh(small, Topology(cpus, nodes), near, known, at_ns)
    records = [known.table.record(key(n)) for n in (1, 2)]
    assert [r.pending.weight.mismatch for r in records if r and r.pending.weight] == [1.0, 3.1]


def test_others_filters_count_first_against_the_reserve() -> None:
    nic = replace(NIC, budget=6, caps=replace(NIC.caps, filter_slots=8))  # reserve: 2
    shares = [budget.share(replace(nic, foreign=n)) for n in (None, 0, 2, 5, 9)]
    assert shares == [6, 6, 6, 3, 0]
    assert budget.share(NIC) is None
