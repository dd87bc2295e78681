# SPDX-License-Identifier: GPL-2.0-or-later
"""Counts what the machine forwards, while somebody wants to know it. Writes nothing to a NIC."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from atfnd.daemon.session import Sessions
from atfnd.diagnose.gain import Parts
from atfnd.diagnose.pairs import Counted, Tally, not_counted, of_nic, paired
from atfnd.engine.engine import Engine
from atfnd.model import Distance, ForwardedTotals, NicView, Pairs
from atfnd.observe.machine.topology import CpuWatch
from atfnd.observe.nics.forwarded import ForwardedPackets, interfaces, namespace

__all__ = ["ForwardedCounts", "Pairing"]

EVERY_S = 2.0  # between two matrices
RESTS_S = 20.0  # a count that was refused, or that found everything in its place
JUST_BEGUN = f"the count has just begun: ask again in {EVERY_S:.0f} s"

T = TypeVar("T")


class ForwardedCounts:
    """One count for all who want it. The program is loaded, read and detached on a thread of its
    own: each takes longer than the event loop may wait."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "forwarded")
        self._counter: ForwardedPackets | None = None  # only that thread uses it
        self._until_s: dict[object, float] = {}  # by who wants it (CLOCK_MONOTONIC)
        self._changed = asyncio.Event()

    def want(self, who: object, seconds: float = math.inf) -> None:
        """For so long from now, or until `release`."""
        self._until_s[who] = time.monotonic() + seconds
        self._changed.set()

    def release(self, who: object) -> None:
        self._until_s.pop(who, None)
        self._changed.set()

    def wanted(self) -> bool:
        now_s = time.monotonic()
        self._until_s = {who: until for who, until in self._until_s.items() if until > now_s}
        return bool(self._until_s)

    async def change(self, seconds: float | None) -> None:
        """Returns when somebody wants it or releases it, or after so many seconds."""
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    async def read(self) -> Tally:
        """What was counted until now, by a count that begins at the latest now. OSError: the kernel
        refuses the program."""
        return await self._on_thread(self._read)

    async def detach(self) -> None:
        """Nothing is left in the kernel; the next `read` begins another count."""
        await self._on_thread(self._detach)

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _read(self) -> Tally:
        if self._counter is None:
            self._counter = ForwardedPackets()
        return Tally.of(time.monotonic(), self._counter.missed(), self._counter.read())

    def _detach(self) -> None:
        if self._counter is not None:
            self._counter.close()
            self._counter = None


class Pairing:
    """What is forwarded: on request, and all the time while somebody wants it."""

    def __init__(self, sessions: Sessions, cpus: CpuWatch, engine: Engine) -> None:
        self._sessions, self._cpus, self._engine = sessions, cpus, engine
        self._counts = ForwardedCounts()
        self.want, self.release = self._counts.want, self._counts.release
        self._latest: Pairs | None = None
        self._totals: ForwardedTotals | None = None
        self._ended = asyncio.Event()

    def latest(self, nic: str | None = None) -> Pairs:
        """Of the last EVERY_S, to or from this interface or all. It is known from the second
        EVERY_S on for which it is wanted."""
        return self._explained(of_nic(self._latest or not_counted(JUST_BEGUN), nic))

    def counted(self) -> Pairs | None:
        """The last count of all, the same object until there is another; None: there is none."""
        return self._latest

    def totals(self) -> ForwardedTotals | None:
        """Since it is wanted; None: it is not."""
        return self._totals

    async def pairs(self, nic: str | None, seconds: float) -> Pairs:
        """As `serve.Source.pairs`."""
        asker = object()
        self._counts.want(asker)
        try:
            before = await self._counts.read()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._ended.wait()
                return not_counted("the daemon ends")
            counted = (await self._counts.read()).since(before)
        except OSError as refusal:
            return _refused(refusal)
        finally:
            self._counts.release(asker)
        (found,) = await self._paired(counted)
        return self._explained(of_nic(found, nic))

    async def keep(self) -> None:
        """Counts while it is wanted; detaches when it is not, and at the end."""
        try:
            while True:
                while not self._counts.wanted():
                    await self._counts.change(None)
                await self._while_wanted()
                self._latest = self._totals = None
                await self._counts.detach()
        finally:
            await self._counts.detach()

    def close(self) -> None:
        """A request that waits for its count is answered now."""
        self._ended.set()

    async def _while_wanted(self) -> None:
        first: Tally | None = None
        before: Tally | None = None
        due_s, by_distance = time.monotonic(), Counter[Distance | None]()
        while self._counts.wanted():
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + EVERY_S
                try:
                    now = await self._counts.read()
                except OSError as refusal:
                    self._latest = _refused(refusal)
                    due_s = time.monotonic() + RESTS_S
                    continue
                if first is not None and before is not None:
                    latest, whole = await self._paired(now.since(before), now.since(first))
                    for each in latest.pairs:
                        by_distance[each.distance] += each.packets
                    self._latest = latest
                    self._totals = ForwardedTotals(whole.pairs, dict(by_distance), whole.missed)
                first, before = first or now, now
            await self._counts.change(max(0.0, due_s - time.monotonic()))

    def _explained(self, found: Pairs) -> Pairs:
        """With the rules that place what is forwarded."""
        pairs = []
        for pair in found.pairs:
            said = (self._engine.why_forwarded(each, pair.egress) for each in pair.came_by)
            rule, why = next(filter(None, said), (None, None))
            pairs.append(replace(pair, rule=rule, why=None if why is None else str(why)))
        return replace(found, pairs=tuple(pairs))

    async def _paired(self, *counted: Counted) -> list[Pairs]:
        views = [session.view for session in self._sessions.values()]
        parts = Parts(self._cpus.known())
        return await asyncio.to_thread(_paired, counted, views, parts)


def _paired(counted: Iterable[Counted], views: Iterable[NicView], parts: Parts) -> list[Pairs]:
    """On a thread: there may be thousands of pairs, and many interfaces to ask rtnetlink for."""
    known = interfaces({None, *(view.netns for view in views)})
    nics: dict[tuple[int, int], NicView] = {}
    for view in views:
        with suppress(FileNotFoundError):  # it has just gone
            nics[namespace(view.netns), view.ifindex] = view
    names = {**known.names, **{at: view.name for at, view in nics.items()}}
    return [paired(each, names, known.below, nics, parts, known.namespaces) for each in counted]


def _refused(refusal: OSError) -> Pairs:
    return not_counted(f"the kernel refuses the program: {refusal.strerror}")
