# SPDX-License-Identifier: GPL-2.0-or-later
"""The only way to the kernel: what is written, what is not, and what the engine hears of it."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from atfnd.daemon.changes import ChangeLog
from atfnd.daemon.executor import Executor, UndoPermit
from atfnd.daemon.in_force import InForce
from atfnd.daemon.session import NicSession, Sessions
from atfnd.engine.command import (
    Begin,
    CountAsOurs,
    TellMoves,
    WriteSettings,
)
from atfnd.engine.engine import Engine
from atfnd.engine.event import (
    Armed,
    Disarmed,
    Event,
    MovesDropped,
    MovesReported,
    NicAttached,
)
from atfnd.engine.table.memory import Memory, RulesInForce
from atfnd.model import Action, ActionKind, Ban, FlowState, Match, Outcome, Plan, Policy
from atfnd.model.reason import Code
from atfnd.move.event import Reset, Wanted
from atfnd.move.verdict import Mode
from atfnd.program import balance
from atfnd.program.balance import BALANCER
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.record_file import Unrecorded
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.serve.log.event_log import EventLog
from tests.nic.fake_nic import FakeNic
from tests.values import NIC, RULE, flow, key

__all__: list[str] = []

INSERT = Action(ActionKind.INSERT, "nic", key(1), None, None, 2, Code.KERNEL("why"), "rest")
DELETE = Action(
    ActionKind.DELETE, "nic", key(1), 7, 1, None, Code.KERNEL("why"), "rest", live=False
)
WANTED = Wanted(INSERT, Mode.IMMEDIATE)
PORT = key(0)._replace(remote=bytes(4), remote_port=0)


def _nothing(*_: object) -> None:
    pass


class Moves:
    """What stands for the moves of a NIC: it does at once what it is asked for."""

    def __init__(self, carry_out: Callable[[Action], Outcome]) -> None:
        self.asked: list[Wanted] = []
        self.reported: list[object] = []
        self.refuses = 0
        self._carry_out = carry_out

    def want(self, wanted: tuple[Wanted, ...]) -> list[Outcome]:
        if self.refuses:
            raise OSError(self.refuses, os.strerror(self.refuses))
        self.asked += wanted
        return [self._carry_out(each.action) for each in wanted]

    def tell(self, event: object) -> None:
        self.reported.append(event)

    def flows(self) -> list[Any]:
        return [key(1)]

    def close(self) -> None:
        pass


class Bed:
    """Two armed NICs and the real engine."""

    def __init__(self, folder: Path) -> None:
        anything: Any = SimpleNamespace
        self.engine = Engine(Memory.of(Policy((), (RULE,), "auto", 64, 0, ())))
        self.sessions: Sessions = {}
        self.nics = {"nic": FakeNic(), "other": FakeNic()}
        self.queues: list[tuple[int, int]] = []
        self.heard: list[Event] = []
        self.socket: int | None = None
        for name, fake in self.nics.items():
            facts = replace(NIC, name=name)
            watch: Any = SimpleNamespace(facts=facts, nic=fake, queue_moved=self._queue_moved)
            self.engine.handle(NicAttached(watch.facts, armed=True), 0)
            session = self.sessions[name] = NicSession(watch, self.engine.memory.nics[name])
            session.socket_of = lambda key: self._socket()  # type: ignore[method-assign]
        observer = anything(expect=_nothing, adopt=_nothing, forget=_nothing, inventory=list)
        self.journal = FilterJournal(folder / "filters.journal")
        self.undo_journal = UndoJournal(folder / "originals.journal")
        in_force, self.log = InForce(Policy((), (RULE,), "auto", 64, 0, ())), EventLog()
        changes = ChangeLog(self.log, self.sessions, in_force)
        self.executor = Executor(
            self.engine, self.sessions, observer, self.journal, self.undo_journal, changes, in_force
        )
        for name in self.sessions:
            self.moves(name)
        handle = self.engine.handle

        def heard(event: Event, now_ns: int) -> Any:
            self.heard.append(event)
            return handle(event, now_ns)

        self.engine.handle = heard  # type: ignore[method-assign]

    def moves(self, name: str) -> Moves:
        session = self.sessions[name]
        if session.moves is None:
            carry_out = lambda action: self.executor._write(session, action)  # noqa: E731
            session.moves = Moves(carry_out)  # type: ignore[assignment]
        return cast("Moves", session.moves)

    def arm(self, name: str, armed: bool) -> None:
        self.engine.handle(Armed(name) if armed else Disarmed(name), 0)

    def write(self, plan: Plan) -> list[Outcome]:
        return self.executor.carry_out([WriteSettings(plan)])

    def _queue_moved(self, queue: int, cpu: int) -> None:
        self.queues.append((queue, cpu))

    def _socket(self) -> int | None:
        if self.socket is not None and self.socket < 0:
            raise OSError(-self.socket, os.strerror(-self.socket))
        return self.socket

    def close(self) -> None:
        self.journal.close()
        self.undo_journal.close()


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    made = Bed(tmp_path)
    yield made
    made.close()


def test_what_is_begun_on_an_armed_nic_is_written_and_reported(bed: Bed) -> None:
    bed.engine.memory.table.put(flow(1))
    [done] = bed.executor.carry_out([Begin("nic", (WANTED,))])
    assert (done.errno, done.action) == (0, INSERT)
    assert [rule.match for rule in bed.nics["nic"].table.values()] == [Match.of(key(1))]
    assert MovesReported((done,)) in bed.heard
    found = bed.engine.memory.table.get(key(1))
    assert found is not None
    assert found.state is FlowState.STEERED


def test_the_engine_hears_of_what_another_program_switched_while_it_was_borrowed(bed: Bed) -> None:
    values = bed.nics["nic"].values
    values["threaded:1"] = "0"
    lent = replace(Action.of_setting("nic", "threaded:1", "1"), loan=True)
    view = bed.engine.memory.nics["nic"]
    for value, manual in (("1", set()), ("0", {"threaded:1", "napi-thread:1"})):
        wanted = Wanted(replace(lent, value=value), Mode.IMMEDIATE)
        bed.executor.carry_out([Begin("nic", (wanted,))])
        assert view.view.manual == manual
        values["threaded:1"] = "0"


def test_nothing_is_written_where_it_is_not_armed(bed: Bed) -> None:
    bed.engine.memory.table.put(flow(1))
    bed.arm("nic", False)
    assert bed.executor.carry_out([Begin("nic", (WANTED,))]) == []
    assert bed.write((INSERT,)) == []
    assert bed.moves("nic").asked == []
    assert bed.nics["nic"].calls == []
    other = replace(INSERT, nic="other")
    assert [each.action for each in bed.write((INSERT, other))] == [other]
    assert bed.executor.carry_out([Begin("gone", (WANTED,))]) == []
    assert MovesDropped("nic", [key(1)]) in bed.heard  # the engine waits for no answer


@pytest.mark.parametrize("code", [errno.ENODEV, errno.ENOENT])
def test_a_nic_that_has_just_gone_ends_nothing(bed: Bed, code: int) -> None:
    bed.moves("nic").refuses = code
    assert bed.executor.carry_out([Begin("nic", (WANTED,))]) == []
    assert bed.heard == [MovesDropped("nic", [key(1)])]


def test_what_else_goes_wrong_is_passed_on(bed: Bed) -> None:
    bed.moves("nic").refuses = errno.ENOSPC
    with pytest.raises(OSError, match="No space"):
        bed.executor.carry_out([Begin("nic", (WANTED,))])
    assert MovesDropped("nic", [key(1)]) in bed.heard  # nothing waits for an answer
    assert bed.sessions["nic"].moves is None


def test_an_action_that_outlived_its_reason_is_not_written(bed: Bed) -> None:
    bed.engine.memory.table.put(flow(1))
    late = replace(INSERT, generation=bed.engine.memory.table.generation(key(1)) + 1)
    [done] = bed.write((late,))
    assert done.errno == errno.ESTALE
    assert bed.nics["nic"].calls == []


def test_a_queue_counts_as_moved_when_it_was(bed: Bed) -> None:
    follow = Action(ActionKind.QUEUE_CPU, "nic", None, None, 1, 3, Code.KERNEL("why"), "", queue=1)
    bed.nics["nic"].values["queue-cpu:1"] = "1"
    assert [each.errno for each in bed.write((follow,))] == [0]
    assert bed.queues == [(1, 3)]
    bed.nics["nic"].refuse("write_setting", errno.EIO)
    assert [each.errno for each in bed.write((replace(follow, new=2),))] == [errno.EIO]
    assert bed.queues == [(1, 3)]


@pytest.mark.parametrize(
    ("socket", "code"), [(None, 0), (5000, errno.ECANCELED), (-errno.EPERM, errno.EPERM)]
)
def test_the_filter_of_a_closed_flow_goes_unless_its_5_tuple_is_used_again(
    bed: Bed, socket: int | None, code: int
) -> None:
    bed.engine.memory.table.put(flow(1, state=FlowState.STEERED, location=7, target_queue=1))
    bed.journal.claim("nic", Match.of(key(1)), 1)
    bed.journal.locate("nic", Match.of(key(1)), 7)
    bed.nics["nic"].put(7, Match.of(key(1)), 1)
    bed.socket = socket
    [done] = bed.write((DELETE,))
    assert done.errno == code
    assert (7 in bed.nics["nic"].table) is bool(code)
    assert bed.journal.names("nic", Match.of(key(1))) is bool(code)


def test_the_filter_of_a_live_flow_goes_without_a_question(bed: Bed) -> None:
    """Its socket has that 5-tuple, of course."""
    bed.engine.memory.table.put(flow(1, state=FlowState.STEERED, location=7, target_queue=1))
    bed.journal.claim("nic", Match.of(key(1)), 1)
    bed.nics["nic"].put(7, Match.of(key(1)), 1)
    bed.socket = 5000
    [done] = bed.write((replace(DELETE, live=True),))
    assert (done.errno, bed.nics["nic"].table) == (0, {})


def test_a_port_is_not_asked_for_its_socket(bed: Bed) -> None:
    bed.socket = 5000
    bed.nics["nic"].put(7, Match.of(PORT), 1)
    bed.journal.claim("nic", Match.of(PORT), 1)
    [done] = bed.write((replace(DELETE, key=PORT),))
    assert (done.errno, bed.nics["nic"].table) == (0, {})


@pytest.mark.parametrize(("nic", "reported"), [("nic", ["nic"]), (None, ["nic", "other"])])
def test_a_reset_reaches_the_moves_of_its_nic(
    bed: Bed, nic: str | None, reported: list[str]
) -> None:
    bed.executor.carry_out([TellMoves(nic, Reset())])
    assert [name for name in bed.sessions if bed.moves(name).reported == [Reset()]] == reported


def test_moves_that_are_dropped_are_reported_with_their_flows(bed: Bed) -> None:
    assert bed.executor.still(bed.sessions["nic"]) is None
    assert bed.heard == [MovesDropped("nic", [key(1)])]
    assert bed.sessions["nic"].moves is None
    assert bed.sessions["other"].moves is not None


def test_moves_that_do_not_end_in_order_are_logged(bed: Bed, monkeypatch: Any) -> None:
    def close() -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(bed.moves("nic"), "close", close)
    assert bed.executor.still(bed.sessions["nic"]) == "Input/output error"
    [event] = bed.log.after(0, 9)
    assert (event.kind, event.nic) == ("refused", "nic")
    assert bed.heard == [MovesDropped("nic", [key(1)])]


def test_undo_needs_a_permit_for_the_nic(bed: Bed) -> None:
    bed.arm("nic", False)
    with pytest.raises(ValueError, match="does not permit nic"):
        bed.executor.take_out(bed.sessions["nic"], UndoPermit("other", Code.KERNEL("why")))
    assert all(each.done for each in bed.executor.take_out(
        bed.sessions["nic"], UndoPermit("nic", Code.KERNEL("why"))
    ))  # fmt: skip


def test_a_move_that_waited_is_not_written_on_a_nic_that_was_disarmed_meanwhile(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = bed.moves("nic")
    want = moves.want

    def waited(wanted: tuple[Wanted, ...]) -> list[Outcome]:
        bed.arm("nic", False)
        return want(wanted)

    monkeypatch.setattr(moves, "want", waited)
    bed.engine.memory.table.put(flow(1))
    [done] = bed.executor.carry_out([Begin("nic", (WANTED,))])
    assert (done.errno, done.left) == (errno.EPERM, "its NIC is not armed any more")
    assert bed.nics["nic"].calls == []


def test_only_an_armed_nic_is_probed(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    probed: list[str] = []
    for name, nic in bed.nics.items():
        monkeypatch.setattr(nic, "probe", lambda claims, name=name: probed.append(name))
    bed.arm("other", False)
    for session in bed.sessions.values():
        bed.executor.probe(session)
    assert probed == ["nic"]


class Irqbalance:
    """What one was asked for: which interrupts to leave alone from now on, and which no longer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reported: list[tuple[set[int], set[int]]] = []
        self.answer = 0, "as planned"
        monkeypatch.setattr(balance, "banned", self._banned)
        monkeypatch.setattr(balance, "running", lambda: frozenset({7}))

    def _banned(self, pid: int, more: set[int], less: set[int]) -> tuple[int, str]:
        self.reported.append((set(more), set(less)))
        return self.answer


def test_irqbalance_is_asked_to_spare_interrupts_of_armed_nics(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported, irqs = Irqbalance(monkeypatch), {"nic": frozenset({30, 31})}
    bed.arm("nic", False)
    assert asyncio.run(bed.executor.ban(7, irqs, {}))[0] == errno.EPERM
    assert (reported.reported, balance.bans(bed.undo_journal)) == ([], [])
    bed.arm("nic", True)
    assert asyncio.run(bed.executor.ban(7, irqs, {})) == (0, "as planned")
    assert reported.reported == [({30, 31}, set())]
    assert balance.bans(bed.undo_journal) == [Ban(7, "nic", 30), Ban(7, "nic", 31)]
    reported.answer = errno.EAGAIN, "it does not answer now"
    more = {"other": frozenset({40})}
    assert asyncio.run(bed.executor.ban(7, more, {})) == (errno.EAGAIN, "it does not answer now")
    assert balance.bans(bed.undo_journal) == [Ban(7, "nic", 30), Ban(7, "nic", 31)]


def test_each_irqbalance_has_bans_of_its_own(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    reported, irqs = Irqbalance(monkeypatch), {"nic": frozenset({30})}
    monkeypatch.setattr(balance, "running", lambda: frozenset({7, 8}))
    for pid in (7, 8):
        asyncio.run(bed.executor.ban(pid, irqs, {}))
    assert balance.bans(bed.undo_journal) == [Ban(7, "nic", 30), Ban(8, "nic", 30)]
    asyncio.run(bed.executor.lift_bans(UndoPermit("nic", Code.KERNEL("why"))))
    assert reported.reported[2:] == [(set(), {30}), (set(), {30})]
    assert balance.bans(bed.undo_journal) == []


def test_a_list_that_may_have_been_taken_stays_in_the_journal(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = Irqbalance(monkeypatch)
    reported.answer = errno.EIO, "it does not listen"
    ban = Ban(7, "nic", 30)
    asyncio.run(bed.executor.ban(7, {"nic": frozenset({30})}, {}))
    assert balance.journaled(bed.undo_journal).doubtful == {ban}
    reported.answer = 0, "as planned"
    asyncio.run(bed.executor.ban(7, {"nic": frozenset({30})}, {}))
    assert balance.bans(bed.undo_journal) == [ban]
    assert not balance.journaled(bed.undo_journal).doubtful
    reported.answer = errno.EIO, "it does not listen"
    asyncio.run(bed.executor.ban(7, {}, {ban: UndoPermit("nic", Code.KERNEL("why"))}))
    assert balance.journaled(bed.undo_journal).doubtful == {ban}


def test_bans_that_cannot_all_be_journaled_are_not_asked_for(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported, wrote, room = Irqbalance(monkeypatch), UndoJournal.wrote, [1]

    def written(undo_journal: UndoJournal, nic: str, setting: str, value: str) -> None:
        if not room:
            raise Unrecorded(errno.ENOSPC, "full")
        room.pop()
        wrote(undo_journal, nic, setting, value)

    monkeypatch.setattr(UndoJournal, "wrote", written)
    with pytest.raises(Unrecorded):
        asyncio.run(bed.executor.ban(7, {"nic": frozenset({30, 31})}, {}))
    assert reported.reported == []
    assert bed.undo_journal.held(BALANCER) == {}


def test_a_ban_of_an_earlier_version_is_lifted(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    reported = Irqbalance(monkeypatch)
    bed.undo_journal.note(BALANCER, "nic:30", "balanced")
    bed.undo_journal.wrote(BALANCER, "nic:30", "pid 7")
    assert balance.bans(bed.undo_journal) == [Ban(7, "nic", 30)]
    asyncio.run(bed.executor.lift_bans(UndoPermit("nic", Code.KERNEL("why"))))
    assert reported.reported == [(set(), {30})]
    assert bed.undo_journal.held(BALANCER) == {}


def test_a_ban_is_lifted_by_permit(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    reported = Irqbalance(monkeypatch)
    irqs = {"nic": frozenset({30, 31}), "other": frozenset({40})}
    asyncio.run(bed.executor.ban(7, irqs, {}))
    one = Ban(7, "nic", 30)
    with pytest.raises(ValueError, match="does not permit"):
        asyncio.run(bed.executor.ban(7, {}, {one: UndoPermit("other", Code.KERNEL("why"))}))
    asyncio.run(bed.executor.ban(7, {}, {one: UndoPermit("nic", Code.KERNEL("why"))}))
    assert reported.reported[1:] == [(set(), {30})]
    [done] = asyncio.run(bed.executor.lift_bans(UndoPermit("nic", Code.KERNEL("why"))))
    assert done.done
    assert balance.bans(bed.undo_journal) == [Ban(7, "other", 40)]


def test_settings_are_put_back_by_permit_and_the_log_says_so(bed: Bed) -> None:
    session, nic = bed.sessions["nic"], bed.nics["nic"]
    follow = Action(ActionKind.QUEUE_CPU, "nic", None, None, 1, 3, Code.KERNEL("why"), "", queue=1)
    bed.write((follow,))
    assert nic.values["queue-cpu:1"] == "3"
    bed.arm("nic", False)
    done = bed.executor.take_out(session, UndoPermit("nic", Code.KERNEL("why")))
    assert [(each.what, each.done) for each in done] == [("queue-cpu:1", True)]
    assert nic.values["queue-cpu:1"] == "1"
    assert [(event.kind, event.new) for event in bed.log.after(0, 9)][-1] == ("undo", "1")


def test_what_a_nic_that_is_gone_had_changed_for_all_is_put_back_by_permit(bed: Bed) -> None:
    session, nic = bed.sessions["nic"], bed.nics["nic"]
    follow = Action(ActionKind.QUEUE_CPU, "nic", None, None, 1, 3, Code.KERNEL("why"), "", queue=1)
    bed.write((follow,))
    with pytest.raises(ValueError, match="does not permit"):
        bed.executor.forget(session, UndoPermit("other", Code.KERNEL("it is gone")))
    assert nic.values["queue-cpu:1"] == "3"
    bed.executor.forget(session, UndoPermit("nic", Code.KERNEL("it is gone")))
    assert nic.values["queue-cpu:1"] == "1"


def test_what_the_kernel_changed_by_itself_counts_as_ours(bed: Bed) -> None:
    """Else the write would find another program's value there, and the undo, too."""
    nic = bed.nics["nic"]
    follow = Action(ActionKind.QUEUE_CPU, "nic", None, None, 1, 3, Code.KERNEL("why"), "", queue=1)
    bed.write((follow,))
    nic.values["queue-cpu:1"] = "0-3"
    [refused] = bed.write((replace(follow, new=2),))
    assert refused.errno == errno.ESTALE
    bed.executor.carry_out([CountAsOurs("nic", ("queue-cpu:1", "queue-cpu:9"))])
    assert [each.errno for each in bed.write((replace(follow, new=2),))] == [0]
    assert nic.values["queue-cpu:1"] == "2"
    assert bed.undo_journal.held("nic").keys() == {"queue-cpu:1"}


def test_a_cpu_that_was_named_while_another_went_offline_is_another_programs(bed: Bed) -> None:
    """The kernel scatters a queue over all CPUs that are left."""
    nic = bed.nics["nic"]
    follow = Action(ActionKind.QUEUE_CPU, "nic", None, None, 1, 3, Code.KERNEL("why"), "", queue=1)
    bed.write((follow,))
    for now, errors in (("1", [errno.ESTALE]), ("0-1", [0])):
        nic.values["queue-cpu:1"] = now
        bed.executor.carry_out([CountAsOurs("nic", ("queue-cpu:1",), scattered=True)])
        assert [each.errno for each in bed.write((replace(follow, new=2),))] == errors


def test_a_setting_that_cannot_be_read_while_the_link_is_down_is_left_for_later(bed: Bed) -> None:
    bed.nics["nic"].refuse("setting", errno.ENETDOWN, 0, errno.ENODEV)
    two = CountAsOurs("nic", ("queue-cpu:1", "queue-cpu:2"))
    bed.executor.carry_out([two])
    with pytest.raises(OSError, match=os.strerror(errno.ENODEV)):
        bed.executor.carry_out([two])


@pytest.mark.parametrize(
    ("armed", "order", "measures"),
    [(True, Mode.STRICT, True), (False, Mode.STRICT, False), (True, Mode.IMMEDIATE, False)],
)
def test_writes_are_measured_where_flows_are_moved_in_order(
    bed: Bed, monkeypatch: Any, armed: bool, order: Mode, measures: bool
) -> None:
    """From the first move on. To measure, a filter is written for a trial."""
    known: list[bool] = []

    def moving(*_: object) -> Any:
        moves: Any = Moves(lambda action: Outcome(action, 1, 0, 7, ""))
        moves.know = lambda measure: known.append(measure)
        moves.only_known = lambda known: None
        return moves

    monkeypatch.setattr("atfnd.daemon.executor.Moving", moving)
    policy = Policy((), (replace(RULE, order=order),), "auto", 64, 0, ())
    bed.engine.memory.in_force = RulesInForce.of(policy)
    session = bed.sessions["nic"]
    session.moves = None
    bed.executor.know(session)
    assert known == []
    bed.executor.carry_out([Begin("nic", (WANTED,))])
    bed.arm("nic", armed)
    bed.executor.know(session)
    assert known == [order is Mode.STRICT, measures]


def test_what_is_written_is_counted(bed: Bed) -> None:
    bed.engine.memory.table.put(flow(1))
    bed.executor.carry_out([Begin("nic", (WANTED,))])
    assert bed.executor._changes.changes == {("nic", "insert", 0): 1}
