# SPDX-License-Identifier: GPL-2.0-or-later
"""A recording: what decisions are made of, one JSON object a line, as `atfnctl record` writes it.

Each is `{"kind": {fields}}`, the first the machine. Times are CLOCK_MONOTONIC nanoseconds of the
recorded machine. Pure.

The machine names the format; another one is refused. A new field does not change it: a reader that
does not know the field skips it, and a missing field has its default. A new kind of line does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from atfnd.errors import OperatorError
from atfnd.model import (
    Born,
    FlowKey,
    Listening,
    NicView,
    Process,
    SocketSeen,
    SocketUse,
    ThreadReads,
    Topology,
)
from atfnd.replay.codec import decoded, encoded

__all__ = [
    "FORMAT",
    "Audited",
    "Line",
    "Looked",
    "RecordedBirth",
    "RecordedBirths",
    "RecordedClose",
    "RecordedListeners",
    "RecordedMachine",
    "RecordedSocket",
    "RecordingEnd",
    "Socket",
    "line_of",
    "lines_of",
]

FORMAT = 1


class RecordedMachine(NamedTuple):
    """The NICs and CPUs; again whenever they change."""

    at_ns: int
    nics: tuple[NicView, ...]
    topology: Topology
    format: int


class RecordedSocket(NamedTuple):
    """A socket was observed on a NIC."""

    at_ns: int
    nic: str
    event: SocketSeen
    rss_queue: int | None  # where RSS alone would deliver it
    process: Process = Process()  # of its thread, whatever the policy of then asked for


class RecordedClose(NamedTuple):
    """A socket has ended."""

    at_ns: int
    cookie: int


class RecordedBirth(NamedTuple):
    """A birth event, and the NICs that may receive the flow."""

    event: Born | ThreadReads
    nics: Mapping[str, int | None] = {}  # with the queue where RSS alone would deliver a connect
    process: Process = Process()  # of its thread


class RecordedBirths(NamedTuple):
    """What was read of births at one time, in its order."""

    at_ns: int
    events: tuple[RecordedBirth, ...]


class RecordedListeners(NamedTuple):
    """Every listener that receives through one NIC alone, by NIC."""

    at_ns: int
    nics: Mapping[str, tuple[Listening, ...]]


class Socket(NamedTuple):
    """A connected socket, by the NAPI that its last packet came through."""

    cookie: int
    key: FlowKey
    napi_id: int | None
    nic: str | None
    rss_queue: int | None  # where RSS alone would deliver it


class Looked(NamedTuple):
    """A look at every connected socket: what came or changed, and went, since the last line."""

    at_ns: int
    ports: bool = False  # to see which of them need a filter; else only reported
    came: tuple[Socket, ...] = ()
    gone: tuple[tuple[int, FlowKey], ...] = ()


class Audited(NamedTuple):
    """Every socket that was reported and lives."""

    at_ns: int
    uses: tuple[SocketUse, ...]


class RecordingEnd(NamedTuple):
    """The last line of a whole recording."""

    at_ns: int
    lost: int  # lines that the reader was too slow for


Line = (
    RecordedMachine
    | RecordedSocket
    | RecordedClose
    | RecordedBirths
    | RecordedListeners
    | Looked
    | Audited
    | RecordingEnd
)

_KINDS: dict[str, type[Line]] = {
    "machine": RecordedMachine,
    "seen": RecordedSocket,
    "gone": RecordedClose,
    "births": RecordedBirths,
    "listeners": RecordedListeners,
    "looked": Looked,
    "audited": Audited,
    "end": RecordingEnd,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def line_of(line: Line) -> str:
    """One line, with its end."""
    return json.dumps({_NAMES[type(line)]: encoded(line)}) + "\n"


def lines_of(text: Iterable[str], file: str) -> Iterator[Line]:
    """OperatorError with file:line: it is no recording, or a line is broken. One that ends early
    (a full disk, Ctrl-C) is read as far as it goes."""
    number = 0
    for number, words in enumerate(text, 1):
        if not words.endswith("\n"):
            break  # it was being written
        line = _line(words, f"{file}:{number}")
        if number == 1 and not isinstance(line, RecordedMachine):
            raise _none(f"{file}:1: it does not begin with the machine")
        if isinstance(line, RecordedMachine) and line.format != FORMAT:
            what = f"{file}:{number}: format {line.format}, of another version of atfnd"
            raise OperatorError(what, f"this one replays format {FORMAT}")
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
