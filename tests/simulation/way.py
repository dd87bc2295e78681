# SPDX-License-Identifier: GPL-2.0-or-later
"""The way of one socket event through the daemon, from the ring to the insert: what calls what.

`sys.setprofile` notes each call between two files of `atfnd/` while the daemon reads its ring. A
class of the simulation that stands for one of `atfnd/` counts as that one.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple
from unittest import mock

from atfnd.daemon.sockets import SocketReader
from tests.simulation.driver import Door

__all__ = ["Call", "Function", "Way", "calls", "ways"]

ROOT = f"{Path(__file__).parents[2]}/"
STANDS_FOR = {
    "tests/simulation/actuator.py": ("WorldActuator", "program/actuator.py"),
    "tests/simulation/driver.py": ("Door", "kernel/ethtool/rxnfc.py"),
    "tests/simulation/kernel.py": ("_ReportingMover", "move/mover.py"),
    "tests/simulation/machine.py": ("WorldObserver", "observe/sockets/bpf.py"),
    "tests/simulation/nic.py": ("WorldNic", "nic/ethtool/nic.py"),
}


class Function(NamedTuple):
    """`file` is below `atfnd/`."""

    file: str
    name: str

    @property
    def room(self) -> str:
        return self.file.partition("/")[0]


class Call(NamedTuple):
    by: Function
    of: Function

    def __str__(self) -> str:
        return f"{self.by.file} {self.by.name} -> {self.of.file} {self.of.name}"


class Way(NamedTuple):
    """One wake-up of the reader, up to the first insert of a filter."""

    calls: list[Call]  # from one file to another
    stack: list[Function]  # at the insert, from the reader on
    events: int  # that it decided on


def _function(code: CodeType) -> Function | None:
    """None: it is neither of `atfnd/` nor stands for a part of it."""
    path = code.co_filename
    if not path.startswith(ROOT):
        return None
    file, name = path.removeprefix(ROOT), code.co_qualname
    if file.startswith("atfnd/"):
        return Function(file.removeprefix("atfnd/"), name)
    of, stands_for = STANDS_FOR.get(file, (name, ""))
    public = name.startswith(f"{of}.") and not name.startswith(f"{of}._")  # the rest is the world
    return Function(stands_for, name) if stands_for and public else None


def _caller(frame: FrameType) -> Function | None:
    """What called it; what lies between in Python's own library counts for nothing. None: the world
    of the simulation did."""
    by = frame.f_back
    while by is not None and not by.f_code.co_filename.startswith(ROOT):
        by = by.f_back
    return None if by is None else _function(by.f_code)


class _Profile:
    """Of one wake-up."""

    def __init__(self) -> None:
        self.way = Way([], [], 0)
        self.inserted = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or self.inserted:
            return
        of = _function(frame.f_code)
        if of is None:
            return
        by = _caller(frame)
        if by is not None and by.file != of.file:
            self.way.calls.append(Call(by, of))
        if frame.f_code is SocketReader._seen.__code__:
            self.way = self.way._replace(events=self.way.events + 1)
        if frame.f_code is Door.insert.__code__:
            self.inserted = True
            self.way.stack.extend(reversed(list(_stack(frame))))


def _stack(frame: FrameType | None) -> Iterator[Function]:
    """Up to the reader."""
    while frame is not None:
        if (there := _function(frame.f_code)) is not None:
            yield there
            if there.name == "SocketReader.read":
                return
        frame = frame.f_back


@contextmanager
def _profiling(profile: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    """What the garbage collector closes meanwhile, generators of earlier tests, would seem to be
    called by what runs just then: it does not run."""
    gc.disable()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        gc.enable()


@contextmanager
def ways() -> Iterator[list[Way]]:
    """Those of the wake-ups within that wrote a filter."""
    found: list[Way] = []
    read = SocketReader.read

    def profiled(reader: SocketReader) -> None:
        profile = _Profile()
        with _profiling(profile):
            read(reader)
        if profile.inserted:
            found.append(profile.way)

    with mock.patch.object(SocketReader, "read", profiled):
        yield found


@contextmanager
def calls() -> Iterator[set[Call]]:
    """All calls from one file to another that are made within."""
    found: set[Call] = set()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        of = _function(frame.f_code) if event == "call" else None
        if of is not None and (by := _caller(frame)) is not None and by.file != of.file:
            found.add(Call(by, of))

    with _profiling(profile):
        yield found
