# SPDX-License-Identifier: GPL-2.0-or-later
"""The moves of one NIC on the loop: takes what the engine wants, and returns the results, now or
later.

While something waits for it, the machine (`move.device`) gets time and evidence every millisecond,
or less often if its cost asks for that. Packets are observed only during that time.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from math import inf
from typing import TypeVar

from atfnd.model import Action, ActionKind, FlowKey, Mode, Outcome, Policy
from atfnd.model.nic import RSS_KEY
from atfnd.model.reception import by_any_name, of_reception
from atfnd.move.command import Ended
from atfnd.move.device import NicMoves, only_known
from atfnd.move.event import Event, FlowClosed, PortChanged, Reset, TimerDue, Wanted
from atfnd.move.mover import Mover
from atfnd.move.port import Port, rfs_queue
from atfnd.move.timer import Times
from atfnd.observe.nics.move_port import read_port
from atfnd.observe.nics.watch import NicWatch
from atfnd.policy.match.match import may_borrow
from atfnd.program import lending
from atfnd.program.actuator import NicActuator
from atfnd.program.blind_actuator import BlindActuator
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.program.setting import drifted

__all__ = ["Moving", "Said", "carry_out"]

_LOOK_S = 0.001  # for a gap; the machine may hear later of what follows a move
_LOOK_LATER_S = 0.02
_SHARE = 0.1  # of one core that looking may cost
_FRESH_S = 1.0  # a change by another program may go unnoticed for so long
_MEASURE_AFTER_S, _MEASURE_LATEST_S = 5.0, 600.0  # again, after a refusal
_REST_S = 1.0  # without a move, until nothing is attached any more: it costs each packet and poll

Said = Sequence[Outcome | Ended]
T = TypeVar("T")


def carry_out(steps: Generator[Action, Outcome, T], write: Callable[[Action], Outcome]) -> T:
    """Write each action when its turn has come, and give its outcome back."""
    with closing(steps):
        try:
            action = next(steps)
            while True:
                action = steps.send(write(action))
        except StopIteration as end:
            value: T = end.value
            return value


class Moving:
    """`last_look` says why an action whose turn has come is not written now (None: it is),
    `said` takes the results of moves that end after
    `want` has returned, `blind` says why packets and polls cannot be seen."""

    def __init__(
        self,
        watch: NicWatch,
        journal: FilterJournal,
        undo_journal: UndoJournal,
        last_look: Callable[[Action], Outcome | None],
        said: Callable[[Said], None],
        policy: Policy,
        blind: Callable[[str], None],
    ) -> None:
        self._watch, self._said, self._last_look, self._blind = watch, said, last_look, blind
        self._journal, self._undo_journal = journal, undo_journal
        self._actuator: NicActuator | BlindActuator
        try:
            self._actuator = NicActuator(
                watch.nic, journal, undo_journal, lambda: watch.facts.queues
            )
        except OSError as refusal:
            self._actuator = self._blinded(refusal)
        self._borrow = may_borrow(policy.interfaces, watch.facts)
        self._mover = Mover(self._actuator, NicMoves(self._port(), _paced(Times(), policy)))
        self._lives, self._read_s = watch.lives, time.monotonic()
        self._measure_at_s, self._measure_after_s = 0.0, _MEASURE_AFTER_S
        self._timer: asyncio.TimerHandle | None = None
        self._busy_s = 0.0  # loop time of the last move
        self._reading = False

    def want(self, wanted: Sequence[Wanted]) -> Said:
        """Begin moves, or queue them until they are due. Returns what is done already."""
        events: list[Event] = []
        for each in wanted:
            if each.action.key is not None and not each.live:
                events.append(FlowClosed(each.action.key))
            events.append(each)
        if any(each.live and _observed(each.action) for each in wanted):
            self._start()
        if any(each.mode is not Mode.IMMEDIATE for each in wanted):
            events = [*self._facts(_FRESH_S), *events]
        return self._tell(*events)

    def tell(self, event: Event) -> None:
        """Something happened that a move may depend on."""
        if said := self._tell(event):
            self._said(said)

    def know(self, *, measure: bool) -> None:
        """The NIC has been read again: what moves depend on, and whether it was reset. With
        `measure`, measure what a rule write takes here, if that is not known: write a filter that
        matches no flow, and delete it."""
        now_s = time.monotonic()
        due = measure and self._actuator.write_ns() is None and now_s >= self._measure_at_s
        trial = self._actuator.trial(self._watch.facts.name)
        outcome = carry_out(trial, self._write) if due else None
        if outcome is not None and outcome.errno:
            self._measure_at_s = now_s + self._measure_after_s
            self._measure_after_s = min(2 * self._measure_after_s, _MEASURE_LATEST_S)
        if said := self._tell(*self._facts(0)):
            self._said(said)

    def only_known(self, known: Callable[[FlowKey], bool]) -> None:
        """Forget the flows that have no entry."""
        device = self._mover.device
        there = {each for each in device.records if isinstance(each, FlowKey) and known(each)}
        self._mover.device = only_known(device, there)

    def use(self, policy: Policy) -> None:
        """From now on this policy sets how long flows rest, how many moves there may be, and
        whether threads are borrowed."""
        self._borrow = may_borrow(policy.interfaces, self._watch.facts)
        self._read_s = -inf
        device = self._mover.device
        self._mover.device = device._replace(times=_paced(device.times, policy))

    def flows(self) -> list[FlowKey]:
        """The flows whose moves wait or are under way."""
        subjects = (*self._mover.device.live, *self._mover.device.waiting)
        return [each for each in dict.fromkeys(subjects) if isinstance(each, FlowKey)]

    def concerns(self, key: FlowKey) -> bool:
        """A move of this flow waits or is under way."""
        return key in self._mover.device.live or key in self._mover.device.waiting

    def close(self) -> None:
        """End quiescing, give back borrowed threads, and detach everything. Rules stay."""
        if self._timer is not None:
            self._timer.cancel()
        with ExitStack() as ending:  # each step runs, whatever the others do
            ending.callback(self._actuator.close)
            ending.callback(self._rest)
            ending.callback(lending.end, self._watch.nic, self._undo_journal)
            ending.callback(self._give_back)
            ending.callback(self._mover.release_all)

    def _give_back(self) -> None:
        for action in self._mover.device.loan.give_back().asked:
            self._forget_lost(action)
            lending.apply(self._watch.nic, self._undo_journal, action)

    def _facts(self, fresh_s: float) -> list[Event]:
        """What moves depend on, unless it was read less than `fresh_s` ago."""
        now_s = time.monotonic()
        if now_s - self._read_s < fresh_s:
            return []
        self._read_s = now_s
        reset = [Reset()] if self._lives != self._watch.lives else []
        self._lives = self._watch.lives
        write_ns, service_pps = self._actuator.write_ns(), self._actuator.service_pps()
        return [*reset, PortChanged(self._port(write_ns, service_pps))]

    def _port(
        self, write_ns: int | None = None, service_pps: Mapping[int, float] | None = None
    ) -> Port:
        watch = self._watch
        manual = by_any_name(self._undo_journal.manual(watch.facts.name))
        return read_port(
            watch.facts, watch.nic.interface, write_ns,
            service_pps=service_pps, borrow=self._borrow, manual=manual,
        )  # fmt: skip

    def _tell(self, *events: Event) -> Said:
        said = carry_out(self._mover.steps(*events), self._write)
        self._schedule(_LOOK_S)
        return said

    def _write(self, action: Action) -> Outcome:
        late = self._last_look(action)
        if late is None and lending.lends(action):
            self._forget_lost(action)
        outcome = self._actuator.write(action) if late is None else late
        is_stale, receives = outcome.errno == errno.ESTALE, of_reception(action.setting or "")
        if lending.lends(action) or receives:
            self._read_threads(with_settings=is_stale)
        if is_stale or (receives and not action.loan):
            self._read_s = -inf
        if action.setting == RSS_KEY:
            self._watch.read_rss()
        return outcome

    def _forget_lost(self, loan: Action) -> None:
        """A NIC that has come up anew since it was prepared lost by itself what was borrowed: no
        other program changed it."""
        name, setting = self._watch.facts.name, loan.setting or ""
        if setting not in self._undo_journal.held(name):
            return
        self._read_threads()
        if self._undo_journal.life(name) == self._watch.life():
            return
        with suppress(OSError):  # not to be read now: what is written next is refused, too
            now = self._watch.nic.setting(setting)
            for lost in () if now is None else drifted(name, {setting: now}, self._undo_journal):
                self._undo_journal.forget(name, lost)

    def _read_threads(self, *, with_settings: bool = False) -> None:
        """Where the NIC cannot be read just now, it is read again at the next look. Until then a
        hold of a queue that has other threads than is known is refused."""
        try:
            self._watch.threads_changed()
            if with_settings:
                self._watch.read_settings()
        except OSError as refusal:
            if refusal.errno == errno.ENODEV:
                raise

    def _look(self) -> None:
        """Give the machine what was seen, and the time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        began_s = time.thread_time()
        seen = self._actuator.evidence(self._actuator.now_ns())
        said = carry_out(self._mover.steps(*seen, TimerDue()), self._write)
        if said:
            self._said(said)
        self._schedule(max(_LOOK_S, (time.thread_time() - began_s) / _SHARE))

    def _schedule(self, least_s: float) -> None:
        """The next look: when the machine waits for a time, or soon when packets are watched."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        if (due_ns := self._mover.due_ns()) is not None:
            self._busy_s = loop.time()
            soon_s = (due_ns - self._actuator.now_ns()) / 1e9
            if self._actuator.watching():
                look_s = _LOOK_S if self._mover.waits_for_gap() else _LOOK_LATER_S
                soon_s = min(soon_s, look_s)
            self._timer = loop.call_later(max(least_s, soon_s), self._look)
        elif self._reading:  # since the last move, not since the NIC was last looked at
            self._timer = loop.call_later(self._busy_s + _REST_S - loop.time(), self._rest)

    def _blinded(self, refusal: OSError) -> BlindActuator:
        why = refusal.strerror or str(refusal)
        self._blind(why)
        return BlindActuator(self._watch.nic, self._journal, self._undo_journal, why)

    def _start(self) -> None:
        """Attach what observes packets and polls. If the kernel refuses, moves go on without it
        until the NIC is watched anew."""
        try:
            self._actuator.start()
        except OSError as refusal:
            self._actuator.close()
            self._actuator = self._mover.actuator = self._blinded(refusal)
            self._read_s = -inf  # the time that a write took counts no more
        self._busy_s = asyncio.get_running_loop().time()
        if not self._reading and self._actuator.fileno() >= 0:
            asyncio.get_running_loop().add_reader(self._actuator.fileno(), self._look)
            self._reading = True

    def _rest(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        if self._reading:
            loop.remove_reader(self._actuator.fileno())
            self._reading = False
        self._actuator.rest()


def _observed(action: Action) -> bool:
    """Polls have to be seen for it."""
    return action.kind is not ActionKind.SETTING or rfs_queue(action) is not None


def _paced(times: Times, policy: Policy) -> Times:
    every_ns = 1_000_000_000 // policy.moves_per_s
    return replace(times, hold_down_ns=policy.hold_down_ns, move_every_ns=every_ns)
