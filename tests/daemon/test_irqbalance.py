# SPDX-License-Identifier: GPL-2.0-or-later
"""The real irqbalance learns which interrupts are ours, beside what others asked of it."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from atfnd.daemon.balancing import Balancing
from atfnd.daemon.executor import Executor
from atfnd.engine.command import LookAtInterrupts
from atfnd.engine.engine import Engine
from atfnd.engine.event import Armed, Disarmed, Event, NicAttached
from atfnd.engine.table.memory import Memory
from atfnd.kernel.interrupts import irqbalance
from atfnd.model import Ban, Policy, Queue
from atfnd.program import balance
from atfnd.program.balance import BALANCER
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.serve.log.event_log import EventLog
from tests.daemon.irqbalance import balancer, spares
from tests.values import NIC, RULE
from tests.wait import until

ASKS = """\
import sys, pathlib
from atfnd.kernel.interrupts import irqbalance
irqbalance._PROC = run = pathlib.Path(sys.argv[2])
assert irqbalance.spared(int(sys.argv[1]), run, 0.1) is None
"""  # and is in a hurry to end
ADMINS, OURS = 9001, (9011, 9012)  # none of them exists


@pytest.fixture
def undo_journal(tmp_path: Path) -> Iterator[UndoJournal]:
    made = UndoJournal(tmp_path / "originals.journal")
    yield made
    made.close()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the place of /run: the machine's own irqbalance gets no request."""
    monkeypatch.setattr(irqbalance, "_RUN", tmp_path)
    return tmp_path


class Host:
    """Balancing of one armed NIC with interrupts of its own: model values, the rest is real."""

    def __init__(self, undo_journal: UndoJournal) -> None:
        queues = tuple(Queue(i, None, irq, i, None, None) for i, irq in enumerate(OURS))
        self.watch: Any = SimpleNamespace(view=replace(NIC, armed=True, queues=queues))
        self.log, self.put_back = EventLog(), list[frozenset[int]]()
        sessions: Any = {"nic": self.watch}
        nothing, changes = cast(Any, None), cast(Any, SimpleNamespace(log=self.log))
        engine = Engine(Memory.of(Policy((), (RULE,), "auto", 64, 0, ())))
        engine.handle(NicAttached(self.watch.view, armed=True), 0)
        self.executor = Executor(engine, sessions, nothing, nothing, undo_journal, changes, nothing)
        self.executor.answer(LookAtInterrupts, self._look)
        balancers = engine.memory.balancers
        self.balancing = Balancing(balancers, self.executor, undo_journal)
        self.runner = asyncio.Runner()

    def _look(self, command: LookAtInterrupts) -> Iterable[Event]:
        self.put_back.append(command.irqs)
        return ()

    def arm(self, armed: bool) -> None:
        self.watch.view = replace(self.watch.view, armed=armed)
        self.executor.take(Armed("nic") if armed else Disarmed("nic"))

    def look_until(self, holds: Callable[[], bool]) -> None:
        until(lambda: self.runner.run(self.balancing.look()) or holds(), "it has looked", 60)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.log.after(0, 100)]


def test_bans_are_merged_and_taken_back(run: Path) -> None:
    with balancer(f"--banirq={ADMINS}", tied=run) as pid:
        assert spares(pid) == {ADMINS}
        assert balance.banned(pid, OURS) == (0, "as planned")
        assert spares(pid) == {ADMINS, *OURS}
        assert balance.unban(pid, OURS) == (0, "as planned")
        assert spares(pid) == {ADMINS}
        assert balance.unban(pid, [ADMINS])[0] == 0  # the last one
        assert spares(pid) == set()


def test_one_that_sleeps_survives_being_asked(run: Path) -> None:
    """It dies of SIGPIPE when who asked has hung up."""
    with balancer(tied=run, interval_s=5) as pid:
        irqbalance.spare(pid, OURS)
        sleeps(pid)
        assert irqbalance.spared(pid, patience_s=0.1) is None
        with pytest.MonkeyPatch.context() as blind:
            blind.setattr(irqbalance, "_PROC", run)  # as if it had waited for a message just now
            assert irqbalance.spared(pid, patience_s=0.1) is None
        assert spares(pid) == set(OURS)
        irqbalance.spare(pid, OURS[:1])
        sleeps(pid)
        subprocess.run([sys.executable, "-c", ASKS, str(pid), str(run)], check=True, timeout=60)
        assert spares(pid) == {OURS[0]}


def sleeps(pid: int) -> None:
    """Wait until it rests after a request."""
    until(lambda: "nanosleep" in Path(f"/proc/{pid}/wchan").read_text(), "it sleeps")


def test_a_list_too_long_for_it_is_not_sent_in_part(run: Path) -> None:
    with balancer(f"--banirq={ADMINS}", tied=run) as pid:
        code, _ = balance.banned(pid, range(10_000, 10_090))
        assert code == errno.E2BIG
        assert spares(pid) == {ADMINS}


def test_a_nic_is_spared_while_it_is_armed_and_after_every_restart(
    undo_journal: UndoJournal, run: Path
) -> None:
    host = Host(undo_journal)
    with ExitStack() as stack:
        pid = stack.enter_context(balancer(f"--banirq={ADMINS}", tied=run))
        host.look_until(lambda: spares(pid) == {ADMINS, *OURS})
        assert host.put_back == [frozenset(OURS)]
        assert not host.balancing.may_have_moved(OURS[0])
        host.arm(False)  # changes nothing
        stack.close()
        assert {ban.pid for ban in balance.bans(undo_journal)} == {pid}
        with balancer(tied=run) as another:
            host.look_until(lambda: balance.bans(undo_journal) == [])
            assert spares(another) == set()
            assert host.balancing.may_have_moved(OURS[0])
            host.arm(True)
            host.look_until(lambda: spares(another) == set(OURS))
    assert host.kinds() == ["ban", "ban"]


def test_what_somebody_else_has_it_move_again_is_his(undo_journal: UndoJournal, run: Path) -> None:
    host = Host(undo_journal)
    with balancer(tied=run) as pid:
        host.look_until(lambda: spares(pid) == set(OURS))
        assert balance.unban(pid, OURS[:1])[0] == 0  # as in irqbalance-ui
        host.look_until(lambda: "manual" in host.kinds())
        assert spares(pid) == {OURS[1]}
        assert not host.balancing.may_have_moved(OURS[0])
        undo_journal.take_back(BALANCER)  # atfnctl resume
        host.look_until(lambda: spares(pid) == set(OURS))


def test_what_it_was_to_be_asked_before_a_kill_is_not_taken_for_an_admins_doing(
    undo_journal: UndoJournal, run: Path
) -> None:
    with balancer(tied=run) as pid:
        balance.journal(undo_journal, [Ban(pid, "nic", irq) for irq in OURS])
        host = Host(undo_journal)
        host.look_until(lambda: spares(pid) == set(OURS))
        assert host.kinds() == ["ban"]
        bans = balance.bans(undo_journal)
        balance.doubt(undo_journal, bans)  # it is about to be asked to move them again
        assert balance.banned(pid, (), OURS)[0] == 0
        host.look_until(lambda: spares(pid) == set(OURS))
        assert host.kinds() == ["ban", "ban"]


def test_a_ban_of_an_earlier_version_is_known(undo_journal: UndoJournal) -> None:
    undo_journal.note(BALANCER, "nic:30", "balanced")
    undo_journal.wrote(BALANCER, "nic:30", "pid 7")
    assert balance.bans(undo_journal) == [Ban(7, "nic", 30)]


def test_a_nic_that_is_renamed_keeps_its_bans(undo_journal: UndoJournal, tmp_path: Path) -> None:
    """A restore under its new name finds them, also if names are exchanged, and after a kill."""
    balance.journal(undo_journal, [Ban(7, "nic", OURS[0]), Ban(7, "nick", OURS[1])])
    balance.forget(undo_journal, Ban(7, "nic", OURS[0]), theirs=True)
    balance.journal(undo_journal, [Ban(7, "nic", OURS[1])])
    for old, new in [("nic", "nic/"), ("nick", "nic"), ("nic/", "nick")]:
        balance.rename_bans(undo_journal, old, new)
    again = UndoJournal(tmp_path / "originals.journal")
    for journal in (undo_journal, again):
        both = [Ban(7, "nic", OURS[1]), Ban(7, "nick", OURS[1])]
        assert sorted(balance.bans(journal)) == both
        assert balance.journaled(journal).doubtful == {*both}
        assert balance.left_alone(journal) == {OURS[0]}
    again.close()


def test_only_our_bans_are_lifted(undo_journal: UndoJournal, run: Path) -> None:
    host = Host(undo_journal)
    with balancer(f"--banirq={OURS[0]}", tied=run) as pid:
        host.look_until(lambda: spares(pid) == set(OURS))
        (done,) = balance.restored(undo_journal)
        assert (done.errno, done.left) == (0, "is lifted")
        assert str(OURS[1]) in done.what
        assert spares(pid) == {OURS[0]}
    assert undo_journal.nics() == []


def test_bans_end_with_their_irqbalance(undo_journal: UndoJournal, run: Path) -> None:
    host = Host(undo_journal)
    with balancer(tied=run) as pid:
        host.look_until(lambda: spares(pid) == set(OURS))
    assert balance.restored(undo_journal) == []
    assert undo_journal.nics() == []
