# SPDX-License-Identifier: GPL-2.0-or-later
"""What the engine holds of how a NIC stands: armed, paused, its budget, its steering method."""

from __future__ import annotations

from dataclasses import replace

from atfnd.engine.command import Adopt, Log
from atfnd.engine.engine import Engine
from atfnd.engine.event import (
    Event,
    FiltersLeft,
    MethodDue,
    NicAttached,
    NicRead,
    PolicyLoaded,
)
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    Conflict,
    Filter,
    InterfaceRule,
    Match,
    Placement,
    PlacementKind,
    Policy,
    SocketUse,
    SteeringMethod,
)
from tests.values import NIC, RULE, key

__all__: list[str] = []

BOUNDED = InterfaceRule("*", "test:1", armed=True, filters_max=None, filters_reserve=10)
POLICY = Policy((BOUNDED,), (RULE,), "auto", 64, 0, ())
ANOTHER = Conflict("another program steers it", "end that", blocks=True)


def an_engine(*, armed: bool = True) -> Engine:
    engine = Engine(Memory.of(POLICY))
    engine.handle(NicAttached(NIC, armed), 0)
    return engine


def stands(engine: Engine, *events: Event) -> tuple[bool, bool]:
    """It is armed, and paused, after these events."""
    for event in events:
        assert engine.handle(event, 0) == []
    view = engine.views["nic"]
    return view.armed, view.paused


def test_the_policy_says_how_many_filters_it_may_hold() -> None:
    """A NIC may say how many it has room for only when it is armed."""
    engine = an_engine()
    assert engine.views["nic"].budget == 4086
    roomy = replace(NIC, caps=replace(NIC.caps, filter_slots=100))
    engine.handle(NicRead(roomy), 0)
    assert engine.views["nic"].budget == 90
    strict = replace(POLICY, interfaces=(replace(BOUNDED, filters_max=7),))
    engine.handle(PolicyLoaded(strict, {}, frozenset()), 0)
    assert engine.views["nic"].budget == 7
    engine.handle(NicRead(replace(roomy, caps=replace(NIC.caps, filter_slots=15))), 0)
    assert engine.views["nic"].budget == 5


def test_how_it_is_steered_follows_from_what_was_read_and_is_said_once() -> None:
    engine = an_engine()
    (log,) = engine.handle(MethodDue("nic"), 0)
    assert isinstance(log, Log)
    assert (log.kind, log.what) == ("method", "filters")
    assert engine.handle(MethodDue("nic"), 0) == []
    engine.handle(NicRead(replace(NIC, conflicts=(ANOTHER,))), 0)
    assert engine.views["nic"].method is SteeringMethod.FILTERS  # not all has been read yet
    (log,) = engine.handle(MethodDue("nic"), 0)
    view = engine.views["nic"]
    assert (view.method, ANOTHER.what in str(view.method_why)) == (SteeringMethod.NONE, True)
    assert isinstance(log, Log)
    assert (log.why, log.fields) == (view.method_why, {"nic": "nic"})


def test_an_adopted_flow_is_reported_anew_when_another_policy_wants_flows_elsewhere() -> None:
    """It is used where it arrives: that is no news to an observer, but not where it belongs now."""
    engine, use = an_engine(), SocketUse(1001, key(1), None, None, None, 0)
    engine.handle(FiltersLeft("nic", (Filter(7, Match.of(key(1)), 2),), (use,)), 0)
    cpus = Placement(PlacementKind.CPUS, frozenset({1}))
    for rule, said in ((RULE, []), (replace(RULE, placement=cpus), [Adopt({1001: 2})])):
        policy = replace(POLICY, flows=(rule,))
        (flow,) = engine.memory.table
        rules = {(flow.cookie, flow.key): flow.rule_name}
        assert engine.handle(PolicyLoaded(policy, rules, frozenset()), 1) == said
