# SPDX-License-Identifier: GPL-2.0-or-later
"""Does steering a NIC pay? Steers it and sets it aside in turns, or steers it by two policies in
turns, reads what its traffic costs, and leaves it as it was.

One measurement at a time, because most costs are of the whole machine. It gives no orders: neither
the operator's journal nor the policy knows of it, so that a daemon that is killed meanwhile begins
again as before. It ends early when its client goes away, when the operator gives an order for
the NIC, when another policy comes into force, or when the NIC goes or is renamed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from pathlib import Path
from random import SystemRandom

from atfnd.daemon.in_force import InForce
from atfnd.daemon.nics import ServedNics
from atfnd.daemon.operator import OperatorCommands
from atfnd.daemon.session import NicSession
from atfnd.engine.engine import Engine
from atfnd.errors import OperatorError
from atfnd.measurement.compare import compare, pairs_of
from atfnd.measurement.policies import with_flows_of
from atfnd.measurement.schedule import LEAST_PAIRS, MOST_PAIRS, pairs_within, schedule
from atfnd.measurement.slot import Figures, figures
from atfnd.model import Measurement, MeasuringStep, Policy, SlotReading
from atfnd.observe import Observer
from atfnd.observe.nics.costs import Costs
from atfnd.policy.file.load import load
from atfnd.program.journals.operator_journal import OperatorJournal
from atfnd.serve.log.event_log import EventLog

__all__ = ["Measuring"]

_TICK_S = 1.0  # between two lines of the answer: so late it is noticed that its reader has gone
_PART = 1000  # slots of the table that are looked at before the loop has its turn


class _EndedEarlyError(Exception):
    """The reason."""


class Measuring:
    """Pauses and resumes by the operator's own commands. `put` puts a policy in force:
    OperatorError, not all of it."""

    def __init__(
        self,
        nics: ServedNics,
        operator: OperatorCommands,
        operator_journal: OperatorJournal,
        engine: Engine,
        observer: Observer,
        in_force: InForce,
        put: Callable[[Policy], None],
        log: EventLog,
    ) -> None:
        self._nics, self._operator, self._operator_journal = nics, operator, operator_journal
        self._engine, self._observer, self._in_force, self._log = engine, observer, in_force, log
        self._session: NicSession | None = None  # that is measured
        self._put = put
        self._ours = self._policy = in_force.policy  # and that of this slot
        self._other: Policy | None = None  # to compare with, instead of a pause
        self._why_ended: str | None = None
        self._ended = asyncio.Event()
        self.begins: Callable[[], None] = lambda: None  # called before anything is changed

    async def measure(
        self, nic: str, total_s: float, slot_s: float, settle_s: float, against: str | None = None
    ) -> AsyncGenerator[MeasuringStep | Measurement, None]:
        """A step each second at least, after each pair what is known by then, and at last the
        result. Of each slot the first `settle_s` are left out. With the file of another policy, the
        other slots are steered by its rules, not paused. KeyError: there is no such NIC;
        OperatorError: it cannot be measured, the file is wrong, or it ended early. Closing it ends
        it."""
        read = None if against is None else await asyncio.to_thread(_policy_of, against)
        session = self._begin(nic, total_s, slot_s, settle_s, read)
        costs: Costs | None = None
        slots: list[tuple[bool, Figures | None]] = []
        order = schedule(pairs_within(total_s, slot_s), SystemRandom())
        each = "armed and paused" if against is None else f"by the policy in force and {against}"
        what = f"{len(order) // 2} pairs of slots of {slot_s:g} s, {each}"
        self._log.add("measure", "begun", what, nic=nic)
        try:
            costs = await asyncio.to_thread(Costs, session.watch.nic)
            pids = set[int]()
            for number, armed in enumerate(order, 1):
                rest_s = (len(order) - number) * slot_s
                self._turn(session, armed=armed)
                lives, before = session.watch.lives, None
                for for_s, then_s in ((settle_s, slot_s - settle_s), (slot_s - settle_s, 0.0)):
                    async for left_s in self._ticks(session, for_s, armed=armed):
                        yield MeasuringStep(number, len(order), armed, rest_s + then_s + left_s)
                    if before is None:
                        pids |= await self._applications(nic)
                        before = await self._read(session, costs, pids)
                assert before is not None
                now = await self._read(session, costs, pids)
                self._check(session, armed=armed)
                whole = session.view.up and session.watch.lives == lives
                slots.append((armed, figures(before, now) if whole else None))
                if number % 2 == 0 and number < len(order):
                    yield compare(nic, pairs_of(slots), against)
            self._leave()
            found = compare(nic, pairs_of(slots), against)
            self._log.add("measure", "ended", found.sentence, nic=nic)
            yield found
        except _EndedEarlyError as early:
            self._end(str(early))
            what = f"the measurement of {nic} ended early: {early}"
            raise OperatorError(what, exit_code=1) from None
        finally:
            if self._session is session:
                self._end("the client that asked for it has gone")
                self._leave()
            if costs is not None:
                costs.close()

    @property
    def under_way(self) -> bool:
        """Something is being measured."""
        return self._session is not None

    def end(self, nic: str | None) -> None:
        """The operator has given an order for this NIC, or for all, and does what that asks for."""
        if self._session is not None and nic in (None, self._session.name):
            self._end("the operator gave another order")

    def stop(self) -> None:
        """The daemon stops: leave the NIC as it was."""
        if self._session is not None:
            self._end("atfnd stops")
            self._leave()

    def _begin(
        self, nic: str, total_s: float, slot_s: float, settle_s: float, other: Policy | None
    ) -> NicSession:
        session = self._nics.sessions[nic]
        _check_times(total_s, slot_s, settle_s)
        if self._session is not None:
            what = f"{self._session.name} is being measured"
            raise OperatorError(what, "one measurement at a time: wait for its end", exit_code=1)
        if session.view.paused:
            hint = f"atfnctl resume {nic}, then measure"
            raise OperatorError(f"{nic} is paused", hint, exit_code=1)
        if not session.view.armed:
            what = f"{nic} is not armed: there is nothing to compare"
            raise OperatorError(what, f"atfnctl arm {nic}, then measure", exit_code=1)
        self.begins()
        self._session, self._why_ended = session, None
        self._ended.clear()
        self._ours = self._policy = self._in_force.policy
        self._other = None if other is None else with_flows_of(self._ours, other)
        return session

    def _turn(self, session: NicSession, *, armed: bool) -> None:
        """Begin a slot."""
        try:
            if self._other is not None:
                self._use(self._ours if armed else self._other)
            elif armed and session.view.paused:
                self._operator.bring_back(session)
            elif not armed and not session.view.paused:
                done = self._operator.set_aside(session, "a measurement compares without atfnd")
                if refused := ", ".join(each.what for each in done if not each.done):
                    raise _EndedEarlyError(f"the kernel refused to undo {refused}")
        except OSError as refusal:
            raise _EndedEarlyError(f"it cannot be changed: {refusal.strerror}") from None
        self._check(session, armed=armed)

    def _use(self, policy: Policy) -> None:
        """Steer by this policy, unless it is in force."""
        if self._in_force.policy is policy:
            return
        self._policy = policy
        try:
            self._put(policy)
        except OperatorError as shortage:
            raise _EndedEarlyError(shortage.message) from None

    async def _ticks(
        self, session: NicSession, for_s: float, *, armed: bool
    ) -> AsyncGenerator[float, None]:
        """What is left of this time, now and then, until it is over."""
        until_s = time.monotonic() + for_s
        while (left_s := until_s - time.monotonic()) > 0:
            yield left_s
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), min(left_s, _TICK_S))
            self._check(session, armed=armed)

    def _check(self, session: NicSession, *, armed: bool) -> None:
        """The measurement goes on."""
        if self._why_ended is None:
            if self._nics.sessions.get(session.name) is not session:
                self._end("the interface is gone, or has another name")
            elif self._in_force.policy is not self._policy:
                self._end("another policy is in force")
            elif (session.view.armed, session.view.paused) != self._standing(armed=armed):
                self._end("it was armed or disarmed")
        if self._why_ended is not None:
            raise _EndedEarlyError(self._why_ended)

    def _standing(self, *, armed: bool) -> tuple[bool, bool]:
        """Armed, paused: as it should be in such a slot."""
        return (True, False) if self._other is not None else (armed, not armed)

    def _end(self, why: str) -> None:
        """It goes no further. The first reason counts."""
        if self._session is not None and self._why_ended is None:
            self._why_ended = why
            self._log.add("measure", "ended early", why, nic=self._session.name)
            self._ended.set()

    def _leave(self) -> None:
        """The NIC is as it was, unless an order says otherwise."""
        session, self._session = self._session, None
        other, self._other = self._other, None
        if other is not None and self._in_force.policy is other:
            with suppress(OperatorError):  # it is in the log, and done again in a second
                self._put(self._ours)
        if session is None or self._nics.sessions.get(session.name) is not session:
            return
        if session.view.paused and not self._operator_journal.paused(session.name):
            try:
                self._operator.bring_back(session)
            except OSError as refusal:  # it is armed: the next looks go on from there
                what = "not all that steering it takes could be set again"
                self._log.add("refused", what, refusal.strerror or "", nic=session.name)

    async def _applications(self, nic: str) -> set[int]:
        """The processes whose flows come in by this NIC, as far as they were seen."""
        table, found = self._engine.memory.table.slots(), set[int]()
        for at in range(0, len(table), _PART):
            some = [flow for flow in table[at : at + _PART] if flow and flow.nic == nic]
            found |= {flow.thread.pid for flow in some if flow.thread is not None}
            await asyncio.sleep(0)
        return found

    async def _read(self, session: NicSession, costs: Costs, pids: set[int]) -> SlotReading:
        watch = session.watch
        try:
            reads, addresses = self._observer.reads(session.name), watch.addresses()
            return await asyncio.to_thread(costs.read, session.view, addresses, [*pids], reads)
        except OSError as gone:
            raise _EndedEarlyError(f"it cannot be read: {gone.strerror or gone}") from None


def _policy_of(file: str) -> Policy:
    """The policy that this file says, with its policies.d. OperatorError: it is wrong."""
    return load(Path(file), trusting=False)


def _check_times(total_s: float, slot_s: float, settle_s: float) -> None:
    """OperatorError, of whatever NIC: these times do not go together."""
    if settle_s >= slot_s:
        raise OperatorError("nothing is left of a slot", "settle for less than a slot takes")
    if (pairs := pairs_within(total_s, slot_s)) < LEAST_PAIRS:
        what = f"there is time for {pairs} pairs of slots, and it takes {LEAST_PAIRS}"
        raise OperatorError(what, f"measure for {2 * LEAST_PAIRS * slot_s:g} s or longer")
    if pairs > MOST_PAIRS:
        what = f"there is time for {pairs} pairs of slots, more than {MOST_PAIRS}"
        raise OperatorError(what, "take longer slots")
