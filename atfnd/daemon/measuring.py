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
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from random import SystemRandom

from atfnd.compare.figures import Figures
from atfnd.compare.pairs import LEAST_PAIRS, MOST_PAIRS, pairs_of, pairs_within, schedule
from atfnd.compare.policies import with_flows_of
from atfnd.compare.verdict import compare
from atfnd.daemon.comparing import Comparing, EndedEarlyError
from atfnd.daemon.in_force import InForce
from atfnd.daemon.nics import ServedNics
from atfnd.daemon.operator import OperatorCommands
from atfnd.engine.engine import Engine
from atfnd.errors import OperatorError
from atfnd.model import Measurement, MeasuringStep, Policy
from atfnd.model.reason import Code
from atfnd.observe import Observer
from atfnd.policy.file.load import load
from atfnd.program.journals.operator_journal import OperatorJournal
from atfnd.serve.log.event_log import EventLog

__all__ = ["Measuring"]

_PART = 1000  # slots of the table that are looked at before the loop has its turn


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
        self._put = put
        self._slots: Comparing | None = None  # of what is measured
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
        slots = self._begin(nic, total_s, slot_s, settle_s)
        other = None if read is None else with_flows_of(slots.usual, read)
        taken: list[tuple[bool, Figures | None]] = []
        processes = partial(self._processes, nic, set[int]())
        order = schedule(pairs_within(total_s, slot_s), SystemRandom())
        each = "armed and paused" if against is None else f"by the policy in force and {against}"
        what = f"{len(order) // 2} pairs of slots of {slot_s:g} s, {each}"
        self._log.add("measure", "begun", what, nic=nic)
        try:
            for number, armed in enumerate(order, 1):
                rest_s = (len(order) - number) * slot_s
                async for said in slots.take(
                    partial(self._turn, slots, other, armed=armed),
                    settle_s, slot_s - settle_s, processes, paused=not armed and other is None,
                ):  # fmt: skip
                    if isinstance(said, float):
                        yield MeasuringStep(number, len(order), armed, rest_s + said)
                    else:
                        taken.append((armed, said.figures))
                if number % 2 == 0 and number < len(order):
                    yield compare(nic, pairs_of(taken), against)
            self._leave(slots)
            found = compare(nic, pairs_of(taken), against)
            self._log.add("measure", "ended", found.sentence, nic=nic)
            yield found
        except EndedEarlyError as early:
            slots.end(str(early))
            what = f"the measurement of {nic} ended early: {early}"
            raise OperatorError(what, exit_code=1) from None
        finally:
            if self._slots is slots:
                slots.end("the client that asked for it has gone")
                self._leave(slots)
            slots.close()

    @property
    def under_way(self) -> bool:
        """Something is being measured."""
        return self._slots is not None

    def end(self, nic: str | None) -> None:
        """The operator has given an order for this NIC, or for all, and does what that asks for."""
        if self._slots is not None and nic in (None, self._slots.session.name):
            self._slots.end("the operator gave another order")

    def stop(self) -> None:
        """The daemon stops: leave the NIC as it was."""
        if self._slots is not None:
            self._slots.end("atfnd stops")
            self._leave(self._slots)

    def _begin(self, nic: str, total_s: float, slot_s: float, settle_s: float) -> Comparing:
        session = self._nics.sessions[nic]
        _check_times(total_s, slot_s, settle_s)
        if self._slots is not None:
            what = f"{self._slots.session.name} is being measured"
            raise OperatorError(what, "one measurement at a time: wait for its end", exit_code=1)
        if session.view.paused:
            hint = f"atfnctl resume {nic}, then measure"
            raise OperatorError(f"{nic} is paused", hint, exit_code=1)
        if not session.view.armed:
            what = f"{nic} is not armed: there is nothing to compare"
            raise OperatorError(what, f"atfnctl arm {nic}, then measure", exit_code=1)
        self.begins()
        self._slots = Comparing(
            session, self._nics, self._observer, self._in_force, self._put,
            lambda why: self._log.add("measure", "ended early", why, nic=session.name),
        )  # fmt: skip
        return self._slots

    def _turn(self, slots: Comparing, other: Policy | None, *, armed: bool) -> None:
        """Begin a slot."""
        session = slots.session
        try:
            if other is not None:
                slots.use(slots.usual if armed else other)
            elif armed and session.view.paused:
                self._operator.bring_back(session)
            elif not armed and not session.view.paused:
                done = self._operator.set_aside(session, Code.MEASURED())
                if refused := ", ".join(each.what for each in done if not each.done):
                    raise EndedEarlyError(f"the kernel refused to undo {refused}")
        except OSError as refusal:
            raise EndedEarlyError(f"it cannot be changed: {refusal.strerror}") from None
        except OperatorError as shortage:
            raise EndedEarlyError(shortage.message) from None

    def _leave(self, slots: Comparing) -> None:
        """The NIC is as it was, unless an order says otherwise."""
        self._slots, session = None, slots.session
        slots.close()
        if self._nics.sessions.get(session.name) is not session:
            return
        if session.view.paused and not self._operator_journal.paused(session.name):
            try:
                self._operator.bring_back(session)
            except OSError as refusal:  # it is armed: the next looks go on from there
                what = "not all that steering it takes could be set again"
                self._log.add("refused", what, refusal.strerror or "", nic=session.name)

    async def _processes(self, nic: str, known: set[int]) -> set[int]:
        """Those known, and those whose flows come in by this NIC, as far as they were seen."""
        table = self._engine.memory.table.slots()
        for at in range(0, len(table), _PART):
            some = [flow for flow in table[at : at + _PART] if flow and flow.nic == nic]
            known.update(flow.thread.pid for flow in some if flow.thread is not None)
            await asyncio.sleep(0)
        return known


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
