# SPDX-License-Identifier: GPL-2.0-or-later
"""Entries and rules never part, whatever is seen, closed, refused or waited for."""

from __future__ import annotations

import errno

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from atfnd.engine import audit
from atfnd.engine.placement import steer
from atfnd.engine.table import retire
from atfnd.model import Action, ActionKind, Filter, Match, Outcome, Plan, SocketUse
from atfnd.move.plan import in_order
from tests.engine.test_steer import memory
from tests.values import NIC, RULE, key, seen


class Steering(RuleBasedStateMachine):
    """A NIC of six slots, refusals of any kind, a dozen sockets: entries and rules never part."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = memory(capacity=8)
        self.held: dict[int, tuple[object, int]] = {}
        self.now_ns = 1
        self.refuse = 0

    def apply(self, action: Action) -> Outcome:
        code, location = self.refuse, action.location
        if not code and action.kind is ActionKind.INSERT:
            location = next((n for n in range(6) if n not in self.held), None)
            code = errno.ENOSPC if location is None else 0
        if not code and location is not None:
            if action.kind is ActionKind.DELETE:
                del self.held[location]
            else:
                assert action.new is not None
                self.held[location] = action.key, action.new
        return Outcome(action, self.now_ns, code, location, "refused" if code else "")

    def carry_out(self, plan: Plan) -> None:
        for action in in_order(plan):
            audit.record(self.apply(action), self.memory)

    @rule(number=st.integers(0, 11), cpu=st.integers(0, 5), rx=st.none() | st.integers(0, 3))
    def use(self, number: int, cpu: int, rx: int | None) -> None:
        event = seen(number, cpu, rx_cpu=rx, off_since_ns=self.now_ns)
        self.carry_out(steer.seen(event, NIC, RULE, self.memory, self.now_ns))

    @rule(number=st.integers(0, 11))
    def close(self, number: int) -> None:
        self.carry_out(retire.gone(1000 + number, self.memory))

    @rule(step_ns=st.integers(1, 300))
    def wait(self, step_ns: int) -> None:
        self.now_ns += step_ns
        self.carry_out(steer.due({"nic": NIC}, self.memory, self.now_ns))

    @rule(code=st.sampled_from([0, 0, errno.EIO, errno.EBUSY]))
    def mood(self, code: int) -> None:
        self.refuse = code

    @rule(alive=st.sets(st.integers(0, 11)))
    def look(self, alive: set[int]) -> None:
        uses = [SocketUse(1000 + n, key(n), None, None, None, 0) for n in alive]
        self.carry_out(audit.check_sockets(uses, {"nic": NIC}, self.memory, self.now_ns))

    @invariant()
    def entries_and_rules_agree(self) -> None:
        known = {f.location: (f.key, f.target_queue) for f in self.memory.table.steered("nic")}
        assert known == self.held
        assert len(self.memory.table) <= 8
        assert audit.check_filters(NIC, self.listed(), self.memory, self.now_ns) == []

    def listed(self) -> list[Filter]:
        known = {flow.location: flow.key for flow in self.memory.table.steered("nic")}
        return [Filter(at, Match.of(known[at]), queue) for at, (_, queue) in self.held.items()]


TestSteering = Steering.TestCase
