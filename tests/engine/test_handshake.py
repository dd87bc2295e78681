# SPDX-License-Identifier: GPL-2.0-or-later
"""What the engine makes of connects, listeners and readers: whom it asks, whom it tells, and which
filters of ports and prefixes follow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atfnd.engine.command import (
    Begin,
    Command,
    LookAtPorts,
    ReportEnd,
)
from atfnd.engine.engine import Engine
from atfnd.engine.event import (
    BirthHeard,
    BirthsHeard,
    Event,
    ListenersFound,
    MovesReported,
    NicAttached,
    Offer,
    PortsLooked,
    TakenUp,
)
from atfnd.engine.filters.listeners import Asked
from atfnd.engine.handshake.handshake import keeps_order_from_birth
from atfnd.engine.table.flow_table import Writing
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    Action,
    ActionKind,
    FlowKey,
    FlowRule,
    FlowState,
    Forked,
    Listening,
    Mode,
    NicView,
    Outcome,
    Placement,
    Policy,
    Protocol,
    Rss,
    SocketUse,
    ThreadReads,
)
from atfnd.model.reason import Code
from atfnd.move.command import Ended
from atfnd.move.verdict import Mechanism, Verdict
from tests.engine.test_birth import FAR_NS, syn
from tests.engine.test_port_filters import EXACT_WINS, OTHER, PORT, listening
from tests.values import RULE, THREAD, flow, key

__all__: list[str] = []

STRICT = replace(RULE, order=Mode.STRICT)


class Bed:
    """The real engine and one NIC; the policy has one rule for everything."""

    def __init__(self, rule: FlowRule = STRICT, nic: NicView = EXACT_WINS) -> None:
        self.rule = rule
        self.engine = Engine(Memory.of(Policy((), (rule,), "auto", 64, 0, ())))
        self.tell(NicAttached(nic, armed=nic.armed))
        for number in (1, 2, 3):
            self.engine.handshakes.connects.distances.learn(key(number).remote, FAR_NS)

    @property
    def memory(self) -> Memory:
        return self.engine.memory

    def tell(self, event: Event, now_ns: int = 70) -> list[Command]:
        return [*self.engine.handle(event, now_ns)]

    def hears(self, *births: Any, rss_queue: int | None = 0) -> list[Command]:
        """Each may come by this NIC alone."""
        offers = (Offer("nic", self.rule, rss_queue),)
        return self.tell(BirthsHeard(tuple(BirthHeard(each, "nic", offers) for each in births)))

    def looks(self, *uses: SocketUse, now_ns: int = 70) -> list[Action]:
        """At its ports."""
        asked = self.engine.ports_to_match()
        rules = {nic: dict.fromkeys(each, self.rule) for nic, each in asked.items()}
        return written(self.tell(PortsLooked(rules, uses), now_ns))

    def port(self, **changes: Any) -> None:
        """It has a filter, for a socket that listens."""
        self.hears(listening())
        entry = flow(0, key=PORT, cookie=1, state=FlowState.STEERED, location=5, target_queue=2)
        self.memory.table.put(entry._replace(thread=None, **changes))


def written(commands: list[Command]) -> list[Action]:
    begun = [each for each in commands if isinstance(each, Begin)]
    return [wanted.action for each in begun for wanted in each.wanted]


@pytest.mark.parametrize(
    ("changes", "keeps"),
    [
        ({}, True),
        ({"order": Mode.IMMEDIATE}, False),
        ({"placement": Placement.LEAVE}, False),
        ({"min_bytes": 1}, False),
        ({"min_age_ns": 1}, False),
        ({"min_rate_bit_s": 1}, False),
    ],
)
def test_only_a_rule_that_steers_in_order_and_at_once_is_asked_at_a_birth(
    changes: dict[str, Any], keeps: bool
) -> None:
    rule = replace(STRICT, **changes)
    assert keeps_order_from_birth(rule) is keeps
    bed = Bed(rule)
    assert bool(written(bed.hears(syn()))) is keeps
    bed.hears(listening())
    assert bool(bed.looks()) is keeps


def looked_at(commands: list[Command]) -> bool:
    return any(isinstance(each, LookAtPorts) for each in commands)


def test_ports_are_looked_at_when_it_may_matter_who_serves_them() -> None:
    bed = Bed()
    assert looked_at(bed.hears(listening()))
    reads = ThreadReads(70, key(1), 102, THREAD, 2)
    assert not looked_at(bed.hears(reads))
    other = [reads._replace(thread=OTHER, at_ns=at) for at in range(71, 200)]
    assert looked_at(bed.hears(*other))
    assert looked_at(bed.hears(Forked(80, THREAD.pid)))
    assert not looked_at(bed.hears(Forked(81, THREAD.pid)))  # that is known
    assert not looked_at(bed.hears(Forked(82, 4711)))


def test_why_the_port_of_a_connection_has_no_filter() -> None:
    bed = Bed()
    bed.tell(ListenersFound("nic", (Listening(5, 1, PORT, 1, THREAD, 2),)))
    bed.looks()
    why = bed.engine.handshakes.why_no_port
    assert "nobody has read a connection yet" in (why("nic", key(1), bed.memory) or "")
    assert why("nic", key(1)._replace(protocol=Protocol.UDP), bed.memory) is None
    entry = flow(0, key=PORT, cookie=1, location=5, target_queue=2)
    bed.memory.table.put(entry)
    assert why("nic", key(1), bed.memory) is None  # it has one


def test_a_move_of_a_flow_that_its_ports_filter_serves_is_from_the_queue_of_that() -> None:
    bed = Bed()
    bed.memory.table.put(flow(0, key=PORT, cookie=0, location=4, target_queue=3))
    bed.memory.table.put(flow(1, app_cpu=2))
    commands = bed.tell(TakenUp("nic"))
    [begin] = [each for each in commands if isinstance(each, Begin)]
    assert [(each.action.new, each.rss) for each in begin.wanted] == [(2, frozenset({3}))]


@pytest.mark.parametrize(("rss", "through"), [(EXACT_WINS.rss, {0, 1}), (None, None)])
def test_while_that_filter_is_about_to_go_it_may_come_through_rss_too(
    rss: Rss | None, through: set[int] | None
) -> None:
    """A driver that deletes and inserts to rewrite leaves it to whatever serves it in between."""
    bed = Bed(nic=replace(EXACT_WINS, rss=rss))
    bed.port()
    known, port = bed.memory.nics["nic"].listeners, bed.memory.table.get(PORT)
    assert known is not None
    assert port is not None
    known.asked[PORT] = Asked(60, 1)
    bed.memory.table.put(port._replace(target_queue=1))
    bed.memory.table.put(flow(1, app_cpu=2))
    [begin] = [each for each in bed.tell(TakenUp("nic")) if isinstance(each, Begin)]
    [found] = [each.rss for each in begin.wanted if each.action.key == key(1)]
    assert found == through


def put_off(of: FlowKey | None, why: str, verdict: Verdict = Verdict.DEFERRED) -> Ended:
    kind = ActionKind.QUEUE_CPU if of is None else ActionKind.INSERT
    queue = 1 if of is None else None
    action = Action(kind, "nic", of, None, None, 1, Code.UNSAID(), "", queue)
    return Ended(
        of if of is not None else 1, action, Mechanism.NONE, verdict, Code.KERNEL(why), 0, 0
    )


def test_how_the_move_of_a_queue_ends_is_news_once_and_success_is_none() -> None:
    bed = Bed()

    def news(verdict: Verdict, why: str) -> list[bool]:
        commands = bed.tell(MovesReported((put_off(None, why, verdict),)))
        return [each.news for each in commands if isinstance(each, ReportEnd)]

    assert news(Verdict.DEFERRED, "busy") == [True]
    assert news(Verdict.DEFERRED, "busy") == [False]
    assert news(Verdict.DEFERRED, "another reason") == [True]
    assert news(Verdict.DONE, "") == [False]


def test_the_end_of_an_earlier_write_is_not_taken_for_that_of_a_first_filter() -> None:
    bed = Bed()
    [action] = written(bed.hears(syn()))
    bed.tell(MovesReported((put_off(key(1), "another decision replaced it"),)))
    assert bed.memory.table.get(key(1)) is not None
    assert bed.memory.table.writing(Writing.CONNECT) == [key(1)]
    bed.tell(MovesReported((Outcome(action, 71, 0, 5, ""),)))
    entry = bed.memory.table.get(key(1))
    assert entry is not None
    assert (entry.state, entry.location) == (FlowState.STEERED, 5)
