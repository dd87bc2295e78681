# SPDX-License-Identifier: GPL-2.0-or-later
"""The only way to the kernel: carries out what the engine asks for, and gives back the results.
Writes to a NIC or to irqbalance only for a NIC that is armed; an undo also writes for one that is
not, and needs a permit."""

from __future__ import annotations

import asyncio
import errno
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from atfnd.daemon.changes import ChangeLog
from atfnd.daemon.in_force import InForce
from atfnd.daemon.moving import Moving, Said
from atfnd.daemon.session import NicSession, Sessions, moving
from atfnd.daemon.undoing import Undoing
from atfnd.engine.command import (
    Adopt,
    Begin,
    Command,
    ConfirmBan,
    CountAsOurs,
    Expect,
    Forget,
    ForgetBan,
    HandsOn,
    KeepFilter,
    Log,
    LookAtStrays,
    ReleaseClaim,
    ReportEnd,
    ReportOutcome,
    TakeOut,
    TellMoves,
    WriteSettings,
)
from atfnd.engine.engine import Engine
from atfnd.engine.event import (
    Event,
    HeirFound,
    MovesDropped,
    MovesReported,
    SettingsLeftAlone,
    StraysLooked,
    TakenOut,
    UndoDue,
)
from atfnd.engine.settings import is_asked_for
from atfnd.model import (
    Action,
    ActionKind,
    Ban,
    Mode,
    Outcome,
    Plan,
    Restored,
    SteeringMethod,
)
from atfnd.model.reason import Why
from atfnd.model.reception import by_any_name
from atfnd.observe import Observer
from atfnd.program import balance, lending, setting
from atfnd.program.actuator import apply
from atfnd.program.host_settings import HOST, HostSettings
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.program.setting import DONE, Undone

__all__ = ["Executor", "UndoPermit"]

_NOT_ARMED = "its NIC is not armed any more"

Answer = Callable[[Any], Iterable[Event]]


class UndoPermit(NamedTuple):
    """Our changes are no longer wanted: in a NIC, or in the whole machine (HOST)."""

    of: str
    why: Why

    def check(self, of: str) -> None:
        """ValueError: this permit is for something else."""
        if self.of != of:
            raise ValueError(f"{self} does not permit {of}")


class Executor:
    """`observer` learns what the engine wants of it; `answer` registers the parts that carry out
    other commands. `changed` is called when the engine may want a tick at another time."""

    def __init__(
        self,
        engine: Engine,
        sessions: Sessions,
        observer: Observer,
        journal: FilterJournal,
        undo_journal: UndoJournal,
        changes: ChangeLog,
        in_force: InForce,
    ) -> None:
        self._engine, self._sessions, self._observer = engine, sessions, observer
        self._journal, self._undo_journal = journal, undo_journal
        self._changes, self._in_force, self._host = changes, in_force, HostSettings()
        self.changed: Callable[[], None] = lambda: None
        self._carriers: dict[type[Command], Answer] = {
            Adopt: self._adopt,
            Begin: self._begin,
            ConfirmBan: self._confirm_ban,
            CountAsOurs: self._count_as_ours,
            Expect: self._expect,
            Forget: self._forget,
            ForgetBan: self._forget_ban,
            HandsOn: self._hands_on,
            Log: self._log,
            LookAtStrays: self._look_at_strays,
            ReleaseClaim: self._release_claim,
            ReportEnd: self._report_end,
            ReportOutcome: self._report_outcome,
            TellMoves: self._tell_moves,
            WriteSettings: self._write_settings,
        }

    def answer(self, kind: type[Command], by: Answer) -> None:
        """`by` carries out commands of this kind, and returns events."""
        self._carriers[kind] = by

    def armed(self, nic: str) -> bool:
        """We may write for this NIC: this is the one place that says so."""
        return nic in self._sessions and self._sessions[nic].view.armed

    def take(self, *events: Event) -> list[Outcome]:
        """Give events to the engine, and carry out all that it asks for. Returns the outcomes of
        actions that are done already."""
        done: list[Outcome] = []
        for event in events:
            done += self.carry_out(self.decide(event))
        return done

    def decide(self, event: Event) -> Sequence[Command]:
        """What the engine asks for, to be carried out before the next event."""
        return self._engine.handle(event, time.monotonic_ns())

    def carry_out(self, commands: Iterable[Command]) -> list[Outcome]:
        """As `take`, for commands that are already decided."""
        done: list[Outcome] = []
        todo = deque(commands)
        while todo:
            for answer in self._carriers[type(command := todo.popleft())](command):
                if isinstance(answer, MovesReported):
                    done += [each for each in answer.said if isinstance(each, Outcome)]
                todo.extendleft(reversed(self.decide(answer)))
        self.changed()
        return done

    def still(self, session: NicSession) -> str | None:
        """End all moves of this NIC. What the kernel refuses of that is logged and returned: it
        stands in nobody's way."""
        flows = [] if session.moves is None else session.moves.flows()
        why = None
        try:
            session.end_moves()
        except OSError as refusal:
            why = refusal.strerror or str(refusal)
            what = "moves under way did not end in order"
            self._changes.log.add("refused", what, why, nic=session.name)
        finally:
            self.take(MovesDropped(session.name, flows))
        return why

    def know(self, session: NicSession) -> None:
        """What moves depend on may have changed."""
        if session.moves is not None:
            steering = self._engine.memory.in_force.steering()
            view = session.view
            by_filters = view.armed and view.method is SteeringMethod.FILTERS
            in_order = any(rule.order is not Mode.IMMEDIATE for rule in steering)
            session.moves.know(measure=by_filters and in_order)
            table = self._engine.memory.table
            session.moves.only_known(lambda key: table.get(key) is not None)

    def probe(self, session: NicSession) -> None:
        """Prove what an armed NIC can do: writes filters that the journal names, and deletes
        them."""
        if self.armed(session.name):
            session.watch.nic.probe(self._journal.claims(session.name))

    async def ban(
        self, pid: int, irqs: Mapping[str, frozenset[int]], ended: Mapping[Ban, UndoPermit]
    ) -> tuple[int, str]:
        """Tell an irqbalance not to move interrupts of armed NICs, and to move those of `ended`
        again. Returns an errno, and the result in words. Unrecorded: the journal cannot be written,
        and nobody asked it for anything."""
        for ban, permit in ended.items():
            permit.check(ban.nic)
        if not all(map(self.armed, irqs)):
            return errno.EPERM, _NOT_ARMED
        new = [Ban(pid, name, irq) for name, each in irqs.items() for irq in sorted(each)]
        balance.journal(self._undo_journal, new)
        balance.doubt(self._undo_journal, ended)
        more = {ban.irq for ban in new}
        less = {ban.irq for ban in ended} - more
        code, left = await asyncio.to_thread(balance.banned, pid, more, less)
        for ban in ended if code == 0 else ():
            balance.forget(self._undo_journal, ban)
        for ban in new if code == 0 else ():
            balance.made(self._undo_journal, ban)
        for ban in new if code in balance.NOT_ASKED else ():  # else it may know, and is asked later
            balance.forget(self._undo_journal, ban)
        return code, left

    # ---- undo

    def take_out(self, session: NicSession, permit: UndoPermit) -> list[Restored]:
        """Take all our changes out of a NIC; no move of it is under way. ValueError: the permit is
        not for this NIC, or it is armed."""
        permit.check(session.name)

        def withdraw() -> Plan:
            commands = self.decide(UndoDue(session.name, permit.why))
            self.carry_out(each for each in commands if not isinstance(each, TakeOut))
            plans = (each.plan for each in commands if isinstance(each, TakeOut))
            return tuple(action for plan in plans for action in plan)

        def report(outcomes: Sequence[Outcome]) -> None:
            self.take(TakenOut(session.name, tuple(outcomes)))

        undoing = Undoing(self._journal, self._undo_journal, self._changes.log)
        return undoing.take_out(session.watch.nic, session.view, permit.why, withdraw, report)

    def forget(self, session: NicSession, permit: UndoPermit) -> None:
        """A NIC is gone, and its settings with it: put back what we changed for the whole
        machine."""
        permit.check(session.name)
        setting.undo(session.watch.nic, self._undo_journal)

    def end_loans(self, session: NicSession, permit: UndoPermit) -> None:
        """Give back NAPI threads that an earlier run had borrowed when it died."""
        permit.check(session.name)
        if not (undone := lending.end(session.watch.nic, self._undo_journal)):
            return
        for name, code, left in undone:
            kind, what = "refused" if code else "undo", f"{name} {left}"
            self._changes.log.add(kind, what, permit.why, nic=session.name)
        session.watch.threads_changed()

    def write_host(self, action: Action) -> Outcome:
        """Set a setting of the whole machine, for this armed NIC, and read it back. A journal that
        cannot be written is an Outcome, too."""
        if self.armed(action.nic):
            outcome = setting.apply(self._host, self._undo_journal, action)
        else:
            outcome = Outcome(action, time.monotonic_ns(), errno.EPERM, None, _NOT_ARMED)
        self._changes.record(outcome)
        return outcome

    def put_back_host(self, name: str, permit: UndoPermit) -> list[Undone]:
        """Give a setting of the whole machine its value from before us, and read it back."""
        permit.check(HOST)
        undone = setting.undo(self._host, self._undo_journal, {name})
        for each in undone:
            kind = "refused" if each.errno not in DONE else "undo"
            self._changes.log.add(kind, f"{name} {each.left}", permit.why)
        return undone

    async def lift_bans(self, permit: UndoPermit) -> list[Restored]:
        """Have irqbalance move the interrupts of one NIC again."""
        done = []
        for pid, ours in balance.lift(self._undo_journal, permit.of):
            code, left = await asyncio.to_thread(balance.unban, pid, {ban.irq for ban in ours})
            done += balance.lifted(self._undo_journal, ours, code, left)
        return done

    # ---- results

    def _report(self, said: Said) -> None:
        """Give the results of moves that end later to the engine."""
        self.take(*self._reported(said))

    def left_alone(self, nic: str) -> SettingsLeftAlone:
        """What another program changed after us, by the undo journal."""
        return SettingsLeftAlone(nic, by_any_name(self._undo_journal.manual(nic)))

    def _reported(self, said: Said) -> Sequence[MovesReported | SettingsLeftAlone]:
        changed = set[str]()
        for outcome in (each for each in said if isinstance(each, Outcome)):
            action = outcome.action
            if action.loan and outcome.errno == errno.ESTALE:
                changed.add(action.nic)
            if action.queue is not None and action.new is not None and not outcome.errno:
                self._sessions[action.nic].watch.queue_moved(action.queue, action.new)
            name, value = action.setting or "", action.value
            if action.loan or outcome.errno or value is None or not is_asked_for(name):
                continue
            self._sessions[action.nic].watch.setting_wrote(name, value)
        left = map(self.left_alone, sorted(changed))
        return (MovesReported(tuple(said)), *left) if said else ()

    # ---- commands

    def _begin(self, command: Begin) -> Sequence[Event]:
        """Nothing is done on a NIC that is not armed any more, or is gone."""
        keys = [each.action.key for each in command.wanted if each.action.key is not None]
        dropped = (MovesDropped(command.nic, keys),)
        if not self.armed(command.nic):
            return dropped
        try:
            said = self._moves_of(self._sessions[command.nic]).want(command.wanted)
        except OSError as error:
            if error.errno not in (errno.ENODEV, errno.ENOENT):
                self.still(self._sessions[command.nic])
                self.take(*dropped)
                raise
            return dropped  # the loop is about to hear of that
        return self._reported(said)

    def _write_settings(self, command: WriteSettings) -> Sequence[Event]:
        return self._reported(
            [
                self._write(self._sessions[action.nic], action)
                for action in command.plan
                if self.armed(action.nic)
            ]
        )

    def _count_as_ours(self, command: CountAsOurs) -> Iterable[Event]:
        for each in command.settings:
            try:
                now = self._sessions[command.nic].watch.nic.setting(each)
            except OSError as refusal:
                if refusal.errno != errno.ENETDOWN:
                    raise
                continue  # it is read again when the link is up
            if now is not None and not (command.scattered and now.isdecimal()):
                self._undo_journal.confirmed(command.nic, each, now)
        return ()

    def _tell_moves(self, command: TellMoves) -> Iterable[Event]:
        for name, session in self._sessions.items():
            if session.moves is not None and command.nic in (None, name):
                session.moves.tell(command.event)
        return ()

    def _look_at_strays(self, command: LookAtStrays) -> Iterable[Event]:
        lives = {(nic, key): self._sessions[nic].lives(key) for nic, key in command.keys}
        return (StraysLooked(lives, moving(self._sessions)),)

    def _expect(self, command: Expect) -> Iterable[Event]:
        self._observer.expect(*command)
        return ()

    def _hands_on(self, command: HandsOn) -> Iterable[Event]:
        self._observer.hands_on(command.nic, command.cpus)
        return ()

    def _adopt(self, command: Adopt) -> Iterable[Event]:
        self._observer.adopt(command.cpus)
        return ()

    def _forget(self, command: Forget) -> Iterable[Event]:
        self._observer.forget(command.cookies)
        return ()

    def _confirm_ban(self, command: ConfirmBan) -> Iterable[Event]:
        balance.made(self._undo_journal, command.ban)
        return ()

    def _forget_ban(self, command: ForgetBan) -> Iterable[Event]:
        balance.forget(self._undo_journal, command.ban, theirs=command.theirs)
        return ()

    def _release_claim(self, command: ReleaseClaim) -> Iterable[Event]:
        self._journal.release(command.nic, command.match)
        return ()

    def _report_outcome(self, command: ReportOutcome) -> Iterable[Event]:
        self._changes.record(command.outcome)
        return ()

    def _report_end(self, command: ReportEnd) -> Iterable[Event]:
        self._changes.ended(command.ended, news=command.news)
        return ()

    def _log(self, command: Log) -> Iterable[Event]:
        self._changes.log.add(command.kind, command.what, command.why, **command.fields)
        return ()

    # ---- moves

    def _moves_of(self, session: NicSession) -> Moving:
        """The moves of an armed NIC, from its first one on."""
        if session.moves is None:
            session.moves = Moving(
                session.watch,
                self._journal,
                self._undo_journal,
                partial(self._last_look, session),
                self._report,
                self._in_force.policy,
                partial(self._cannot_prove, session.name),
            )
            self.know(session)
        return session.moves

    def _cannot_prove(self, nic: str, why: str) -> None:
        what = "packets cannot be observed: no move is proven"
        self._changes.log.add("not-followed", what, why, nic=nic)

    def _write(self, session: NicSession, action: Action) -> Outcome:
        if (late := self._last_look(session, action)) is not None:
            return late
        return apply(session.watch.nic, self._journal, self._undo_journal, action)

    def _last_look(self, session: NicSession, action: Action) -> Outcome | None:
        """Why an action whose turn has come is not written. None: write it."""
        now_ns, at = time.monotonic_ns(), action.location
        if not self.armed(session.name):
            return Outcome(action, now_ns, errno.EPERM, at, _NOT_ARMED)
        if (late := self._engine.outlived(action, now_ns)) is not None:
            return late
        if action.kind is ActionKind.DELETE and not action.live:
            try:
                if self._inherited(session, action):
                    why = "another socket uses its filter now"
                    return Outcome(action, now_ns, errno.ECANCELED, at, why)
            except OSError as refusal:
                why = "it is not known whether its 5-tuple is in use again"
                return Outcome(action, now_ns, refusal.errno or errno.EIO, at, why)
        return None

    def _inherited(self, session: NicSession, action: Action) -> bool:
        """The last look before a closed flow's filter is deleted: the delete would move a new
        socket that has the same 5-tuple."""
        key = action.key
        if key is None or key.listens:
            return False
        cookie = session.socket_of(key)
        if cookie is None:
            return False
        commands, keep = self.decide(HeirFound(action, cookie)), KeepFilter(action)
        self.carry_out(each for each in commands if each != keep)
        return keep in commands
