# SPDX-License-Identifier: GPL-2.0-or-later
"""A recording: what decisions are made of, one JSON object a line, as `atfnctl record` writes it.

Each is `{"kind": {fields}}`, the first the machine. Times are CLOCK_MONOTONIC nanoseconds of the
recorded machine. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from atfnd.errors import OperatorError
from atfnd.model import NicView, Process, SocketSeen, SocketUse, Topology
from atfnd.replay.codec import decoded, encoded

__all__ = ["Audited", "End", "Gone", "Line", "Machine", "Seen", "line_of", "lines_of"]


class Machine(NamedTuple):
    """The NICs and CPUs; again whenever they are otherwise."""

    at_ns: int
    nics: tuple[NicView, ...]
    topology: Topology


class Seen(NamedTuple):
    """A socket was observed on a NIC."""

    at_ns: int
    nic: str
    event: SocketSeen
    rss_queue: int | None  # where RSS alone would deliver it
    process: Process = Process()  # of its thread, whatever the policy of then asked for


class Gone(NamedTuple):
    """A socket has ended."""

    at_ns: int
    cookie: int


class Audited(NamedTuple):
    """Every socket that was reported and lives."""

    at_ns: int
    uses: tuple[SocketUse, ...]


class End(NamedTuple):
    """The last line of a whole recording."""

    at_ns: int
    lost: int  # lines that the reader was too slow for


Line = Machine | Seen | Gone | Audited | End
_KINDS = {kind.__name__.lower(): kind for kind in (Machine, Seen, Gone, Audited, End)}


def line_of(line: Line) -> str:
    """One line, with its end."""
    return json.dumps({type(line).__name__.lower(): encoded(line)}) + "\n"


def lines_of(text: Iterable[str], file: str) -> Iterator[Line]:
    """OperatorError with file:line: it is no recording, or a line is broken. One that ends early
    (a full disk, Ctrl-C) is read as far as it goes."""
    number = 0
    for number, words in enumerate(text, 1):
        if not words.endswith("\n"):
            break  # it was being written
        line = _line(words, f"{file}:{number}")
        if number == 1 and not isinstance(line, Machine):
            raise _none(f"{file}:1: it does not begin with the machine")
        yield line
    if number == 0:
        raise _none(f"{file}: it is empty")


def _line(words: str, place: str) -> Line:
    try:
        ((kind, fields),) = json.loads(words).items()
        line: Line = decoded(_KINDS[kind], fields)
    except (ValueError, AttributeError, KeyError, RecursionError) as fault:
        raise _none(f"{place}: {fault}") from None
    return line


def _none(what: str) -> OperatorError:
    return OperatorError(f"no recording: {what}", "atfnctl record FILE writes one")
