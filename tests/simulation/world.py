# SPDX-License-Identifier: GPL-2.0-or-later
"""Virtual time: one heap of what will happen, one source of chance, one record of what did.

The daemon under test is a guest in this time. Each of its calls to the kernel or the disk goes
through `World.operation`, where it may be killed, and takes time (`World.pass_ns`), in which
packets arrive, rings are polled and other people act. Nothing of the world calls the daemon.
"""

from __future__ import annotations

import heapq
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, NoReturn
from unittest import mock

__all__ = ["BEGIN_NS", "Broken", "Killed", "World"]

BEGIN_NS = 1_000_000_000
_STORY_LINES = 4000


class Killed(SystemExit):
    """The daemon was killed (SIGKILL): nothing of it runs on. No `except Exception` catches it, and
    asyncio passes it on."""


class Broken(AssertionError):
    """An invariant of the product does not hold. The first argument is its name."""


class World:
    """What all parts of the simulation share. Equal seeds and equal calls give equal runs."""

    __slots__ = (
        "_beside_ns", "_count", "_heap", "_mark", "dead", "kill_after", "late", "now_ns",
        "operations", "random", "seed", "seen", "story",
    )  # fmt: skip

    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, Random(seed)
        self.now_ns = BEGIN_NS
        self._heap: list[tuple[int, int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = self._mark = 0
        self._beside_ns: int | None = None  # so long has a thread beside the daemon's waited
        self.kill_after: int | None = None  # operations
        self.dead = False  # it was killed: whatever of it still runs changes nothing
        self.operations = 0
        self.late: dict[int, Any] = {}  # changes of rings that reordered packets, by their author
        self.seen: Counter[str] = Counter()  # coverage
        self.story: deque[tuple[int, str]] = deque(maxlen=_STORY_LINES)

    def at(self, at_ns: int, call: Callable[..., None], *arguments: Any) -> None:
        """Have something happen. What is due at the same instant happens in an order by chance."""
        self._count += 1
        tie = self.random.getrandbits(16)
        if at_ns < self.now_ns:
            at_ns = self.now_ns
        heapq.heappush(self._heap, (at_ns, tie, self._count, call, arguments))

    def after(self, ns: int, call: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now_ns + ns, call, *arguments)

    def run_until(self, until_ns: int) -> None:
        """Let everything happen that is due until then."""
        heap = self._heap
        while heap and heap[0][0] <= until_ns:
            at_ns, _, _, call, arguments = heapq.heappop(heap)
            if at_ns > self.now_ns:
                self.now_ns = at_ns
            call(*arguments)
        self.now_ns = max(self.now_ns, until_ns)

    def run_while(self, waits: Callable[[], bool], until_ns: int) -> None:
        """Let things happen, one by one, as long as it waits."""
        heap = self._heap
        while waits() and self.now_ns < until_ns:
            if not heap or heap[0][0] >= until_ns:
                self.run_until(until_ns)
                return
            at_ns, _, _, call, arguments = heapq.heappop(heap)
            if at_ns > self.now_ns:
                self.now_ns = at_ns
            call(*arguments)

    def pass_ns(self, ns: int) -> None:
        """The daemon is in the kernel for so long."""
        if self._beside_ns is not None:
            self._beside_ns += ns
            return
        self.run_until(self.now_ns + ns)

    def clock_ns(self) -> int:
        """What the daemon's thread that runs now reads."""
        return self.now_ns + (self._beside_ns or 0)

    def beside(self, work: Callable[[], object]) -> int:
        """Have a thread beside the daemon's work: what it waits for does not hold up the others.
        Returns how long it waits; what it changes, it changes at once."""
        self._beside_ns = 0
        try:
            work()
            return self._beside_ns
        finally:
            self._beside_ns = None

    def next_ns(self) -> int | None:
        """When something will happen. None: nothing will."""
        return self._heap[0][0] if self._heap else None

    def pending(self) -> Counter[str]:
        """How many things will happen, by what: a world that has come to rest has few."""
        return Counter(call.__qualname__ for _, _, _, call, _ in self._heap)

    def operation(self, what: str) -> None:
        """The daemon is about to do this, or has done it. Killed: not any more."""
        if self.dead:
            raise Killed(what)
        self.operations += 1
        self.mark(zlib.crc32(what.encode()))
        if self.kill_after is not None:
            self.kill_after -= 1
            if self.kill_after < 0:
                self.kill_after = None
                self.dead = True
                self.note("kill", f"the daemon is killed at {what}")
                raise Killed(what)

    def broken(self, what: str, how: str) -> NoReturn:
        """An invariant of this name does not hold. Broken, always."""
        self.note(f"broken {what}", f"BROKEN {what}: {how}")
        raise Broken(what, how)

    def mark(self, number: int) -> None:
        """A part of the run that has no line of its own in the story."""
        self._mark = hash((self._mark, self.now_ns, number))

    def note(self, kind: str, text: str) -> None:
        """A line of the story; its kind counts as covered."""
        self.seen[kind] += 1
        self.mark(zlib.crc32(text.encode()))
        self.story.append((self.now_ns, text))

    def digest(self) -> str:
        """Of all that happened, in order: equal for equal runs."""
        return f"{self._mark & (1 << 64) - 1:016x}"

    @contextmanager
    def clock(self) -> Iterator[None]:
        """CLOCK_MONOTONIC and sleeping are those of this world. No work costs CPU time."""

        def now() -> float:
            return self.clock_ns() / 1e9

        def slept(seconds: float) -> None:
            self.pass_ns(round(seconds * 1e9))

        def worked() -> float:  # quicker than a mock
            return 0.0

        with (
            mock.patch.object(time, "monotonic_ns", self.clock_ns),
            mock.patch.object(time, "monotonic", now),
            mock.patch.object(time, "sleep", slept),
            mock.patch.object(time, "thread_time", worked),
        ):
            yield
