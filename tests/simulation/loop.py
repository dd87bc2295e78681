# SPDX-License-Identifier: GPL-2.0-or-later
"""An asyncio loop in virtual time: it waits by letting the world go on.

Descriptors of the world are numbers of no file. Each has a question: is there something to read?
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar, TypeVarTuple, Unpack

from tests.simulation.world import World

__all__ = ["Descriptors", "WorldLoop"]

FIRST = 1 << 20  # no process has so many files open
_BESIDE_S = 0.005

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class Descriptors:
    """What may be readable in the world, by number. Its owner says when there is something to read,
    so that the loop need not ask at each thing that happens."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self.ready: set[int] = set()  # of the open ones: there is something to read
        self._next = FIRST

    def open(self) -> int:
        self._next += 1
        self._open.add(self._next)
        return self._next

    def readable(self, number: int, ready: bool) -> None:
        """There is something to read, or no longer. Never, if it is closed."""
        if ready and number in self._open:
            self.ready.add(number)
        else:
            self.ready.discard(number)

    def close(self, number: int) -> None:
        self._open.discard(number)
        self.ready.discard(number)

    def close_all(self) -> None:
        """The process that had them has ended."""
        self._open.clear()
        self.ready.clear()

    def still_open(self) -> set[int]:
        return {*self._open}


class _Selector(selectors.BaseSelector):
    """Real files (asyncio's own) are never readable here."""

    def __init__(self, world: World, descriptors: Descriptors) -> None:
        self._world, self._descriptors = world, descriptors
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self._keys[number] = selectors.SelectorKey(fileobj, number, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def ready(self) -> bool:
        """Something is readable that somebody waits for."""
        return not self._descriptors.ready.isdisjoint(self._keys)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Let the world go on until something is readable, or for so long."""
        if timeout is None:
            raise ValueError("nothing ends this wait")
        world, ready = self._world, self._descriptors.ready
        ours = [number for number in self._keys if number > FIRST]
        waits = partial(ready.isdisjoint, ours)
        if timeout > 0 and waits():
            world.run_while(waits, world.now_ns + max(1, round(timeout * 1e9)))
        return [(self._keys[each], selectors.EVENT_READ) for each in ours if each in ready]


class WorldLoop(asyncio.SelectorEventLoop):
    """Its clock is the world's."""

    def __init__(self, world: World, descriptors: Descriptors) -> None:
        self._world, self._waits = world, _Selector(world, descriptors)
        super().__init__(self._waits)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[_Ts]], _T], *args: *_Ts
    ) -> asyncio.Future[_T]:
        """A thread beside the loop takes a while of the world's time, whatever it takes of ours."""
        answer: asyncio.Future[_T] = self.create_future()
        self._later(_BESIDE_S, answer, partial(self._answer, answer, partial(func, *args)))
        return answer

    def _later(self, wait_s: float, answer: asyncio.Future[_T], call: Callable[[], object]) -> None:
        """Unless nobody waits for the answer any more."""
        timer = self.call_later(wait_s, call)
        answer.add_done_callback(lambda _: timer.cancel())

    def _answer(self, answer: asyncio.Future[_T], work: Callable[[], _T]) -> None:
        if answer.cancelled():
            return
        done = list[Future[_T]]()

        def run() -> None:
            with ThreadPoolExecutor(1) as pool:  # it begins when its clock is its own
                done.append(pool.submit(work))

        waited_ns = self._world.beside(run)

        def settle() -> None:
            if answer.cancelled():
                return
            if (error := done[0].exception()) is None:
                answer.set_result(done[0].result())
            else:
                answer.set_exception(error)

        self._later(waited_ns / 1e9, answer, settle) if waited_ns else settle()

    def next_ns(self) -> int | None:
        """When it may have something to do. None: it waits for what will happen in the world."""
        scheduled = self._scheduled  # type: ignore[attr-defined]
        if self._ready or self._waits.ready():  # type: ignore[attr-defined]
            return self._world.now_ns
        return round(scheduled[0].when() * 1e9) if scheduled else None

    def timers(self) -> int:
        """Calls that are to come."""
        return sum(not each.cancelled() for each in self._scheduled)  # type: ignore[attr-defined]

    def readers(self) -> set[int]:
        """Descriptors of the world that it waits for."""
        return {number for number in self._waits.get_map() if number > FIRST}

    def time(self) -> float:
        return self._world.now_ns / 1e9

    def run_until(self, until_ns: int) -> None:
        """Run what is due until then. Passes on what ends the process (`Killed`)."""
        stop = self.call_at(until_ns / 1e9, self.stop)
        try:
            self.run_forever()
        finally:
            stop.cancel()
