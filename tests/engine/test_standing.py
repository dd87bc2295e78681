# SPDX-License-Identifier: GPL-2.0-or-later
"""What the engine holds of how a NIC stands: armed, paused, its budget, its steering method."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.engine.command import Adopt, Begin, Expect, Log
from atfnd.engine.engine import Engine
from atfnd.engine.event import (
    Armed,
    ArmedAfterPause,
    CpusRead,
    Disarmed,
    Event,
    FiltersLeft,
    ForeignFound,
    MethodDue,
    NicAttached,
    NicLost,
    NicRead,
    Paused,
    PolicyLoaded,
    Resumed,
    SettingsLeftAlone,
    SocketReported,
    TakenUp,
)
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    Conflict,
    Cpu,
    Filter,
    FlowState,
    InterfaceRule,
    Match,
    Node,
    Placement,
    PlacementKind,
    Policy,
    SocketUse,
    SteeringMethod,
    Topology,
)
from tests.values import NIC, RULE, key, seen

__all__: list[str] = []

BOUNDED = InterfaceRule("*", "test:1", armed=True, filters_max=None, filters_reserve=10)
POLICY = Policy((BOUNDED,), (RULE,), "auto", 64, 0, ())
MACHINE = Topology(tuple(Cpu(n, True, 0, 0, n, (n,), (n,)) for n in range(4)), (Node(0, (), {}),))
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


def test_an_order_is_in_force_at_once() -> None:
    engine = an_engine(armed=False)
    assert stands(engine) == (False, False)
    assert stands(engine, Armed("nic")) == (True, False)
    assert stands(engine, Disarmed("nic")) == (False, False)


@pytest.mark.parametrize("armed", [True, False])
def test_the_end_of_a_pause_brings_back_what_was(*, armed: bool) -> None:
    engine = an_engine(armed=armed)
    assert stands(engine, Paused("nic")) == (False, True)
    assert engine.memory.nics["nic"].armed_again == armed
    assert stands(engine, Paused("nic")) == (False, True)  # a second one changes nothing
    assert stands(engine, Resumed("nic")) == (armed, False)
    assert stands(engine, Resumed("nic")) == (armed, False)
    assert engine.memory.nics["nic"].armed_again == armed


@pytest.mark.parametrize("armed", [True, False])
def test_another_policy_may_say_what_the_end_of_a_pause_brings(*, armed: bool) -> None:
    engine = an_engine(armed=not armed)
    assert stands(engine, Paused("nic"), ArmedAfterPause("nic", armed)) == (False, True)
    assert stands(engine, Resumed("nic")) == (armed, False)


@pytest.mark.parametrize(("order", "armed"), [(Armed("nic"), True), (Disarmed("nic"), False)])
def test_an_order_ends_a_pause(order: Event, *, armed: bool) -> None:
    engine = an_engine(armed=not armed)
    assert stands(engine, Paused("nic"), order) == (armed, False)
    assert stands(engine, Resumed("nic")) == (armed, False)


def test_what_is_read_changes_nothing_of_how_it_stands() -> None:
    engine = an_engine()
    ours = replace(NIC, armed=True, paused=False)
    assert stands(engine, Paused("nic"), NicRead(replace(ours, up=False))) == (False, True)
    assert not engine.views["nic"].up


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
    assert (view.method, ANOTHER.what in view.method_why) == (SteeringMethod.NONE, True)
    assert isinstance(log, Log)
    assert (log.why, log.fields) == (view.method_why, {"nic": "nic"})


def test_what_another_program_changed_is_not_used() -> None:
    engine = an_engine()
    facts = replace(NIC, caps=replace(NIC.caps, filters=False))
    for event in (NicRead(facts), SettingsLeftAlone("nic", frozenset({"rss"})), MethodDue("nic")):
        engine.handle(event, 0)
    found = [engine.views["nic"].method]
    engine.handle(SettingsLeftAlone("nic", frozenset()), 0)
    engine.handle(MethodDue("nic"), 0)
    found.append(engine.views["nic"].method)
    assert found == [SteeringMethod.NONE, SteeringMethod.RSS]


def test_the_filters_of_others_are_counted() -> None:
    engine, theirs = an_engine(), (Filter(3, None, 1, other="drop"),)
    assert engine.views["nic"].foreign is None
    engine.handle(ForeignFound("nic", theirs), 0)
    view = engine.views["nic"]
    assert (view.foreign, view.theirs) == (1, theirs)


def test_a_flow_for_which_another_program_has_a_filter_gets_one_when_that_goes() -> None:
    engine = an_engine()
    report = SocketReported("nic", seen(1, 1), RULE)
    engine.handle(ForeignFound("nic", (Filter(3, Match.of(key(1)), 0),)), 0)
    assert engine.handle(report, 1) == []
    (flow,) = engine.memory.table
    assert (flow.state, flow.why) == (FlowState.WANTED, "another program has a filter for it")
    (begin,) = engine.handle(ForeignFound("nic", ()), 2)
    assert isinstance(begin, Begin)
    assert [each.action.key for each in begin.wanted] == [key(1)]


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


def test_an_observer_hears_where_flows_belong_under_another_policy() -> None:
    """A move that is refused then is decided again when the flow is reported. An adopted flow is to
    be reported wherever it arrives, until its thread is known."""
    engine, use = an_engine(), SocketUse(1001, key(1), None, None, None, 0)
    engine.handle(FiltersLeft("nic", (Filter(7, Match.of(key(1)), 2),), (use,)), 0)
    engine.handle(CpusRead(MACHINE), 0)
    engine.handle(SocketReported("nic", seen(2, 2), RULE), 1)
    cpus = Placement(PlacementKind.CPUS, frozenset({1}))
    for rule, told in ((RULE, []), (replace(RULE, placement=cpus), [Expect(1002, 1, 3)])):
        policy = replace(POLICY, flows=(rule,))
        rules = {(flow.cookie, flow.key): rule.name for flow in engine.flows_to_match()}
        engine.handle(PolicyLoaded(policy, rules, frozenset()), 2)
        said = engine.handle(TakenUp("nic"), 3)
        assert [each for each in said if isinstance(each, Expect)] == told


def test_a_nic_that_comes_again_stands_as_it_is_said_to() -> None:
    engine = an_engine()
    stands(engine, Paused("nic"))
    engine.handle(NicLost("nic"), 0)
    engine.handle(NicRead(NIC), 0)
    assert engine.views == {}
    engine.handle(NicAttached(NIC, armed=False), 0)
    assert stands(engine, Resumed("nic")) == (False, False)
