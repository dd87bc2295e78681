# SPDX-License-Identifier: GPL-2.0-or-later
"""Arming without a daemon: what it makes of a NIC, what it leaves alone, and what it puts back."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atfnd.daemon.session import NicSession
from atfnd.engine.command import LookAtInterrupts
from atfnd.engine.event import (
    Disarmed,
    EntriesDue,
    EntriesLeftAlone,
    EntriesLooked,
    EntriesWritten,
    Event,
    OriginalsRead,
    PolicyLoaded,
    SettingsDue,
    TakenUp,
)
from atfnd.model import Action, InterfaceRule, Outcome, SteeringMethod
from atfnd.model.reason import Code
from atfnd.program.balance import BALANCER
from tests.daemon.parts import POLICY, Parts, ScriptedNic, parts_of
from tests.nic.fake_nic import CAPS
from tests.values import flow, key

__all__: list[str] = []

RPS, QUEUE = "rps-cpus:0", "queue-cpu:0"


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    with parts_of(tmp_path) as built:
        built.nic().values[RPS] = "f"
        yield built


@pytest.fixture
def session(parts: Parts) -> NicSession:
    """Armed, and looked at."""
    session = parts.serve()
    parts.arming.meet(session)
    parts.events.clear()
    return session


def nic_of(parts: Parts) -> ScriptedNic:
    return parts.nics["nic"]


def restarts(parts: Parts, *, new_life: bool = False) -> NicSession:
    """Another run of the daemon meets the NIC; with `new_life` its driver was loaded again."""
    parts.sessions.pop("nic").watch.close()
    nic_of(parts).napis += 50 * new_life
    session = parts.serve()
    parts.log = parts.log.__class__()
    parts.events.clear()
    parts.arming.meet(session)
    return session


def said(parts: Parts, kind: str) -> list[Any]:
    return [event for event in parts.log.after(0, 999) if event.kind == kind]


class TestMeeting:
    def test_an_armed_nic_gets_what_steering_takes_and_can_be_undone(
        self, parts: Parts, session: NicSession
    ) -> None:
        assert nic_of(parts).values[RPS] == ""
        assert parts.undo_journal.held("nic")[RPS].original == "f"
        assert session.met
        assert session.prepared == session.watch.lives
        assert session.view.settings[RPS] == ""
        assert parts.undo_journal.life("nic") == session.watch.life()

    def test_a_nic_that_is_not_armed_is_read_and_not_touched(self, parts: Parts) -> None:
        session = parts.serve(armed=False)
        parts.arming.meet(session)
        assert session.met
        assert nic_of(parts).calls == []
        assert session.view.method is SteeringMethod.FILTERS
        assert parts.of(SettingsDue) == parts.of(OriginalsRead) == []

    @pytest.mark.parametrize("armed", [True, False])
    def test_another_policy_may_ask_for_another_method(
        self, parts: Parts, session: NicSession, monkeypatch: pytest.MonkeyPatch, armed: bool
    ) -> None:
        caps = replace(CAPS, filters=False, rss_table=False)
        monkeypatch.setattr(ScriptedNic, "caps", lambda nic: caps)
        session.watch.inspect()
        if not armed:
            parts.executor.take(Disarmed("nic"))
        parts.events.clear()
        for _ in range(2):
            parts.arming.policy_renewed(session)
        assert session.view.method is SteeringMethod.NONE
        assert len(parts.of(SettingsDue)) == armed

    def test_a_look_that_fails_is_not_complete(self, parts: Parts) -> None:
        session = parts.serve()
        nic_of(parts).refuse("settings", errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            parts.arming.meet(session)
        assert not session.met

    def test_a_budget_follows_the_table_that_the_nic_has(
        self, parts: Parts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was not known when the NIC was opened."""
        all_but_8 = InterfaceRule("*", "test:1", armed=True, filters_max=None, filters_reserve=8)
        parts.executor.take(PolicyLoaded(replace(POLICY, interfaces=(all_but_8,)), {}, frozenset()))
        session = parts.serve()
        monkeypatch.setattr(ScriptedNic, "caps", lambda nic: replace(CAPS, filter_slots=32))
        parts.arming.meet(session)
        assert session.view.budget == 24


class TestAfterARestart:
    def test_what_another_program_changed_meanwhile_is_left_and_said(
        self, parts: Parts, session: NicSession
    ) -> None:
        nic_of(parts).values[RPS] = "3"
        session = restarts(parts)
        assert nic_of(parts).values[RPS] == "3"
        assert session.view.manual == {RPS}
        assert RPS not in parts.undo_journal.held("nic")
        assert parts.undo_journal.manual("nic") == {RPS}

    def test_after_a_new_life_nothing_is_ours_and_it_is_prepared_anew(
        self, parts: Parts, session: NicSession
    ) -> None:
        nic_of(parts).values[RPS] = "3"
        session = restarts(parts, new_life=True)
        assert nic_of(parts).values[RPS] == ""
        assert parts.undo_journal.held("nic")[RPS].original == "3"
        assert session.view.manual == frozenset()
        assert parts.undo_journal.life("nic") == session.watch.life()


class TestDrift:
    def test_it_is_left_alone_and_said_once(self, parts: Parts, session: NicSession) -> None:
        nic_of(parts).values[RPS] = "3"
        for _ in range(2):
            parts.arming.check(session)
        [event] = said(parts, "manual")
        assert (event.nic, event.what) == ("nic", f"{RPS} is 3")
        assert nic_of(parts).values[RPS] == "3"
        assert session.view.manual == {RPS}

    def test_a_resume_takes_it_back(self, parts: Parts, session: NicSession) -> None:
        nic_of(parts).values[RPS] = "3"
        parts.undo_journal.note(BALANCER, "x", "before")
        parts.undo_journal.leave_alone(BALANCER, "x")
        parts.arming.check(session)
        parts.arming.take_back(session)
        assert session.view.manual == frozenset()
        assert parts.undo_journal.manual(BALANCER) == frozenset()
        parts.arming.meet(session)
        assert nic_of(parts).values[RPS] == ""

    def test_an_indirection_table_that_is_anothers_is_told_to_the_engine(
        self, parts: Parts, session: NicSession
    ) -> None:
        nic_of(parts).values["rss"] = "theirs"
        parts.undo_journal.note("nic", "rss", "default")
        parts.undo_journal.wrote("nic", "rss", "ours")
        parts.arming.check(session)
        assert parts.of(EntriesLeftAlone) == [EntriesLeftAlone("nic")]

    def test_what_an_irqbalance_moved_that_is_about_to_be_asked_is_not_taken_for_a_change(
        self, parts: Parts, session: NicSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        parts.undo_journal.note("nic", QUEUE, "0-3")
        parts.undo_journal.wrote("nic", QUEUE, "0")
        nic_of(parts).set_queue_cpu(0, 2)
        nic_of(parts).values[RPS] = "3"
        monkeypatch.setattr(parts.arming.balancing, "may_have_moved", lambda irq: irq == 10)
        parts.arming.check(session)
        assert session.view.manual == {RPS}
        monkeypatch.setattr(parts.arming.balancing, "may_have_moved", lambda irq: irq == 11)
        parts.arming.check(session)
        assert session.view.manual == {RPS, QUEUE}


class TestTheMethod:
    def none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        caps = replace(CAPS, filters=False, rss_table=False)
        monkeypatch.setattr(ScriptedNic, "caps", lambda nic: caps)

    def test_another_method_is_said_and_its_flows_are_looked_at(
        self, parts: Parts, session: NicSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.none(monkeypatch)
        for _ in range(2):
            parts.arming.inspect(session)
        assert session.view.method is SteeringMethod.NONE
        assert parts.of(TakenUp) == [TakenUp("nic")]
        assert len(said(parts, "method")) == 2  # the first is that of the beginning

    def test_the_same_method_is_no_news(self, parts: Parts, session: NicSession) -> None:
        parts.arming.inspect(session)
        parts.arming.check(session)
        assert parts.of(TakenUp) == []
        assert len(said(parts, "method")) == 1

    def test_what_another_program_took_may_ask_for_another_method(
        self, parts: Parts, session: NicSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        caps = replace(CAPS, filters=False, rss_table=True)
        monkeypatch.setattr(ScriptedNic, "caps", lambda nic: caps)
        parts.arming.inspect(session)
        methods = [session.view.method]
        parts.events.clear()
        nic_of(parts).values["rss"] = "theirs"
        parts.undo_journal.note("nic", "rss", "default")
        parts.undo_journal.wrote("nic", "rss", "ours")
        parts.arming.check(session)
        methods.append(session.view.method)
        assert methods == [SteeringMethod.RSS, SteeringMethod.NONE]
        assert parts.of(TakenUp) == [TakenUp("nic")]


class TestAFlap:
    def test_what_the_nic_lost_by_itself_is_set_again(
        self, parts: Parts, session: NicSession
    ) -> None:
        nic_of(parts).napis += 50
        nic_of(parts).values[RPS] = "3"
        session.watch.refresh()
        parts.arming.confine(session)
        assert nic_of(parts).values[RPS] == ""
        assert parts.undo_journal.held("nic")[RPS].original == "3"
        assert said(parts, "manual") == []
        assert session.prepared == session.watch.lives

    def test_what_it_lost_a_moment_ago_was_changed_by_nobody(
        self, parts: Parts, session: NicSession
    ) -> None:
        """The check comes before the news of the flap."""
        nic_of(parts).napis += 50
        nic_of(parts).values[RPS] = "3"
        parts.arming.check(session)
        assert (session.view.manual, said(parts, "manual")) == (frozenset(), [])
        parts.arming.confine(session)
        assert nic_of(parts).values[RPS] == ""
        nic_of(parts).values[RPS] = "3"
        parts.arming.check(session)
        assert session.view.manual == {RPS}


class TestCpus:
    def test_the_queues_of_a_cpu_that_goes_offline_leave_it_and_come_back(
        self, parts: Parts, session: NicSession
    ) -> None:
        parts.cpus.offline = {0}
        parts.arming.read_cpus()
        parts.arming.cpus_changed(session)
        away = nic_of(parts).cpus[0]
        assert away != 0
        assert session.view.queues[0].cpu == away
        assert parts.of(TakenUp) == [TakenUp("nic")]
        parts.cpus.offline = set()
        parts.arming.read_cpus()
        parts.arming.cpus_changed(session)
        assert nic_of(parts).cpus[0] == 0
        parts.arming.cpus_changed(session)
        assert len(parts.of(TakenUp)) == 2  # nothing moved by the last one

    def test_a_queue_that_could_not_be_moved_is_known_where_the_kernel_has_it(
        self, parts: Parts, session: NicSession
    ) -> None:
        def refuse(name: str, value: str) -> None:
            nic_of(parts).cpus[0] = 6
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

        nic_of(parts).write_setting = refuse  # type: ignore[method-assign]
        parts.cpus.offline = {0}
        parts.arming.read_cpus()
        parts.arming.cpus_changed(session)
        assert session.view.queues[0].cpu == 6

    def test_those_of_a_nic_that_is_not_armed_stay(self, parts: Parts) -> None:
        session = parts.serve(armed=False)
        parts.arming.meet(session)
        parts.cpus.offline = {0}
        parts.arming.read_cpus()
        parts.arming.cpus_changed(session)
        assert nic_of(parts).cpus[0] == 0


class TestInterrupts:
    def looked(self, parts: Parts, *irqs: int) -> None:
        parts.executor.carry_out([LookAtInterrupts("nic", frozenset(irqs))])

    @pytest.fixture(autouse=True)
    def moved(self, parts: Parts, session: NicSession) -> None:
        """Irqbalance has moved the first queue."""
        parts.undo_journal.note("nic", QUEUE, "0-3")
        parts.undo_journal.wrote("nic", QUEUE, "0")
        parts.undo_journal.confirmed("nic", QUEUE, "0")
        nic_of(parts).set_queue_cpu(0, 2)

    def test_a_queue_that_irqbalance_moved_goes_back(self, parts: Parts) -> None:
        self.looked(parts, 10)
        assert nic_of(parts).cpus[0] == 0

    def test_a_nic_that_is_gone_is_left_to_the_loop(self, parts: Parts) -> None:
        nic_of(parts).refuse("settings", errno.ENODEV)
        self.looked(parts, 10)
        nic_of(parts).refuse("settings", errno.EIO)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            self.looked(parts, 10)


class TestTurning:
    """The entries of the indirection table of flows that wait."""

    @pytest.fixture(autouse=True)
    def waits(self, parts: Parts, session: NicSession) -> None:
        self.parts, self.session = parts, session

    def plan(self) -> None:
        table = self.parts.engine.memory.table
        table.put(flow(1, app_cpu=2))
        table.plan(key(1), True)
        assert self.parts.arming.waiting()

    def test_the_engine_hears_what_was_written(self) -> None:
        self.plan()
        self.parts.arming.turn(self.session)
        [written] = self.parts.of(EntriesWritten)
        assert len(self.parts.of(EntriesDue)) == 1
        assert written.before == nic_of(self.parts).table_of_rss

    def test_a_table_that_another_program_wrote_is_looked_at_first(self) -> None:
        self.plan()
        parts, take = self.parts, self.parts.executor.take
        action = Action.of_setting("nic", "rss", "0 1", Code.KERNEL("why"), "rest")
        stale = Outcome(action, 0, errno.ESTALE, None, "is left: another program set it")

        def answered(*events: Event) -> list[Outcome]:
            return [stale] if isinstance(events[0], EntriesDue) else take(*events)

        parts.executor.take = answered  # type: ignore[method-assign]
        parts.arming.turn(self.session)
        assert parts.of(EntriesWritten) == []
        assert parts.of(EntriesLooked) == [EntriesLooked("nic")]
