# SPDX-License-Identifier: GPL-2.0-or-later
"""The guard: has steering a NIC cost more CPU per byte than it saves? Then it is only observed.

Now and then each armed NIC goes unsteered for a slot: a policy is in force that leaves its flows
alone, so that they lose and get their filters in the order of their rules, and nobody is followed.
What cannot lose its filter in order keeps it, and stands still. RFS that we switched on goes off;
other settings stay. One NIC at a time, none while something is measured or recorded. No order is
recorded: a daemon that is killed meanwhile begins again as before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from random import SystemRandom
from typing import NamedTuple

from atfnd.compare.figures import traffic_cpu_per_byte
from atfnd.compare.guard import Guard, compared, costs
from atfnd.compare.pairs import schedule
from atfnd.compare.policies import at_rest
from atfnd.daemon.comparing import Comparing, EndedEarlyError, Slot
from atfnd.daemon.in_force import InForce
from atfnd.daemon.nics import ServedNics
from atfnd.daemon.operator import OperatorCommands
from atfnd.daemon.session import NicSession
from atfnd.engine.engine import Engine
from atfnd.errors import OperatorError
from atfnd.model import GuardState, NicGuard, Policy, SteeringMethod
from atfnd.model.reason import Code
from atfnd.observe import Observer
from atfnd.policy.match.match import guarded, interface_rule
from atfnd.serve.log.event_log import EventLog

__all__ = ["GuardPace", "Guarding"]

_LOOK_S = 1.0
_LEAVE_S = 10.0  # flows have so long to lose their filters in order, before they lose them anyway
_LEAST_PACKETS = 300  # a second: with fewer, steering can neither cost nor save much
_MOST_MISSING = 0.1  # of the filters may be missing in a slot with steering


class GuardPace(NamedTuple):
    """How long slots are, and how often there are any. `times` 0: never."""

    settle_s: float = 2.0  # left out of each slot
    slot_s: float = 3.0  # that is counted
    times: float = 1.0  # as often as usual

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> GuardPace:
        """ATFND_GUARD_PACE: so many times as often as usual, for tests and benches."""
        times, usual = float(environment.get("ATFND_GUARD_PACE", "1")), cls()
        if times <= 1:
            return cls(times=times)
        return cls(max(0.3, usual.settle_s / times), max(0.5, usual.slot_s / times), times)


class _LostError(Exception):
    """This pair says nothing: why."""


class _Watched:
    """What the guard knows of one NIC."""

    def __init__(self) -> None:
        self.session: NicSession | None = None  # since when it is armed
        self.guard = Guard(0.0)
        self.pairs = self.lost = self.stops = 0  # since the daemon's start
        self.packets: int | None = None  # at the last look
        self.blind = ""  # why it cannot be judged
        self.limit = ""  # what a slot without steering was not free of
        self.stopped = ""  # why it is not steered any more


class Guarding:
    """`put` puts a policy in force: OperatorError, not all of it. `busy`: not now."""

    def __init__(
        self,
        nics: ServedNics,
        operator: OperatorCommands,
        engine: Engine,
        observer: Observer,
        in_force: InForce,
        put: Callable[[Policy], None],
        busy: Callable[[], bool],
        log: EventLog,
    ) -> None:
        self._nics, self._operator, self._engine = nics, operator, engine
        self._observer, self._in_force, self._put = observer, in_force, put
        self._busy, self._log = busy, log
        self.pace = GuardPace()
        self._watched: dict[str, _Watched] = {}
        self._slots: Comparing | None = None  # under way

    async def keep(self) -> None:
        """Look at every NIC, without end."""
        while True:
            await asyncio.sleep(_LOOK_S / max(1.0, self.pace.times))
            for session in list(self._nics.sessions.values()):
                if self._nics.sessions.get(session.name) is session and not self._busy():
                    await self._look(session)

    def ordered(self, nic: str | None) -> None:
        """The operator has given an order for this NIC, or for all: it holds, and what was known
        of it does not."""
        for name, watched in self._watched.items():
            if nic in (None, name):
                watched.stopped, watched.session = "", None
        self.end()

    def end(self) -> None:
        """Whatever is under way ends at once, and the policy is in force again."""
        if self._slots is not None:
            self._slots.end("it is over")

    def shown(self, nic: str) -> NicGuard:
        """How it stands."""
        watched = self._watched.get(nic) or _Watched()
        known = watched.guard.change if watched.session or watched.stopped else None
        state, why = self._state(nic, watched)
        return NicGuard(nic, state, watched.pairs, watched.lost, watched.stops, known, why)

    def _state(self, nic: str, watched: _Watched) -> tuple[GuardState, str]:
        session = self._nics.sessions.get(nic)
        if watched.stopped and not (session is not None and session.view.armed):
            return GuardState.STOPPED, watched.stopped
        if not self.pace.times:
            return GuardState.OFF, ""
        if session is not None and not guarded(self._steers_by(), session.view):
            return GuardState.OFF, ""
        if session is None or not session.view.armed or not self._steers(nic):
            resting = self._slots is not None and watched.session is not None
            return (GuardState.WATCHING if resting else GuardState.IDLE), ""
        if watched.blind:
            return GuardState.BLIND, watched.blind
        return GuardState.WATCHING, watched.limit

    def _steers_by(self) -> Policy:
        return self._in_force.policy if self._slots is None else self._slots.beside

    def _filters(self, nic: str) -> int:
        return self._engine.memory.table.filters_in(nic)

    def _steers(self, nic: str) -> bool:
        """Something could be set aside."""
        known = self._engine.memory.nics.get(nic)
        return self._filters(nic) > 0 or (known is not None and known.has_our_rfs)

    def _now_s(self) -> float:
        """Of the guard's clock."""
        return time.monotonic() * self.pace.times

    async def _look(self, session: NicSession) -> None:
        name = session.name
        watched = self._watched.setdefault(name, _Watched())
        if watched.stopped:
            if session.view.armed:  # the interface is there again, and the policy has armed it
                self._set_aside(session, watched.stopped)
            return
        steers = session.view.armed and self._steers(name)
        if not steers or not self.pace.times or not guarded(self._in_force.policy, session.view):
            if not session.view.armed:
                watched.session = None
            watched.guard = watched.guard.put_off(self._now_s())
            return
        if watched.session is not session:
            watched.session, watched.guard = session, Guard.armed(self._now_s())
        if self._now_s() < watched.guard.due_s or not self._carries(session, watched):
            return
        watched.blind = self._unjudged(session)
        if watched.blind:
            watched.guard = compared(watched.guard, None, 0.0, self._now_s())
            return
        await self._compare(session, watched)
        if costs(watched.guard) and watched.session is session:
            await self._stop(session, watched)

    def _carries(self, session: NicSession, watched: _Watched) -> bool:
        """It carries enough since the last look for a pair to say something."""
        said = session.watch.nic.interface.read("statistics/rx_packets")
        before, watched.packets = watched.packets, None if said is None else int(said)
        if before is None or watched.packets is None:
            return False
        return watched.packets - before >= _LEAST_PACKETS * _LOOK_S / max(1.0, self.pace.times)

    def _unjudged(self, session: NicSession) -> str:
        """Why this NIC cannot be judged."""
        if session.view.method is not SteeringMethod.FILTERS:
            return "only filters can be set aside in order"
        moves = self._in_force.policy.moves_per_s * self.pace.settle_s / 2
        if (filters := self._filters(session.name)) > moves:
            return f"{filters} filters are too many to be set aside for a look"
        return ""

    @contextmanager
    def _under_way(self, session: NicSession) -> Iterator[Comparing]:
        """The policy is in force again afterwards, unless another one has come."""
        nics, observer = self._nics, self._observer
        self._slots = slots = Comparing(session, nics, observer, self._in_force, self._put)
        try:
            yield slots
        finally:
            self._slots = None
            slots.close()

    async def _compare(self, session: NicSession, watched: _Watched) -> None:
        """One pair."""
        ratio, price_s, why = None, 0.0, ""
        try:
            with self._under_way(session) as slots:
                ratio, price_s = await self._pair(slots)
        except EndedEarlyError:
            pass  # that says nothing of the NIC
        except (_LostError, OSError, OperatorError) as lost:
            why = str(lost)
        if watched.session is not session:
            return  # an order has come
        watched.pairs += ratio is not None
        watched.lost += ratio is None
        watched.blind = why
        watched.guard = compared(watched.guard, ratio, price_s, self._now_s())

    async def _pair(self, slots: Comparing) -> tuple[float, float]:
        """The CPU per byte steered to unsteered, and our own CPU time for both turns."""
        name, table, pace = slots.session.name, self._engine.memory.table, self.pace
        filters, per_byte = self._filters(name), dict[bool, float]()
        turning_s = steered_s = 0.0
        threads = [flow.thread for flow in table.steered(name)]
        pids = {thread.pid for thread in threads if thread is not None}

        async def processes() -> set[int]:
            return pids

        async def slot(count_s: float, *, steered: bool) -> Slot:
            turn = partial(slots.use, slots.usual if steered else self._rest(slots))
            said = slots.take(turn, pace.settle_s, count_s, processes)
            (taken,) = [each async for each in said if isinstance(each, Slot)]
            return taken

        for steered in schedule(1, SystemRandom()):
            taken = await slot(pace.slot_s, steered=steered)
            turning_s += taken.turned_s
            steered_s += taken.counted_s * steered
            if taken.figures is None:
                raise _LostError("the link was down, or is another one")
            self._check_filters(name, filters, steered=steered)
            found = traffic_cpu_per_byte(taken.figures)
            if not found:
                raise _LostError("the machine does not say what CPU time a byte takes")
            per_byte[steered] = found
        turning_s += (await slot(0.0, steered=True)).turned_s
        usual_s = steered_s * 3 * pace.settle_s / pace.slot_s
        return per_byte[True] / per_byte[False], max(0.0, turning_s - usual_s)

    def _rest(self, slots: Comparing) -> Policy:
        """Leaves the flows of the NIC alone."""
        alone = len(self._nics.sessions) == 1
        rule = interface_rule(slots.usual.interfaces, slots.session.view)
        return at_rest(slots.usual, None if alone else slots.session.name, rule)

    def _check_filters(self, nic: str, before: int, *, steered: bool) -> None:
        now = self._filters(nic)
        if steered and now < (1 - _MOST_MISSING) * before:
            raise _LostError(f"{before - now} of {before} filters did not come back in time")
        if not steered:
            stay = (
                f"{now} of {before} filters cannot be set aside in order, and stand still instead"
            )
            self._watched[nic].limit = stay if now else ""

    async def _stop(self, session: NicSession, watched: _Watched) -> None:
        """Go back to observing, in order if that can be done soon."""
        guard, name = watched.guard, session.name
        assert guard.change is not None
        watched.stopped = (
            f"steering took {guard.change:+.1%} CPU per byte, by {guard.pairs} pairs of slots"
        )
        watched.stops += 1
        with self._under_way(session) as slots:
            try:
                slots.use(self._rest(slots))
                async for _ in slots.wait(_LEAVE_S, 0.1):
                    if not self._filters(name):
                        break
            except (EndedEarlyError, OperatorError):
                pass
            if watched.stopped and self._nics.sessions.get(name) is session:
                self._set_aside(session, watched.stopped)

    def _set_aside(self, session: NicSession, why: str) -> None:
        self._log.add(
            "guard", f"only observed from now on; `atfnctl arm {session.name}` steers it again",
            why, nic=session.name,
        )  # fmt: skip
        try:
            done = self._operator.set_aside(session, Code.GUARD_STOPPED())
            refused = ", ".join(each.what for each in done if not each.done)
        except OSError as refusal:
            refused = refusal.strerror or str(refusal)
        if refused:
            self._log.add("refused", "not all is as it was before atfnd", refused, nic=session.name)
