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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from random import SystemRandom
from typing import NamedTuple

from atfnd.daemon.in_force import InForce
from atfnd.daemon.nics import ServedNics
from atfnd.daemon.operator import OperatorCommands
from atfnd.daemon.session import NicSession
from atfnd.engine.engine import Engine
from atfnd.errors import OperatorError
from atfnd.measurement.guard import Guard, compared, costs
from atfnd.measurement.policies import at_rest
from atfnd.measurement.slot import traffic_cpu_per_byte
from atfnd.model import GuardState, NicGuard, Policy, SlotReading, SteeringMethod
from atfnd.observe.nics.costs import Costs
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
    """This pair says nothing: why; empty, if that says nothing of the NIC either."""


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
        in_force: InForce,
        put: Callable[[Policy], None],
        busy: Callable[[], bool],
        log: EventLog,
    ) -> None:
        self._nics, self._operator, self._engine = nics, operator, engine
        self._in_force, self._put, self._busy, self._log = in_force, put, busy, log
        self.pace = GuardPace()
        self._watched: dict[str, _Watched] = {}
        self._random = SystemRandom()
        self._at_rest: Policy | None = None  # is in force, in the place of the next
        self._steering = in_force.policy
        self._ended = asyncio.Event()

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
        self._ended.set()
        self._put_back()

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
            resting = self._at_rest is not None and watched.session is not None
            return (GuardState.WATCHING if resting else GuardState.IDLE), ""
        if watched.blind:
            return GuardState.BLIND, watched.blind
        return GuardState.WATCHING, watched.limit

    def _steers_by(self) -> Policy:
        return self._in_force.policy if self._at_rest is None else self._steering

    def _filters(self, nic: str) -> int:
        return self._engine.memory.table.filters_in(nic)

    def _steers(self, nic: str) -> bool:
        """Something could be set aside."""
        known = self._engine.memory.nics.get(nic)
        return self._filters(nic) > 0 or (known is not None and known.rfs.ours)

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

    async def _compare(self, session: NicSession, watched: _Watched) -> None:
        """One pair."""
        self._ended.clear()
        ratio, price_s, why = None, 0.0, ""
        try:
            ratio, price_s = await self._pair(session)
        except _LostError as lost:
            why = str(lost)
        except (OSError, OperatorError) as refusal:
            why = str(refusal)
        finally:
            self._put_back()
        if watched.session is not session:
            return  # an order has come
        watched.pairs += ratio is not None
        watched.lost += ratio is None
        watched.blind = why
        watched.guard = compared(watched.guard, ratio, price_s, self._now_s())

    async def _pair(self, session: NicSession) -> tuple[float, float]:
        """The CPU per byte steered to unsteered, and our own CPU time for both turns."""
        filters, per_byte = self._filters(session.name), dict[bool, float]()
        first, turning_s, steered_s = self._random.random() < 0.5, 0.0, 0.0
        table = self._engine.memory.table
        threads = [flow.thread for flow in table.steered(session.name)]
        pids = [*{thread.pid for thread in threads if thread is not None}]
        reading = await asyncio.to_thread(Costs, session.watch.nic)
        try:
            for steered in (first, not first):
                turning_s += await self._turn(session, steered=steered)
                lives, before, ran_s = (
                    session.watch.lives,
                    await self._read(session, reading, pids),
                    _ran_s(),
                )
                await self._wait(session, self.pace.slot_s)
                now = await self._read(session, reading, pids)
                steered_s += (_ran_s() - ran_s) * steered
                if session.watch.lives != lives or not session.view.up:
                    raise _LostError("the link was down, or is another one")
                self._check_filters(session.name, filters, steered=steered)
                found = traffic_cpu_per_byte(before, now)
                if not found:
                    raise _LostError("the machine does not say what CPU time a byte takes")
                per_byte[steered] = found
            turning_s += await self._turn(session, steered=True)
        finally:
            reading.close()
        usual_s = steered_s * 3 * self.pace.settle_s / self.pace.slot_s
        return per_byte[True] / per_byte[False], max(0.0, turning_s - usual_s)

    async def _turn(self, session: NicSession, *, steered: bool) -> float:
        """Steer it from now on, or do not, and wait until that has its effect. Returns our own CPU
        time meanwhile."""
        began_s = _ran_s()
        if steered:
            self._put_back()
        else:
            self._rest(session)
        await self._wait(session, self.pace.settle_s)
        return _ran_s() - began_s

    def _rest(self, session: NicSession) -> None:
        self._steering = self._in_force.policy
        alone = len(self._nics.sessions) == 1
        rule = interface_rule(self._steering.interfaces, session.view)
        self._at_rest = at_rest(self._steering, None if alone else session.name, rule)
        self._put(self._at_rest)

    def _put_back(self) -> None:
        """The policy is in force again, unless another one has come."""
        rest, self._at_rest = self._at_rest, None
        if rest is not None and self._in_force.policy is rest:
            with suppress(OperatorError):  # it is in the log, and done again in a second
                self._put(self._steering)

    async def _wait(self, session: NicSession, for_s: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), for_s)
        expected = self._at_rest is None or self._in_force.policy is self._at_rest
        here = self._nics.sessions.get(session.name) is session and session.view.armed
        if self._ended.is_set() or not expected or not here:
            raise _LostError

    def _check_filters(self, nic: str, before: int, *, steered: bool) -> None:
        now = self._filters(nic)
        if steered and now < (1 - _MOST_MISSING) * before:
            raise _LostError(f"{before - now} of {before} filters did not come back in time")
        if not steered:
            stay = (
                f"{now} of {before} filters cannot be set aside in order, and stand still instead"
            )
            self._watched[nic].limit = stay if now else ""

    async def _read(self, session: NicSession, reading: Costs, pids: Sequence[int]) -> SlotReading:
        return await asyncio.to_thread(reading.read, session.view, (), pids, None)

    async def _stop(self, session: NicSession, watched: _Watched) -> None:
        """Go back to observing, in order if that can be done soon."""
        guard, name = watched.guard, session.name
        assert guard.change is not None
        watched.stopped = (
            f"steering took {guard.change:+.1%} CPU per byte, by {guard.pairs} pairs of slots"
        )
        watched.stops += 1
        try:
            self._rest(session)
            until_s = time.monotonic() + _LEAVE_S
            while self._filters(name) and time.monotonic() < until_s:
                await self._wait(session, 0.1)
        except (_LostError, OperatorError):
            pass
        try:
            if watched.stopped and self._nics.sessions.get(name) is session:
                self._set_aside(session, watched.stopped)
        finally:
            self._put_back()

    def _set_aside(self, session: NicSession, why: str) -> None:
        self._log.add(
            "guard", f"only observed from now on; `atfnctl arm {session.name}` steers it again",
            why, nic=session.name,
        )  # fmt: skip
        try:
            done = self._operator.set_aside(session, "the guard stopped steering")
            refused = ", ".join(each.what for each in done if not each.done)
        except OSError as refusal:
            refused = refusal.strerror or str(refusal)
        if refused:
            self._log.add("refused", "not all is as it was before atfnd", refused, nic=session.name)


def _ran_s() -> float:
    """CPU time of the daemon, all threads."""
    return time.process_time()
