# SPDX-License-Identifier: GPL-2.0-or-later
"""When the daemon wants a count of what is forwarded, and what the engine gets of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from atfnd.daemon.forwarding import Forwarded
from atfnd.daemon.in_force import InForce
from atfnd.engine.event import PairsCounted
from atfnd.model import ForwardingRule, Mode, PairPlacement, Pairs
from atfnd.policy.file.load import built_in
from atfnd.serve.log.event_log import EventLog
from tests.values import NIC

RULE = ForwardingRule("gateway", "t:1", ("in",), ("out",), False, PairPlacement.CORE, Mode.STRICT)
COUNT = Pairs(2.0, None, 0, ())


class Bed:
    """`wants`: who wants the count now."""

    def __init__(self, rule: ForwardingRule | None, armed: bool = True) -> None:
        self.wants, self.found = set[object](), COUNT
        self.taken: list[PairsCounted] = []
        self.log = EventLog()
        rules = () if rule is None else (rule,)
        self.in_force = InForce(replace(built_in(), forwarding=rules))
        part: Any = SimpleNamespace
        pairing = part(want=self.wants.add, release=self.wants.discard, counted=lambda: self.found)
        sessions: Any = {
            name: part(view=replace(NIC, name=name, armed=armed)) for name in ("in", "out")
        }
        self.settled, self.now_s = False, 1000.0
        engine = part(forwarding_settled=lambda: self.settled)
        self.forwarded = Forwarded(
            engine, self.in_force, sessions, pairing, self.log, self.taken.append,
            lambda: self.now_s,
        )  # fmt: skip

    def counted(self, looks: int = 1) -> None:
        """So many looks, each with a count of its own."""
        for _ in range(looks):
            self.found = replace(COUNT, seconds=self.now_s)
            self.forwarded.look()
            self.now_s += 2.0

    def events(self) -> list[str]:
        return [event.kind for event in self.log.after(0, 100)]


@pytest.mark.parametrize(
    ("rule", "armed"),
    [
        (None, True),
        (replace(RULE, placement=PairPlacement.LEAVE), True),
        (RULE, False),
        (replace(RULE, egress=("elsewhere",)), True),
    ],
)
def test_nothing_is_counted_where_nothing_is_placed(
    rule: ForwardingRule | None, armed: bool
) -> None:
    bed = Bed(rule, armed)
    bed.forwarded.look()
    assert (bed.wants, bed.taken) == (set(), [])


def test_a_kernel_that_refuses_is_reported_once() -> None:
    bed = Bed(RULE)
    for seconds in (0.0, 1.0):
        bed.found = Pairs(seconds, "the kernel refuses the program", 0, ())
        bed.forwarded.look()
    assert bed.taken == []
    assert bed.events() == ["refused"]


def test_what_is_settled_is_counted_seldom_until_it_is_not() -> None:
    bed = Bed(RULE)
    bed.settled = True
    bed.counted(5)
    assert (bed.wants, len(bed.taken)) == (set(), 5)
    bed.counted(8)
    assert (bed.wants, len(bed.taken)) == (set(), 5)  # for 20 s
    bed.counted(2)
    assert (bed.wants, len(bed.taken)) == (set(), 6)  # one more, and it rests again
    bed.settled = False
    bed.counted(30)
    assert bed.wants == {bed.forwarded}
    assert len(bed.taken) > 20


def test_another_policy_ends_the_rest_and_one_without_the_rule_the_count() -> None:
    bed = Bed(RULE)
    bed.settled = True
    bed.counted(6)
    assert len(bed.taken) == 5
    bed.in_force.policy = replace(bed.in_force.policy)
    bed.counted()
    assert (len(bed.taken), bed.wants) == (6, {bed.forwarded})
    bed.in_force.policy = built_in()
    bed.forwarded.look()
    assert bed.wants == set()
