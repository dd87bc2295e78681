# SPDX-License-Identifier: GPL-2.0-or-later
"""Actions as an admin would type them; and that what is foreseen is what arming then does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine.placement import steer
from atfnd.engine.plan import copy_of, foreseen
from atfnd.engine.prepare import prepare
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory, RulesInForce
from atfnd.model import (
    Action,
    ActionKind,
    Actuator,
    Filter,
    FlowKey,
    FlowState,
    Match,
    NicView,
    Placement,
    PlacementKind,
    Policy,
    Protocol,
    Queue,
    Thread,
    Topology,
)
from atfnd.model.reason import Code
from atfnd.nic.location import choose
from atfnd.program.shell_commands import ShellCommands, shell_commands
from tests.serve.published import topology
from tests.values import NIC, flow, key, memory_of, one_rule, seen
from tests.values import RULE as WANTED

__all__: list[str] = []

ETH = replace(NIC, name="eth0", caps=replace(NIC.caps, location_any=False, filter_slots=64))
ANY = replace(ETH, caps=replace(ETH.caps, location_any=True))
SHORT_GAP = replace(ETH, caps=replace(ETH.caps, actuator=Actuator.SHORT_GAP))
LAB = replace(NIC, name="lab:lab", caps=replace(NIC.caps, driver="lab"))
WORDS = "flow-type tcp4 src-ip 10.1.0.1 dst-ip 10.0.0.1 src-port 1000 dst-port 443"
UDP6 = FlowKey(Protocol.UDP, bytes(16), 53, bytes(16), 0)
NO_CPUS = Topology(())


def rule(kind: ActionKind, location: int | None = None, to: FlowKey | None = None) -> Action:
    new = None if kind is ActionKind.DELETE else 3
    return Action(kind, "eth0", to or key(1), location, 1, new, Code.KERNEL("why"), "rest")


def setting(name: str, value: str) -> Action:
    kind = ActionKind.SETTING
    return Action(
        kind, "eth0", None, None, None, None, Code.KERNEL("why"), "", setting=name, value=value
    )


def queue_cpu(queue: int) -> Action:
    return Action(ActionKind.QUEUE_CPU, "eth0", None, None, 1, 4, Code.KERNEL("why"), "", queue)


def typed(action: Action, nic: NicView = ETH) -> tuple[str, ...]:
    (hand,) = shell_commands((action,), nic)
    assert (hand.cannot is None) == bool(hand.commands)
    return hand.commands


@pytest.mark.parametrize(
    ("action", "nic", "commands"),
    [
        (rule(ActionKind.INSERT), ETH, [f"ethtool -N eth0 {WORDS} action 3 loc 59"]),
        (rule(ActionKind.INSERT), ANY, [f"ethtool -N eth0 {WORDS} action 3"]),
        (
            rule(ActionKind.INSERT, to=UDP6),
            ANY,
            ["ethtool -N eth0 flow-type udp6 dst-port 53 action 3"],
        ),
        (rule(ActionKind.REWRITE, 17), ETH, [f"ethtool -N eth0 {WORDS} action 3 loc 17"]),
        (
            rule(ActionKind.REWRITE, 17),
            SHORT_GAP,
            ["ethtool -N eth0 delete 17", f"ethtool -N eth0 {WORDS} action 3 loc 17"],
        ),
        (
            rule(ActionKind.REWRITE, 17),
            ANY,
            ["ethtool -N eth0 delete 17", f"ethtool -N eth0 {WORDS} action 3"],
        ),
        (rule(ActionKind.DELETE, 17), ETH, ["ethtool -N eth0 delete 17"]),
        (setting("priv:flow-director-atr", "off"), ETH,
         ["ethtool --set-priv-flags eth0 flow-director-atr off"]),
        (setting("rps-cpus:2", ""), ETH, ["echo 0 > /sys/class/net/eth0/queues/rx-2/rps_cpus"]),
        (setting("xps-cpus:1", "0,33"), ETH,
         ["echo 2,00000001 > /sys/class/net/eth0/queues/tx-1/xps_cpus"]),
        (setting("rps-flow-cnt:0", "4096"), ETH,
         ["echo 4096 > /sys/class/net/eth0/queues/rx-0/rps_flow_cnt"]),
        (setting("rps-sock-flow-entries", "32768"), ETH,
         ["echo 32768 > /proc/sys/net/core/rps_sock_flow_entries"]),
        (setting("rss-key", "6d5a6d5a"), ETH, ["ethtool -X eth0 hkey 6d:5a:6d:5a"]),
        (setting("rss", "0 1 2 0 1 2"), ETH, ["ethtool -X eth0 equal 3"]),
        (setting("rss", "0 0 0 2 3 3"), ETH, ["ethtool -X eth0 weight 3 0 1 2"]),
        (queue_cpu(1), ETH, ["taskset -pc 4 1001"]),
        (queue_cpu(0), replace(ETH, queues=(Queue(0, 1, 57, None, False, None),)),
         ["echo 4 > /proc/irq/57/smp_affinity_list"]),
        (queue_cpu(1), LAB, ["taskset -pc 4 1001"]),
    ],
)  # fmt: skip
def test_an_action_in_the_words_of_a_shell(
    action: Action, nic: NicView, commands: list[str]
) -> None:
    assert list(typed(action, nic)) == commands


@pytest.mark.parametrize(
    ("action", "nic", "word"),
    [
        (rule(ActionKind.INSERT), LAB, "emulated"),
        (setting("rss", "0 1"), LAB, "emulated"),
        (setting("rss", "0 2 1 0"), ETH, "single entries"),
        (queue_cpu(0), replace(ETH, queues=(Queue(0, 1, None, None, None, None),)), "no interrupt"),
    ],
)
def test_where_there_is_no_command_it_says_why(action: Action, nic: NicView, word: str) -> None:
    (hand,) = shell_commands((action,), nic)
    assert hand.commands == ()
    assert hand.cannot is not None
    assert word in hand.cannot


@given(st.sets(st.integers(0, 63)), st.integers(1, 70))
def test_locations_are_those_that_the_nic_would_be_asked_for(used: set[int], count: int) -> None:
    held = [Filter(at, Match.of(key(500 + at)), 0) for at in sorted(used)]
    plan = tuple(rule(ActionKind.INSERT, to=key(n)) for n in range(count))
    free = sum(1 << at for at in range(64) if at not in used)
    for hand in shell_commands(plan, replace(ETH, filters=tuple(held))):
        wanted = choose(free, 64, False, lambda at: False)
        if wanted is None:
            assert " loc " not in hand.commands[0]
            continue
        free &= ~(1 << wanted)
        assert hand.commands[0].endswith(f" loc {wanted}")


def test_a_location_that_a_delete_frees_is_used_again() -> None:
    held = tuple(Filter(at, Match.of(key(500 + at)), 0) for at in range(64))
    plan = rule(ActionKind.DELETE, 7, key(507)), rule(ActionKind.INSERT)
    assert shell_commands(plan, replace(ETH, filters=held))[1] == ShellCommands(
        (f"ethtool -N eth0 {WORDS} action 3 loc 7",)
    )


UNARMED = replace(NIC, armed=False)


def observed(*cpus: int) -> Memory:
    """Flows of a NIC that is not armed, used on these CPUs and delivered on CPU 3."""
    memory = memory_of(FlowTable(100), one_rule(0, 10_000))
    for number, cpu in enumerate(cpus):
        used = seen(number, cpu, thread=Thread(number, number, "app", None))
        assert steer.seen(used, UNARMED, WANTED, memory, 5) == ()
    return memory


@given(st.lists(st.integers(0, 5), max_size=12))
def test_what_is_foreseen_is_what_arming_decides_and_leaves_no_trace(cpus: list[int]) -> None:
    memory = observed(*cpus)
    before = list(memory.table)
    plan = foreseen(UNARMED, NO_CPUS, copy_of(memory, NIC.name), memory.table, 6)
    assert list(memory.table) == before
    assert all(each.state is FlowState.OBSERVED for each in before)
    assert plan == steer.take_up(NIC, memory, 6, manual=True)
    assert len(plan) == sum(cpu < 3 for cpu in cpus)  # the others are there, or have no queue


def test_queues_are_foreseen_where_they_are_put_first() -> None:
    anywhere = tuple(replace(queue, cpu=None) for queue in NIC.queues)
    settings = {f"queue-cpu:{queue.index}": "0-7" for queue in NIC.queues}
    nic = replace(UNARMED, queues=anywhere, settings=settings)
    memory = observed(0)
    plan = foreseen(nic, topology(), copy_of(memory, nic.name), memory.table, 6)
    confined = {each.queue: each.new for each in plan if each.kind is ActionKind.QUEUE_CPU}
    assert confined.keys() == {0, 1, 2, 3}
    (insert,) = [each for each in plan if each.kind is ActionKind.INSERT]
    assert confined[insert.new] == 0


PLACEMENTS = [
    Placement(PlacementKind.LLC, avoid_smt=True),
    Placement(PlacementKind.NODE),
    Placement(PlacementKind.SMT),
    Placement(PlacementKind.CPUS, frozenset({2})),
    Placement(PlacementKind.DEDICATED, frozenset({3})),
]


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_other_placements_are_foreseen_as_arming_decides_them(placement: Placement) -> None:
    """By the machine's CPUs, the cpusets of threads, and what filters there are for them."""
    policy = Policy((), (replace(WANTED, placement=placement),), "auto", 100, 0, ())
    memory = memory_of(FlowTable(100), RulesInForce.of(policy))
    memory.know_cpus(topology().cpus)
    memory.know_cpusets({1: frozenset({0})})
    unarmed, armed = (replace(nic, budget=3) for nic in (UNARMED, NIC))
    for number in range(4):
        used = seen(number, 0, thread=Thread(number, number, "app", None), rx_cpu=1)
        assert steer.seen(used, unarmed, policy.flows[0], memory, 5) == ()
    memory.table.put(flow(99, nic=NIC.name, state=FlowState.MANUAL))
    memory.table.promise(key(99), True)  # of three slots, one is spoken for
    plan = foreseen(unarmed, topology(), copy_of(memory, NIC.name), memory.table, 6)
    assert {*memory.table.promised(NIC.name)} == {key(99)}
    assert plan == steer.take_up(armed, memory, 6, manual=True)
    usual = placement.kind in (PlacementKind.NODE, PlacementKind.SMT)  # RSS has them right
    assert usual or {2, 3} & {each.new for each in plan}


def test_dedicated_cpus_are_foreseen_to_have_a_queue() -> None:
    settings = {f"queue-cpu:{queue.index}": "0-7" for queue in NIC.queues}
    nic = replace(
        UNARMED, queues=tuple(replace(q, cpu=None) for q in NIC.queues), settings=settings
    )
    placement = Placement(PlacementKind.DEDICATED, frozenset({7}))
    policy = Policy((), (replace(WANTED, placement=placement),), "auto", 100, 0, ())
    memory = memory_of(FlowTable(100), RulesInForce.of(policy))
    plan = foreseen(nic, topology(), copy_of(memory, NIC.name), memory.table, 6)
    assert plan == prepare(replace(nic, armed=True), topology(), policy.dedicated())
    assert 7 in {each.new for each in plan}


def test_flows_of_another_nic_and_flows_that_leave() -> None:
    memory = observed(0, 1)
    memory.table.put(flow(50, nic="other", state=FlowState.OBSERVED))
    left = flow(51, location=9, target_queue=1, state=FlowState.STEERED)
    memory.table.put(left)
    memory.table.leave(left.key)
    plan = foreseen(UNARMED, NO_CPUS, copy_of(memory, NIC.name), memory.table, 6)
    kinds = [each.kind for each in plan]
    assert kinds == [ActionKind.DELETE, ActionKind.INSERT, ActionKind.INSERT]
    assert {*memory.table.leaving()} == {left.key}
