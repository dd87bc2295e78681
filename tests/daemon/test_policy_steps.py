# SPDX-License-Identifier: GPL-2.0-or-later
"""The steps that bring another policy into force, each part built alone: `FlowRules`,
`InterfaceRules`, `WantedReports`."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from atfnd.daemon.flow_rules import FlowRules
from atfnd.daemon.in_force import InForce
from atfnd.daemon.interface_rules import Given, InterfaceRules
from atfnd.daemon.wanted_reports import WantedReports, asked
from atfnd.engine.event import ArmedAfterPause, PolicyLoaded
from atfnd.model import Device, InterfaceRule, Placement, Policy, Topology
from tests.values import NIC, RULE, flow, key

__all__: list[str] = []

ARMS = InterfaceRule("*", "test:1", armed=True, filters_max=7, filters_reserve=0)
LEAVES = replace(ARMS, armed=False)
OFF = Policy((LEAVES,), (RULE,), "auto", 64, 0, ())
ON = replace(OFF, interfaces=(ARMS,))
CPUS = Topology((), ())


class Notes:
    """What other parts were asked to do, in order."""

    def __init__(self) -> None:
        self.all: list[tuple[object, ...]] = []

    def of(self, what: str, answer: Any = None) -> Callable[..., Any]:
        def called(*given: object) -> Any:
            self.all.append((what, *given))
            return answer

        return called

    def words(self) -> list[object]:
        return [what for what, *_ in self.all]

    def given(self, what: str) -> list[list[object]]:
        return [given for each, *given in self.all if each == what]


class TestFlowRules:
    """`rule` is the one that the policy has for the flows that are known."""

    @pytest.fixture(autouse=True)
    def bed(self) -> None:
        part: Any = SimpleNamespace
        self.notes, self.rule, self.left_by = Notes(), RULE, None
        self.flows = [flow(1)]
        moves = part(use=self.notes.of("moves"), flows=lambda: [key(2)])
        self.sessions: Any = {
            "nic": part(name="nic", view=NIC, moves=moves),
            "idle": part(name="idle", view=replace(NIC, name="idle"), moves=None),
        }
        self.use_interfaces = self.notes.of("interfaces")
        self.rules = FlowRules(
            part(flows_to_match=lambda: self.flows),
            part(decide=self.notes.of("decide", ["commands"]), carry_out=self.notes.of("written")),
            self.sessions,
            part(
                of_flow=lambda flow, nic, now_ns: self.rule, left_by=lambda key: self.left_by
            ),
            lambda policy: self.use_interfaces(policy),
        )  # fmt: skip

    def loaded(self) -> PolicyLoaded:
        self.rules.use(ON)
        [[event]] = self.notes.given("decide")
        assert isinstance(event, PolicyLoaded)
        return event

    def test_the_engine_hears_which_rule_steers_each_flow_now(self) -> None:
        assert self.loaded() == PolicyLoaded(
            ON, {(flow(1).cookie, key(1)): "rest"}, frozenset({key(2)})
        )

    @pytest.mark.parametrize("rule", [None, replace(RULE, placement=Placement.LEAVE)])
    def test_a_flow_that_no_rule_steers_is_let_go(self, rule: Any) -> None:
        self.rule = rule
        assert list(self.loaded().rules.values()) == [None]

    @pytest.mark.parametrize(("left_by", "steers"), [(None, "old"), ("leave it", None)])
    def test_a_flow_of_an_earlier_run_stays_unless_it_is_left_to_everybody(
        self, left_by: Any, steers: str | None
    ) -> None:
        self.flows, self.left_by = [flow(1, thread=None, rule_name="old")], left_by
        assert list(self.loaded().rules.values()) == [steers]

    def test_nothing_is_written_before_the_nics_stand_as_the_policy_says(self) -> None:
        self.rules.use(ON)
        assert self.notes.words() == ["decide", "moves", "interfaces", "written"]
        assert self.notes.given("written") == [[["commands"]]]
        assert self.notes.given("moves") == self.notes.given("interfaces") == [[ON]]

    def test_what_was_decided_is_written_even_if_a_nic_could_not_be_armed(self) -> None:
        """The engine took it for under way, and it was lost."""

        def refuse(policy: Policy) -> None:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

        self.use_interfaces = refuse
        with pytest.raises(OSError, match="Cannot allocate memory"):
            self.rules.use(ON)
        assert self.notes.given("written") == [[["commands"]]]


class TestInterfaceRules:
    @pytest.fixture(autouse=True)
    def bed(self) -> None:
        self.notes, self.sessions = Notes(), dict[str, Any]()
        self.ordered: dict[str, bool] = {}  # what an operator ordered for a NIC
        part: Any = SimpleNamespace
        nics = part(sessions=self.sessions, while_there=lambda session: nullcontext())
        self.executor = part(take=self.notes.of("take"))
        operator = part(arm_now=self._arm, disarm_now=self._disarm)
        self.given = Given(lambda: ON, ())
        self.orders = part(armed=self.ordered.get)
        self.nics, self.operator = nics, operator

    def rules(self) -> InterfaceRules:
        return InterfaceRules(self.given, self.executor, self.nics, self.operator, self.orders)

    def nic(
        self, name: str, *, armed: bool, paused: bool = False, driver: str | None = None
    ) -> None:
        view = replace(NIC, name=name, armed=armed, paused=paused, device=Device(driver=driver))
        self.sessions[name] = SimpleNamespace(name=name, view=view)

    def _arm(self, session: Any, why: str) -> None:
        self.notes.all.append(("arm", session.name))

    def _disarm(self, sessions: Any, why: str) -> None:
        self.notes.all += (("disarm", session.name) for session in sessions)

    def standing(self, policy: Policy) -> list[tuple[object, ...]]:
        """Which NICs are armed and disarmed."""
        self.rules().use(policy)
        return [each for each in self.notes.all if each[0] in ("arm", "disarm", "take")]

    @pytest.mark.parametrize(
        ("armed", "policy", "ordered", "done"),
        [
            (False, ON, None, [("arm", "a")]),
            (True, ON, None, []),
            (True, OFF, None, [("disarm", "a")]),
            (False, OFF, None, []),
            (False, ON, False, []),
            (True, OFF, True, []),
        ],
    )
    def test_the_policy_arms_and_disarms_where_no_operator_has(
        self, *, armed: bool, policy: Policy, ordered: bool | None, done: list[tuple[str, str]]
    ) -> None:
        self.nic("a", armed=armed)
        if ordered is not None:
            self.ordered["a"] = ordered
        assert self.standing(policy) == done

    def test_what_is_to_be_disarmed_is_so_before_another_nic_is_armed(self) -> None:
        """Arming may fail, or take long."""
        self.nic("a", armed=False)
        self.nic("b", armed=True)
        self.nic("c", armed=True)
        only_a = replace(ON, interfaces=(replace(ARMS, name="a"), LEAVES))
        assert self.standing(only_a) == [("disarm", "b"), ("disarm", "c"), ("arm", "a")]

    def test_a_rule_for_a_driver_arms_what_is_known_to_have_it(self) -> None:
        self.nic("a", armed=False, driver="igb")
        self.nic("b", armed=False, driver="ice")
        self.nic("c", armed=True)
        igb = replace(ON, interfaces=(replace(ARMS, driver="igb"), LEAVES))
        assert self.standing(igb) == [("disarm", "c"), ("arm", "a")]

    def test_a_paused_nic_stays_paused_and_a_resume_does_as_the_policy_says(self) -> None:
        self.nic("a", armed=False, paused=True)
        assert self.standing(ON) == [("take", ArmedAfterPause("a", True))]

    def test_what_was_armed_on_the_command_line_stays_armed(self) -> None:
        self.given = Given(lambda: ON, ("a*",))
        self.nic("a1", armed=True)
        self.nic("b", armed=True)
        assert self.standing(OFF) == [("disarm", "b")]


class TestWantedReports:
    """A recording wants to see everything while it is made."""

    @pytest.fixture(autouse=True)
    def bed(self) -> None:
        self.notes, self.recordings = Notes(), 0
        part: Any = SimpleNamespace

        @contextmanager
        def asking() -> Iterator[None]:
            self.recordings += 1
            yield
            self.recordings -= 1

        async def lines(seconds: float, most: int) -> AsyncGenerator[str, None]:
            for number in range(most):
                yield f"line {number}"

        recorder = part(asking=asking, asked=lambda: self.recordings > 0, lines=lines)
        self.births = births = part(renew=self.notes.of("births"), attached=False)
        self.reports = WantedReports(
            part(qualify=self.notes.of("ask")), recorder,
            part(forget_unknown=self.notes.of("forget unknown")), births, InForce(ON),
            part(known=lambda: CPUS),
        )  # fmt: skip

    def wanted(self) -> list[object]:
        return [wanted for [wanted] in self.notes.given("ask")]

    def test_the_observer_reports_what_the_policy_asks_for(self) -> None:
        self.reports.ask()
        assert self.wanted() == [asked(ON, CPUS)]

    def test_while_a_recording_is_made_every_socket_is_reported(self) -> None:
        async def record() -> list[str]:
            return [line async for line in self.reports.recording(1, 2)]

        assert asyncio.run(record()) == ["line 0", "line 1"]
        every = asked(ON, CPUS)._replace(clauses=(), elsewhere=True)
        assert self.wanted() == [every, asked(ON, CPUS)]
        assert self.notes.words() == [
            "ask", "forget unknown", "births", "ask", "forget unknown",
        ]  # fmt: skip

    def test_births_that_are_observed_already_go_on(self) -> None:
        self.births.attached = True

        async def record() -> None:
            async for _ in self.reports.recording(1, 1):
                pass

        asyncio.run(record())
        assert "births" not in self.notes.words()

    def test_a_policy_that_comes_meanwhile_keeps_the_recording_whole(self) -> None:
        async def record() -> None:
            async with aclosing(self.reports.recording(1, 2)) as lines:
                await anext(lines)
                self.reports.ask()

        asyncio.run(record())
        every = asked(ON, CPUS)._replace(clauses=(), elsewhere=True)
        assert self.wanted()[:2] == [every, every]
