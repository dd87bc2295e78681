# SPDX-License-Identifier: GPL-2.0-or-later
"""What an operator asks for holds until the next order, also after a restart, and is done in an
order in which nothing is written again that was just undone."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atfnd.daemon.executor import UndoPermit
from atfnd.daemon.operator import OperatorCommands
from atfnd.daemon.session import NicSession, Sessions
from atfnd.engine.engine import Engine
from atfnd.engine.event import Event, NicAttached, TakenUp
from atfnd.engine.table.memory import Memory
from atfnd.errors import OperatorError
from atfnd.model import FlowState, Policy, ReadBytes, Restored
from atfnd.observe.nics.watch import NicWatch
from atfnd.program.balance import BALANCER
from atfnd.program.host_settings import HOST
from atfnd.program.journals.operator_journal import OperatorJournal
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.serve.log.event_log import EventLog
from tests.daemon.parts import ScriptedNic
from tests.values import NIC, RULE, flow

__all__: list[str] = []


async def _nothing_of_balance(nic: str) -> list[Restored]:
    return []


class Bed:
    """Two armed NICs; `calls` has what the other parts of the daemon are asked to do, and whether
    the NIC is armed then."""

    def __init__(self, folder: Path) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.sessions: Sessions = {}
        self.nics: dict[str, ScriptedNic] = {}
        self.engine = Engine(Memory.of(Policy((), (RULE,), "auto", 64, 0, ())))
        self.table, self.log = self.engine.memory.table, EventLog()
        self.orders = OperatorJournal(folder / "orders.journal")
        self.undo_journal = UndoJournal(folder / "originals.journal")
        self.named = True  # the journal names filters of every NIC
        self.result = [Restored("eth0", "2 filters", 0, "deleted")]
        self.unread = 0
        self.refuses_take_out = self.refuses_to_end = ""
        for name in ("eth0", "eth1"):
            watch = NicWatch.__new__(NicWatch)
            watch.facts = replace(NIC, name=name)
            watch.reads_by(lambda: None)
            watch.nic = self.nics[name] = ScriptedNic(name)
            self.engine.handle(NicAttached(watch.facts, armed=True), 0)
            self.sessions[name] = NicSession(watch, self.engine.memory.nics[name])
        anything: Any = SimpleNamespace
        nics = anything(
            sessions=self.sessions,
            while_there=self._while_there,
            filters=anything(check=self._check, adopt=self._noted("adopt")),
            look_again=self._noted("look again"),
        )
        executor = anything(still=self._still, take_out=self._take_out, take=self._take)
        self.lift = _nothing_of_balance
        balancing = anything(lift=lambda nic: self.lift(nic))
        arming = anything(
            balancing=balancing, meet=self._noted("meet"), take_back=self._noted("take back"),
            taken_out=self._noted("taken out"),
        )  # fmt: skip
        host = anything(
            arm=lambda: self.calls.append(("host armed",)),
            look=lambda: None,
            take_back=lambda: self.calls.append(("host taken back",)),
            pause=self._release,
        )
        journal = anything(names=lambda nic: self.named)
        self.operator = OperatorCommands(
            nics, executor, arming, host, self.table, journal, self.undo_journal, self.orders,
            self.log,
        )  # fmt: skip

    def _take(self, event: Event) -> None:
        if isinstance(event, TakenUp):
            self.calls.append(("take", event))
        else:  # how the NIC stands
            self.engine.handle(event, 0)

    @contextmanager
    def _while_there(self, session: NicSession) -> Iterator[None]:
        try:
            yield
        except OSError as refusal:
            if refusal.errno != errno.ENODEV:
                raise
            del self.sessions[session.name]

    def _noted(self, what: str) -> Callable[[NicSession], None]:
        return lambda session: self.calls.append((what, session.name, session.view.armed))

    def _still(self, session: NicSession) -> str | None:
        self._noted("still")(session)
        return os.strerror(errno.EIO) if session.name == self.refuses_to_end else None

    def _check(self, session: NicSession) -> None:
        self._noted("check")(session)
        if self.unread:
            raise OSError(self.unread, os.strerror(self.unread))

    def _take_out(self, session: NicSession, permit: UndoPermit) -> list[Restored]:
        permit.check(session.name)
        self._noted("take out")(session)
        if session.name == self.refuses_take_out:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return list(self.result)

    def _release(self) -> list[Restored]:
        """The machine gets its settings back."""
        armed = sorted(name for name, each in self.sessions.items() if each.view.armed)
        self.calls.append(("host released", armed))
        return []

    def view(self, nic: str = "eth0") -> tuple[bool, bool]:
        """It is armed, and paused."""
        view = self.sessions[nic].view
        return view.armed, view.paused

    def did(self, order: Callable[[str], Awaitable[object]], nic: str = "eth0") -> list[Any]:
        """Give the order. Returns what the others were asked to do."""
        self.calls.clear()
        asyncio.run(_awaited(order(nic)))
        return list(self.calls)

    def recorded(self, nic: str = "eth0") -> tuple[bool | None, bool]:
        """For the next run: it is armed, and paused."""
        return self.orders.armed(nic), self.orders.paused(nic)


async def _awaited(order: Awaitable[object]) -> None:
    await order


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    made = Bed(tmp_path)
    yield made
    made.orders.close()
    made.undo_journal.close()


def test_an_order_to_arm_is_recorded_and_places_what_waits(bed: Bed) -> None:
    bed.did(bed.operator.disarm)
    assert (bed.view(), bed.recorded()) == ((False, False), (False, False))
    did = bed.did(bed.operator.arm)
    assert (bed.view(), bed.recorded()) == ((True, False), (True, False))
    assert did[-2:] == [("take", TakenUp("eth0")), ("host armed",)]
    assert ("adopt", "eth0", True) in did


def test_an_order_to_disarm_one_nic_is_for_that_one(bed: Bed) -> None:
    assert bed.did(bed.operator.disarm) == [("still", "eth0", False)]
    assert (bed.view("eth1"), bed.recorded("eth1")) == ((True, False), (None, False))


def test_what_was_read_until_an_order_counts_as_read_before_it(bed: Bed) -> None:
    watch, read = bed.sessions["eth0"].watch, ReadBytes()
    watch.reads_by(lambda: read)
    read = ReadBytes(local=5)
    bed.did(bed.operator.disarm)
    read = ReadBytes(local=12)
    bed.did(bed.operator.arm)
    reads = watch.reads()
    assert reads is not None
    assert (reads.armed.local, reads.unarmed.local) == (5, 7)


def unreadable(bed: Bed) -> None:
    """No counter of what applications read can be had any more."""

    def refuse() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for session in bed.sessions.values():
        session.watch.reads_by(refuse)


def test_a_counter_that_cannot_be_read_keeps_no_pause_from_being_in_force(bed: Bed) -> None:
    unreadable(bed)
    did = bed.did(bed.operator.pause)
    assert (bed.view(), bed.recorded()) == ((False, True), (None, True))
    assert ("take out", "eth0", False) in did


@pytest.mark.parametrize("order", ["arm", "resume"])
def test_a_counter_that_cannot_be_read_keeps_no_nic_from_being_steered(
    bed: Bed, order: str
) -> None:
    bed.did(bed.operator.disarm if order == "arm" else bed.operator.pause)
    unreadable(bed)
    did = bed.did(getattr(bed.operator, order))
    assert bed.view() == (True, False)
    assert ("meet", "eth0", True) in did
    assert "take" in [each[0] for each in did]


def test_a_counter_that_cannot_be_read_keeps_nothing_from_being_restored(bed: Bed) -> None:
    unreadable(bed)
    did = bed.did(bed.operator.restore)
    assert (bed.view(), bed.recorded()) == ((False, False), (False, False))
    assert ("take out", "eth0", False) in did


def test_a_pause_ends_moves_then_takes_all_out_and_is_recorded(bed: Bed) -> None:
    did = bed.did(bed.operator.pause)
    assert did == [
        ("still", "eth0", False),
        ("check", "eth0", False),
        ("take out", "eth0", False),
        ("taken out", "eth0", False),
        ("take", TakenUp("eth0")),
        ("host released", ["eth1"]),
    ]
    assert (bed.view(), bed.recorded()[1]) == ((False, True), True)


def test_a_nic_that_is_paused_is_undone_again_only_if_something_is_left(bed: Bed) -> None:
    bed.did(bed.operator.pause)
    assert ("take out", "eth0", False) in bed.did(bed.operator.pause)
    bed.named = False
    assert bed.did(bed.operator.pause) == [("host released", ["eth1"])]
    bed.undo_journal.note("eth0", "rss", "default")
    assert ("take out", "eth0", False) in bed.did(bed.operator.pause)


def test_a_pause_says_what_the_kernel_did_not_undo(bed: Bed) -> None:
    bed.result.append(Restored("eth0", "queue-cpu:1", errno.EIO, "refused"))
    with pytest.raises(OperatorError, match="refused to undo: queue-cpu:1"):
        bed.did(bed.operator.pause)
    assert bed.view() == (False, True)


def test_a_pause_of_a_paused_nic_asks_again_for_what_irqbalance_did_not_do(bed: Bed) -> None:
    async def stays(nic: str) -> list[Restored]:
        return [Restored(nic, "irqbalance's ban of interrupts 7", errno.EAGAIN, "stays")]

    bed.named, bed.lift = False, stays
    for _ in range(2):
        with pytest.raises(OperatorError, match="interrupts 7"):
            bed.did(bed.operator.pause)


def test_a_resume_arms_again_what_was_armed(bed: Bed) -> None:
    bed.did(bed.operator.pause)
    did = bed.did(bed.operator.resume)
    assert (bed.view(), bed.recorded()[1]) == ((True, False), False)
    assert did[0] == ("take back", "eth0", True)
    assert did[-1] == ("take", TakenUp("eth0", manual=True))


def test_a_resume_arms_nothing_that_was_not_armed(bed: Bed) -> None:
    bed.did(bed.operator.disarm)
    bed.did(bed.operator.pause)
    did = bed.did(bed.operator.resume)
    assert bed.view() == (False, False)
    assert not [each for each in did if each[0] in ("take", "look again")]


def test_a_resume_takes_over_again_what_another_program_moved(bed: Bed) -> None:
    """And does nothing where there is nothing to take."""
    assert bed.did(bed.operator.resume) == []
    bed.table.put(flow(1, nic="eth0", state=FlowState.MANUAL))
    assert bed.did(bed.operator.resume)[-1] == ("take", TakenUp("eth0", manual=True))


def test_a_restore_leaves_the_nic_disarmed_also_for_the_next_run(bed: Bed) -> None:
    did = bed.did(bed.operator.restore)
    assert (bed.view(), bed.recorded()) == ((False, False), (False, False))
    assert did[0] == ("still", "eth0", False)
    assert did[-4:] == [
        ("take out", "eth0", False),
        ("taken out", "eth0", False),
        ("take", TakenUp("eth0")),
        ("host released", ["eth1"]),
    ]


def test_a_nic_that_does_not_list_its_filters_is_undone_all_the_same(bed: Bed) -> None:
    bed.unread = errno.EIO
    assert ("take out", "eth0", False) in bed.did(bed.operator.restore)
    bed.unread = errno.ENODEV
    with pytest.raises(OSError, match="No such device"):
        bed.did(bed.operator.restore)


def test_a_nic_that_cannot_be_read_after_it_is_undone_is_restored_all_the_same(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(code: int) -> None:
        def taken_out(session: NicSession) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(bed.operator._arming, "taken_out", taken_out)

    refuse(errno.EIO)
    assert ("host released", ["eth1"]) in bed.did(bed.operator.restore)
    refuse(errno.ENODEV)
    with pytest.raises(OSError, match="No such device"):
        bed.did(bed.operator.restore)


@pytest.mark.parametrize("verb", ["arm", "pause", "resume", "restore"])
@pytest.mark.parametrize("called", [None, "ren1"])
def test_a_nic_that_has_just_gone_is_not_there_for_an_order(
    bed: Bed, verb: str, called: str | None
) -> None:
    """Nobody has read yet that it went, or has another name."""
    bed.nics["eth0"].called = called
    with pytest.raises(KeyError):
        bed.did(getattr(bed.operator, verb))
    assert bed.calls == []
    assert bed.recorded() == (None, False)


def test_at_a_stop_no_nic_is_written_before_moves_end_and_orders_hold(bed: Bed) -> None:
    bed.did(bed.operator.arm)
    bed.calls.clear()
    bed.refuses_to_end = "eth1"
    assert bed.operator.end() == ["moves of eth1 did not end in order: Input/output error"]
    assert bed.calls == [("still", "eth0", False), ("still", "eth1", False)]
    assert [bed.view(nic) for nic in ("eth0", "eth1")] == [(False, False)] * 2
    assert bed.recorded() == (True, False)


def test_a_nic_is_disarmed_before_that_is_recorded(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may be slow, or full."""
    say, armed = bed.orders.say, list[bool]()

    def recorded(verb: str, nic: str) -> None:
        armed.append(bed.view()[0])
        say(verb, nic)

    monkeypatch.setattr(bed.orders, "say", recorded)
    bed.did(bed.operator.disarm)
    assert armed == [False]


def test_a_resume_takes_nothing_for_what_another_nics_flows_are(bed: Bed) -> None:
    bed.table.put(flow(1, nic="eth1", state=FlowState.MANUAL))
    assert bed.did(bed.operator.resume) == []


@pytest.mark.parametrize("of", [HOST, BALANCER])
def test_a_resume_takes_back_what_another_program_changed_in_the_machine(bed: Bed, of: str) -> None:
    bed.undo_journal.note(of, "one", "before")
    bed.undo_journal.wrote(of, "one", "ours")
    assert bed.did(bed.operator.resume) == []
    bed.undo_journal.leave_alone(of, "one")
    assert ("host taken back",) in bed.did(bed.operator.resume)
