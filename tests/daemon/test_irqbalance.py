# SPDX-License-Identifier: GPL-2.0-or-later
"""The real irqbalance learns which interrupts are ours, beside what others asked of it."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atfnd.kernel.interrupts import irqbalance
from atfnd.model import Ban
from atfnd.program import balance
from atfnd.program.balance import BALANCER
from atfnd.program.journals.undo_journal import UndoJournal
from tests.daemon.irqbalance import balancer, spares
from tests.wait import until

__all__: list[str] = []

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
