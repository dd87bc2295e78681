# SPDX-License-Identifier: GPL-2.0-or-later
"""Tells the engine which flows are forwarded and translated, which of them carry most, and when
they end.

Conntrack may have millions of connections: it is read on the loop a datagram at a time, with a rest
after each, so that reading costs a bounded share of a core however many there are. What a flow
carries is known from two such readings. Those that are steered are looked up one by one, and more
often.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from heapq import nlargest
from typing import NamedTuple

from atfnd.daemon.chores import Pace, Shortage
from atfnd.daemon.executor import Executor
from atfnd.daemon.in_force import InForce
from atfnd.daemon.session import Sessions
from atfnd.engine.engine import Engine
from atfnd.engine.event import TranslatedLooked
from atfnd.model import FlowKey, TranslatedFlow, Translation
from atfnd.observe.nics.translations import NamespaceTranslations
from atfnd.serve.log.event_log import EventLog

__all__ = ["Carried", "Translating", "tracked"]

_SHARES = 10  # of a chore's share of a core, for reading all
_LOOKS = 5  # from the beginning of one reading of all to the next, or more
_LEAST_BYTES = 1_000_000  # less is no elephant
_REMEMBERED = 1 << 16  # of them, from one reading to the next
_FOUND = 256  # that the engine may choose from
_NO_CONNTRACK = {
    errno.ENOENT, errno.EINVAL, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, errno.EPERM,
}  # fmt: skip
_UNCOUNTED = "conntrack counts no bytes (sysctl net.netfilter.nf_conntrack_acct=1)"

_Netns = str | None


class Carried(NamedTuple):
    """By a flow, until then."""

    bytes: int
    at_ns: int

    def since(self, before: Carried | None) -> float | None:
        """Bytes a second. None: not known."""
        if before is None or before.at_ns >= self.at_ns or before.bytes > self.bytes:
            return None
        return (self.bytes - before.bytes) * 1e9 / (self.at_ns - before.at_ns)

    def smoothed(self, before: Carried | None, rate: float | None) -> float | None:
        """As `since`; an earlier rate counts as much."""
        now = self.since(before)
        return now if now is None or rate is None else (now + rate) / 2


class Translating:
    """Reads conntrack only while the policy has filters for translated flows, or some have one."""

    def __init__(
        self,
        engine: Engine,
        executor: Executor,
        sessions: Sessions,
        in_force: InForce,
        log: EventLog,
        shortage: Shortage,
    ) -> None:
        self._engine, self._executor, self._sessions = engine, executor, sessions
        self._in_force, self._log, self._shortage = in_force, log, shortage
        self._pace = Pace()
        self._before: dict[tuple[_Netns, FlowKey], Carried] = {}  # at the last reading of all
        self._steered: dict[int, tuple[Carried, float | None]] = {}  # by cookie
        self._found: list[tuple[_Netns, TranslatedFlow, float]] = []
        self._reading: asyncio.Task[None] | None = None
        self._looks = 0  # until all is read again
        self._said: dict[_Netns, str] = {}

    async def keep(self, pace: Pace) -> None:
        """Without end."""
        self._pace = pace
        try:
            while True:
                began_s = time.thread_time()
                await self.look()
                cost_s = time.thread_time() - began_s  # and that of what ran in between
                wait_s = max(pace.every_s, cost_s / pace.share)
                await asyncio.sleep(min(wait_s, pace.at_least_every_s))
        finally:
            if self._reading is not None:
                self._reading.cancel()

    async def look(self) -> None:
        """Once; reading all goes on afterwards."""
        if self._in_force.policy.translates():
            self._read_on()
        else:
            self._before = {}
        known = self._engine.translated()
        if known or self._found:
            now = await self._looked_up(known)
            found, self._found = self._found, []
            self._executor.take(TranslatedLooked(now, await self._located(found)))

    def _read_on(self) -> None:
        self._looks -= 1
        if self._looks > 0 or (self._reading is not None and not self._reading.done()):
            return
        self._looks = _LOOKS
        if self._reading is not None:
            self._reading.result()  # a bug ends the daemon
        self._reading = asyncio.ensure_future(self._read_all())

    async def _read_all(self) -> None:
        """What carries most in every namespace, by what it carried at the last reading."""
        before, self._before = self._before, {}
        found: list[tuple[_Netns, TranslatedFlow, float]] = []
        for netns in {session.watch.nic.netns for session in self._sessions.values()}:
            uncounted = counted = 0
            with self._refusable(netns), closing(NamespaceTranslations(netns)) as translations:
                for some in translations.read(_LEAST_BYTES):
                    began_s, now_ns = time.thread_time(), time.monotonic_ns()
                    for flow in some:
                        if flow.bytes is None:
                            uncounted += 1
                            continue
                        counted += 1
                        key, now = (netns, flow.original), Carried(flow.bytes, now_ns)
                        rate = now.since(before.get(key))
                        if len(self._before) < _REMEMBERED:
                            self._before[key] = now
                        if rate:
                            found.append((netns, flow, rate))
                    found = nlargest(_FOUND, found, key=lambda each: each[2])
                    await self._rest(time.thread_time() - began_s)
                self._say(netns, "" if counted or not uncounted else _UNCOUNTED)
        self._found = found

    async def _rest(self, cost_s: float) -> None:
        """After work that took so long; and while the daemon is short of CPU time."""
        await asyncio.sleep(cost_s / (self._pace.share * _SHARES))
        while self._engine.memory.cpu.over:
            await asyncio.sleep(1)

    async def _looked_up(
        self, known: Mapping[int, TranslatedFlow]
    ) -> dict[int, Translation | None]:
        """Those that are steered, as they are now. Of which it is not known, nothing is said."""
        looked: dict[int, Translation | None] = {}
        before, self._steered = self._steered, {}
        for netns, cookies in self._by_namespace(known).items():
            with self._refusable(netns), closing(NamespaceTranslations(netns)) as translations:
                for cookie in cookies:
                    now = translations.find(known[cookie].original)
                    if now is None or now[:2] != known[cookie][:2]:
                        looked[cookie] = None
                        continue
                    rate = None
                    if now.bytes is not None:
                        counted = Carried(now.bytes, time.monotonic_ns())
                        rate = counted.smoothed(*before.get(cookie, (None, None)))
                        self._steered[cookie] = counted, rate
                    looked[cookie] = self._where(netns, translations, now, rate)
                    await asyncio.sleep(0)
        return looked

    def _by_namespace(self, known: Mapping[int, TranslatedFlow]) -> dict[_Netns, list[int]]:
        found: dict[_Netns, list[int]] = {}
        for cookie in known:
            for flow in self._engine.memory.table.of_cookie(cookie)[:1]:
                if (session := self._sessions.get(flow.nic)) is not None:
                    found.setdefault(session.watch.nic.netns, []).append(cookie)
        return found

    async def _located(
        self, found: Sequence[tuple[_Netns, TranslatedFlow, float]]
    ) -> list[Translation]:
        located = []
        for netns in {netns for netns, _, _ in found}:
            with self._refusable(netns), closing(NamespaceTranslations(netns)) as translations:
                for flow, rate in [(flow, rate) for of, flow, rate in found if of == netns]:
                    located.append(self._where(netns, translations, flow, rate))
                    await asyncio.sleep(0)
        return located

    def _where(
        self, netns: _Netns, translations: NamespaceTranslations, flow: TranslatedFlow,
        rate: float | None,
    ) -> Translation:  # fmt: skip
        nics = {
            session.view.ifindex: name
            for name, session in self._sessions.items()
            if session.watch.nic.netns == netns
        }
        came = [translations.ingress(key) for key in (flow.original, flow.reply)]
        ingress, egress = (None if each is None else nics.get(each) for each in came)
        return Translation(flow, ingress, egress, rate)

    @contextmanager
    def _refusable(self, netns: _Netns) -> Iterator[None]:
        """A block that ends where the kernel does not say."""
        try:
            yield
        except OSError as error:
            if not self._refused(netns, error):
                raise

    def _refused(self, netns: _Netns, error: OSError) -> bool:
        if self._shortage.take(error):
            return True
        if error.errno not in _NO_CONNTRACK:
            return False
        self._say(netns, error.strerror or str(error))
        return True

    def _say(self, netns: _Netns, why: str) -> None:
        """Why translated flows get no filters, once."""
        if why and self._said.get(netns) != why:
            self._log.add("translated", "translated flows are not steered", why)
        self._said[netns] = why


def tracked(netns: str | None, keys: Iterable[FlowKey]) -> tuple[TranslatedFlow, ...]:
    """The translated flows that have one of these tuples."""
    found: dict[FlowKey, TranslatedFlow] = {}
    with suppress(OSError), closing(NamespaceTranslations(netns)) as translations:
        for key in keys:
            if (flow := translations.find(key)) is not None:
                found[flow.original] = flow
    return tuple(found.values())
