# SPDX-License-Identifier: GPL-2.0-or-later
"""What arming a NIC would begin with is foreseen as the engine then does it, and foreseeing it
changes nothing that the engine knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.engine.engine import Engine
from atfnd.engine.event import CpusRead, NicAttached
from atfnd.engine.plan import copy_of, foreseen
from atfnd.engine.table.memory import FoundFull, Memory
from atfnd.model import (
    ActionKind,
    FlowRule,
    FlowState,
    NicView,
    Plan,
    Policy,
    Topology,
)
from atfnd.model.rests import Rest
from tests.engine.test_full_cpus import CPUS
from tests.values import NIC, RULE, flow, key

__all__: list[str] = []

TOPOLOGY = Topology(tuple(CPUS.values()))
UNARMED = replace(NIC, armed=False)
NOW_NS = 10**12


def known_of(nic: NicView, rule: FlowRule = RULE, topology: Topology = TOPOLOGY) -> Memory:
    """A NIC that is watched, and one flow that its thread uses on CPU 1, off its packets' CPU."""
    engine = Engine(Memory.of(Policy((), (rule,), "auto", 100, 0, ())))
    for event in (CpusRead(topology), NicAttached(nic, armed=nic.armed)):
        list(engine.handle(event, 0))
    engine.memory.nics[nic.name].view = nic
    wanted = flow(1, app_cpu=1, rx_queue=3, rx_cpu=3)
    engine.memory.table.put(wanted)
    return engine.memory


def plan_of(known: Memory, topology: Topology = TOPOLOGY) -> Plan:
    copied = copy_of(known, NIC.name)
    return foreseen(known.nics[NIC.name].view, topology, copied, known.table, NOW_NS)


def test_a_wanted_flow_of_a_nic_that_is_not_armed_has_its_filter_in_the_plan() -> None:
    known = known_of(UNARMED)
    (action,) = plan_of(known)
    assert (action.kind, action.key, action.new) == (ActionKind.INSERT, key(1), 1)
    assert [each.state for each in known.table] == [FlowState.WANTED]


def test_settings_come_first_and_what_follows_counts_on_them() -> None:
    """Two queues are confined to no CPU: arming gives each one, and the flow goes to the queue
    that is then on its core, with the others where they were."""
    loose = {0: "0-3", 1: "0-3"}
    settings = {f"queue-cpu:{queue.index}": str(queue.cpu) for queue in NIC.queues}
    settings |= {f"queue-cpu:{index}": cpus for index, cpus in loose.items()}
    queues = tuple(replace(q, cpu=None) if q.index in loose else q for q in NIC.queues)
    known = known_of(replace(UNARMED, queues=queues, settings=settings))
    *confined, insert = plan_of(known)
    assert {(each.queue, each.new, each.kind) for each in confined} == {
        (0, 0, ActionKind.QUEUE_CPU),
        (1, 1, ActionKind.QUEUE_CPU),
    }
    assert (insert.kind, insert.new) == (ActionKind.INSERT, 1)


@pytest.mark.parametrize("armed", [True, False])
def test_what_another_program_set_is_written_only_by_arming_again(armed: bool) -> None:
    setting = "rps-cpus:2"
    nic = replace(NIC, armed=armed, settings={setting: "0-3"}, manual=frozenset({setting}))
    plan = plan_of(known_of(nic))
    assert [each.setting for each in plan if each.setting] == ([] if armed else [setting])


def test_what_a_plan_spends_is_not_spent() -> None:
    known = known_of(UNARMED)
    spending = known.nics[NIC.name].spending
    copied = copy_of(known, NIC.name).memory.nics[NIC.name].spending
    copied.promised.add(key(9))
    copied.later[key(9)] = Rest(1, 1)
    copied.found_full[4] = FoundFull(1, 1, 1)
    assert (spending.promised, spending.later, spending.found_full) == (set(), {}, {})
