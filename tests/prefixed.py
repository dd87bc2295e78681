# SPDX-License-Identifier: GPL-2.0-or-later
"""A small filter table in simulated time, and a policy of several rules, for prefix rules."""

from __future__ import annotations

from dataclasses import replace

from atfnd.engine.filters import aggregate, budget
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import RulesInForce
from atfnd.engine.table.wide_key import bits, covers
from atfnd.model import (
    Action,
    ActionKind,
    Facts,
    FlowKey,
    FlowRule,
    FlowState,
    Listening,
    Match,
    Mode,
    Network,
    Placement,
    Plan,
    Policy,
    Protocol,
    Shape,
    Thread,
)
from atfnd.move.plan import in_order
from atfnd.nic.location import choose, is_wide
from atfnd.policy.match.match import Matcher, RulesOfMany
from bench.simulated import Load, Simulated
from tests.engine.test_port_filters import EXACT_WINS, OTHER
from tests.values import RULE, THREAD, memory_of

__all__ = ["HERE", "LEFT", "ORDERED", "TCP", "THERE", "UDP", "Bed", "load", "network"]

TCP, UDP = Protocol.TCP, Protocol.UDP
HERE, THERE = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
CPU = {THREAD.tid: 1, OTHER.tid: 2}
RATE = 1_000_000
SHAPES = frozenset(
    Shape(4, protocol, *address, *ports)
    for protocol in (TCP, UDP)
    for address in ((True, False), (False, True), (False, False))
    for ports in ((True, False), (False, True), (False, False))
)
ORDERED = replace(RULE, order=Mode.STRICT)
LEFT = replace(ORDERED, name="left", placement=Placement.LEAVE)


def network(text: str, prefix: int) -> Network:
    return Network(4, bytes(map(int, text.split("."))), prefix)


class Bed(Simulated):
    """A table of so many filters, as two kinds of NIC classify by it: the lowest location wins, or
    the filter that names most. Fails where they differ, and when a write moves a flow that it is
    not for."""

    def __init__(self, loads: list[Load], rules: tuple[FlowRule, ...], slots: int, room: int,
                 served: tuple[Listening, ...] = ()) -> None:  # fmt: skip
        caps = replace(EXACT_WINS.caps, shapes=SHAPES, filter_slots=slots)
        core = [each for each in rules if each.placement is Placement.CORE]
        by_name = {each.name: replace(each, t_delete_ns=1 << 60) for each in core}
        known = memory_of(FlowTable(1000), RulesInForce(100, 1 << 60, by_name))
        nic = replace(EXACT_WINS, caps=caps, budget=room, foreign=0)
        super().__init__(nic, ORDERED, known, loads, slots=slots, served=served, prefixes=True)
        self.rules, self._matcher = rules, Matcher(_policy(rules))
        self._of_many = RulesOfMany()

    def rule_for(self, key: FlowKey) -> FlowRule | None:
        return self._matcher.first_match(Facts(key, interface="nic"))

    def rule_of(self, wide: FlowKey) -> FlowRule | None:
        if wide.listens:
            rule = self._matcher.of_port(Facts(wide, interface="nic"))
        else:
            rule = self._of_many({each.name: each for each in self.rules}, "nic", wide)
        return None if rule is None or rule.placement is Placement.LEAVE else rule

    def location_for(self, key: FlowKey) -> int | None:
        slots = self.slots or 0
        free = sum(1 << at for at in range(slots) if at not in self.held)
        return choose(free, slots, is_wide(Match.of(key)), lambda at: self.held[at][0].wide)

    def queue_of(self, key: FlowKey) -> int:
        catching = [(at, *held) for at, held in self.held.items() if covers(held[0], key)]
        if not catching:
            return self._rss[key]
        lowest = min(catching)
        narrowest = max(catching, key=lambda each: (not each[1].wide, bits(each[1]), -each[0]))
        assert lowest[2] == narrowest[2], "NICs would differ"
        return lowest[2]

    def carry_out(self, plan: Plan) -> None:
        for action in in_order(plan):
            before = {load.key: self.queue_of(load.key) for load in self.loads}
            may = self.may_move(action)
            super().carry_out((action,))
            moved = {key for key in before if self.queue_of(key) != before[key]}
            assert moved <= may, f"{action} moved {moved - may}"

    def may_move(self, action: Action) -> set[FlowKey]:
        """Its flow; of a rule for many those that wait for just this; none, where a rule is said to
        be needless."""
        if action.key is None:
            return set()
        if not action.key.wide:
            return set() if "leads it there too" in action.why else {action.key}
        if action.kind is not ActionKind.INSERT:
            return set()
        flows = [each for each in self.memory.table if budget.waits(each)]
        at = {each.key: aggregate.belongs(each, self.nic, self.memory) for each in flows}
        return {key for key, queue in at.items() if queue == action.new}

    def prefix_filters(self) -> set[FlowKey]:
        return {held for held, _ in self.held.values() if held.wide and not held.listens}

    def check(self) -> None:
        """Every flow is delivered as it would be with a rule of its own, if it has to have one."""
        for load in self.loads:
            at, rule = self.queue_of(load.key), self.rule_for(load.key)
            flow = self.memory.table.get(load.key)
            if rule is None or rule.placement is Placement.LEAVE:
                assert at == load.rss_queue, f"{load.key} is to be left alone"
            elif flow is not None and flow.state in (FlowState.STEERED, FlowState.PORT):
                assert at == flow.target_queue
                assert flow.rule_name == rule.name
            wide = self.memory.table.covering(load.key)
            if wide is not None and not wide.key.listens:  # those go by what is alike
                assert rule is not None
                assert wide.rule_name == rule.name


def _policy(rules: tuple[FlowRule, ...]) -> Policy:
    return Policy((), rules, "auto", 1000, 0, ())


def load(
    remote: str, remote_port: int, thread: Thread = THREAD, *, rss: int = 3, local_port: int = 0,
    local: bytes = HERE, protocol: Protocol = TCP, rate: int = RATE, number: int = 0,
) -> Load:  # fmt: skip
    port = local_port or 40_000 + number
    there = bytes(map(int, remote.split(".")))
    key = FlowKey(protocol, local, port, there, remote_port)
    return Load(key, CPU[thread.tid], rate, rss, thread)
