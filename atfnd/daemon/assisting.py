# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds the epolls of applications that the engine wants to prefer busy polling (`engine.assist`),
has the executor write to them, and gives back what they had."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable

from atfnd.daemon.executor import Executor, UndoPermit
from atfnd.daemon.session import Sessions
from atfnd.engine.command import AssistEpolls, PutBackEpolls
from atfnd.engine.event import AssistDue, AssistEnded, Event
from atfnd.model import Action, EpollId, EpollParams, EpollUser, Restored, brief
from atfnd.observe.processes.cgroup import born
from atfnd.observe.processes.epoll import watching
from atfnd.program.epoll import EPOLLS, Epolls
from atfnd.program.journals.record_file import Unrecorded
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.program.setting import DONE, Undone
from atfnd.serve.log.event_log import EventLog

__all__ = ["Assisting"]

_RESTS_NS = 10_000_000_000  # from one look into a process to the next

_Life = tuple[int, int]  # pid, and when it was started


class Assisting:
    """What cannot be done is logged once, and tried again when a NIC is armed or resumed."""

    def __init__(
        self, executor: Executor, sessions: Sessions, undo_journal: UndoJournal, log: EventLog
    ) -> None:
        self._executor, self._sessions = executor, sessions
        self._undo_journal, self._log = undo_journal, log
        self._epolls = Epolls()
        self._looked_ns: dict[_Life, int] = {}
        self._refused: set[_Life] = set()
        self._kept: dict[str, Undone] = {}  # what the kernel refused to put back
        executor.answer(AssistEpolls, self._assist)
        executor.answer(PutBackEpolls, self._put_back)

    def look(self) -> None:
        """Have epolls busy-poll that should, and put back those that should no longer."""
        self._executor.take(AssistDue(self._held() - self._kept.keys()))

    def arm(self) -> None:
        """A NIC was armed by an operator: what was refused is tried again."""
        self._looked_ns, self._refused, self._kept = {}, set(), {}

    def take_back(self) -> None:
        """A NIC was resumed: epolls whose application had set them up anew may be written again."""
        self._undo_journal.take_back(EPOLLS)
        self.arm()

    def pause(self) -> list[Restored]:
        """Put back what no armed NIC needs, also what was refused before. Returns the results."""
        self.arm()
        before = self._held()
        self._executor.take(AssistEnded(before))
        back, kept = before - self._held(), self._kept.values()
        done = [Restored(EPOLLS, name, 0, "is as it was, or another program's") for name in back]
        return [*done, *(Restored(EPOLLS, each.setting, each.errno, each.left) for each in kept)]

    def _held(self) -> frozenset[str]:
        """What is ours, of processes that live: what is known of others is forgotten."""
        known = {*self._undo_journal.held(EPOLLS), *self._undo_journal.manual(EPOLLS)}
        for name in known:
            epoll = EpollId.of(name)
            if born(epoll.pid) != epoll.born:
                self._undo_journal.forget(EPOLLS, name)
        return frozenset(self._undo_journal.held(EPOLLS))

    def _assist(self, command: AssistEpolls) -> Iterable[Event]:
        now_ns, known = time.monotonic_ns(), dict[_Life, int]()
        for user in command.users:
            if (started := born(user.pid)) is None or not self._executor.armed(user.nic):
                continue
            life = user.pid, started
            looked_ns = self._looked_ns.get(life, now_ns - _RESTS_NS)
            rests = now_ns - looked_ns < _RESTS_NS
            known[life] = looked_ns if rests else now_ns
            if rests or life in self._refused:
                continue
            try:
                self._look_into(user, started)
            except OSError as refusal:
                self._refuse(user, started, refusal)
        self._looked_ns = known
        self._refused &= known.keys()
        return ()

    def _look_into(self, user: EpollUser, started: int) -> None:
        inode_of = self._sessions[user.nic].inode_of
        inodes = {inode for key in user.keys if (inode := inode_of(key)) is not None}
        for fd in watching(user.pid, inodes):
            self._write(user, EpollId(user.pid, started, fd).setting)
        for name in self._undo_journal.held(EPOLLS):
            if EpollId.of(name)[:2] == (user.pid, started) and self._epolls.setting(name) is None:
                self._undo_journal.forget(EPOLLS, name)

    def _write(self, user: EpollUser, name: str) -> None:
        if name in self._undo_journal.manual(EPOLLS) or (now := self._epolls.setting(name)) is None:
            return
        wanted = str(EpollParams.of(now).assisted)
        held = self._undo_journal.held(EPOLLS).get(name)
        if held is not None and not held.ours(now):
            self._leave_alone(name, now)
        elif wanted != now:
            why = f"policy {user.rule_name} assists its epoll"
            action = Action.of_setting(user.nic, name, wanted, why, user.rule_name)
            outcome = self._executor.assist_epoll(action)
            if outcome.errno not in DONE:
                self._refused.add((user.pid, EpollId.of(name).born))

    def _leave_alone(self, name: str, now: str) -> None:
        """What the application itself has set up since belongs to it."""
        self._undo_journal.leave_alone(EPOLLS, name)
        why = "another program changed it: left alone until `atfnctl resume`"
        self._log.add("manual", f"{name} is {brief(now)}", why)

    def _refuse(self, user: EpollUser, started: int, refusal: OSError) -> None:
        self._refused.add((user.pid, started))
        words = os.strerror(refusal.errno or errno.EIO)
        if isinstance(refusal, Unrecorded):
            words = f"the journal cannot be written: {words}"
        elif isinstance(refusal, PermissionError):
            words += "; docs/reception.md says what the service needs for it"
        what = f"the epolls of process {user.pid} are left"
        self._log.add("refused", what, words, nic=user.nic, policy=user.rule_name)

    def _put_back(self, command: PutBackEpolls) -> Iterable[Event]:
        permit = UndoPermit(EPOLLS, command.why)
        for each in self._executor.put_back_epolls(command.settings, permit):
            if each.errno == errno.ESTALE:
                self._undo_journal.leave_alone(EPOLLS, each.setting)
            elif each.errno not in DONE:
                self._kept[each.setting] = each
        return ()
