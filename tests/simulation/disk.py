# SPDX-License-Identifier: GPL-2.0-or-later
"""The disk under the journals: real files, and a layer that may be full or slow, fail, or tear a
write.

It stands for the module `os` in `program.journals.record_file`. Every write, fsync and cut is a
place where the daemon may be killed; a write that is killed leaves any part of its line. fsync
itself is left out: a kill loses nothing that was written, and the power does not fail here.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from atfnd.model import Match
from atfnd.program.journals import record_file
from atfnd.program.journals.filter_journal import FilterJournal
from tests.simulation.world import World

__all__ = ["Disk", "WatchedJournal"]


class WatchedJournal(FilterJournal):
    """The real one; it says which filters it names no longer."""

    def __init__(self, path: Path) -> None:
        self.dropped: list[tuple[str, Match]] = []  # since the run last looked
        super().__init__(path)

    def _note(self, sign: str, nic: str, match: Match, *rest: Any) -> None:
        super()._note(sign, nic, match, *rest)
        if sign == "-":
            self.dropped.append((nic, match))


class Disk:
    """`full`: no line fits any more. `failing`: so many writes and syncs to come fail. `watched`
    False: the test itself reads."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.full = self.was_full = False
        self.watched = True
        self.failing = 0
        self.failed_ns: int | None = None  # when one last failed
        self.slow_ns = 0  # more for each write and sync

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, file: int, data: bytes) -> int:
        if not self.watched:
            return os.write(file, data)
        world = self._world
        if world.kill_after == 0:
            os.write(file, data[: world.random.randrange(len(data) + 1)])
        world.operation("disk write")
        world.pass_ns(2_000 + self.slow_ns)
        if self.failing:
            os.write(file, data[: world.random.randrange(len(data) + 1)])
            self._fail("write")
        if not self.full:
            return os.write(file, data)
        self.was_full = True
        room = world.random.randrange(len(data))
        world.note("disk full", "the disk is full")
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(file, data[:room])

    def fsync(self, file: int) -> None:
        del file
        if self.watched:
            self._world.operation("fsync")
            self._world.pass_ns(self.slow_ns)
            if self.failing:
                self._fail("sync")

    def _fail(self, what: str) -> None:
        self.failing -= 1
        self.failed_ns = self._world.now_ns
        self._world.note(f"disk fails {what}", f"the disk fails a {what}")
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def ftruncate(self, file: int, size: int) -> None:
        if self.watched:
            self._world.operation("disk cut")
        os.ftruncate(file, size)

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """The journals are on it."""
        with mock.patch.object(record_file, "os", self):
            yield

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The test reads and writes, and nothing happens to it."""
        before, self.watched = self.watched, False
        try:
            yield
        finally:
            self.watched = before
