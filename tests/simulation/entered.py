# SPDX-License-Identifier: GPL-2.0-or-later
"""Which functions of the engine, the executor and the journals are entered while seeds run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

__all__ = ["Function", "entered", "functions"]

ROOT = Path(__file__).parents[2] / "atfnd"
ROOMS = (
    "engine",
    "daemon/executor.py",
    "daemon/balancing.py",
    "program/balance.py",
    "program/journals",
)


class Function(NamedTuple):
    """`file` is below `atfnd/`."""

    file: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name}"


def functions() -> frozenset[Function]:
    """All that could be entered; none that only a class or a comprehension of a function is."""
    found = set[Function]()
    for room in ROOMS:
        there = ROOT / room
        for file in [there] if there.is_file() else there.rglob("*.py"):
            found.update(_within(compile(file.read_text(), str(file), "exec")))
    return frozenset(found)


def _within(code: CodeType) -> Iterator[Function]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if (function := _function(each)) is not None:
                yield function
            yield from _within(each)


def _function(code: CodeType) -> Function | None:
    """None: it is no function of these rooms that has a name."""
    file = code.co_filename.removeprefix(f"{ROOT}/")
    is_class = not code.co_flags & 0x2  # CO_NEWLOCALS: a class body has none
    if not file.startswith(ROOMS) or code.co_name.startswith("<") or is_class:
        return None
    return Function(file, code.co_firstlineno, code.co_qualname)


@contextmanager
def entered() -> Iterator[set[Function]]:
    """Those that are entered within. The set is filled at the end."""
    codes, found = set[CodeType](), set[Function]()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    sys.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(None)
        found.update(each for each in map(_function, codes) if each is not None)
