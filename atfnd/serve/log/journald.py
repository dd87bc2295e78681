# SPDX-License-Identifier: GPL-2.0-or-later
"""Events to systemd's journal, with a field for each part of them, by its native protocol
(https://systemd.io/JOURNAL_NATIVE_PROTOCOL): one datagram a message.

`journalctl -u atfnd ATFND_FLOW='tcp 10.0.0.2:5201 <- 10.9.0.1:40000' -o verbose` is the life of a
flow. The loop never waits for the journal: an event that the journal does not take at once counts
as lost. And an event as a line for people, with how much it matters (syslog(3)).
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from atfnd.model import Event

__all__ = ["Journald", "Stderr", "fields_of", "line_of", "native", "priority_of"]

WARNING, NOTICE, INFO = 4, 5, 6
UNWANTED = {
    "dropped",
    "journal",
    "lost",
    "lost-filter",
    "manual",
    "napis",
    "no effect",
    "not-followed",
    "not-served",
    "refused",
    "shortage",
    "reload-failed",
    "unproven",
    "violated",
}


class Stderr:
    """Lines on standard error, where no journal takes them. Events of single flows are left out: a
    thousand flows that follow their application would be a thousand lines."""

    def __init__(self) -> None:
        self.lost = 0

    def tell(self, event: Event) -> None:
        """One line, if it concerns more than one flow."""
        if event.flow is None:
            print(line_of(event), file=sys.stderr, flush=True)


def priority_of(event: Event) -> int:
    """Events of a single flow concern only a reader who looks for that flow, except unwanted
    ones."""
    if event.kind in UNWANTED:
        return WARNING
    return NOTICE if event.flow is None else INFO


def line_of(event: Event) -> str:
    """`insert: eth0: tcp ...: queue 0 -> 3 (its thread runs on CPU 3) [bulk, a.yaml:7]`."""
    about = "".join(f"{each}: " for each in (event.nic, event.flow) if each is not None)
    why = f" ({event.why})" if event.why else ""
    by = ", ".join(each for each in (event.rule, event.source) if each)
    return f"{event.kind}: {about}{event.what}{why}{f' [{by}]' if by else ''}"


SOCKET = Path("/run/systemd/journal/socket")
IDENTIFIER = "atfnd"


class Journald:
    """A socket of our own, not connected, so that a restarted journal is found."""

    def __init__(self, path: Path = SOCKET) -> None:
        self._path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self.lost = 0

    @staticmethod
    def is_ours(environ: Mapping[str, str] = os.environ) -> bool:
        """Our standard error is the journal's (systemd.exec(5), JOURNAL_STREAM)."""
        try:
            there = os.fstat(sys.stderr.fileno())
        except (OSError, ValueError):
            return False  # closed, or replaced by something that is no file
        return environ.get("JOURNAL_STREAM") == f"{there.st_dev}:{there.st_ino}"

    def tell(self, event: Event) -> None:
        """Send it, or count it as lost."""
        try:
            self._socket.sendto(native(fields_of(event)), self._path)
        except OSError:
            self.lost += 1


def fields_of(event: Event) -> dict[str, str]:
    """What is known of it."""
    known = {
        "MESSAGE": line_of(event),
        "PRIORITY": str(priority_of(event)),
        "SYSLOG_IDENTIFIER": IDENTIFIER,
        "ATFND_EVENT": event.kind,
        "ATFND_SEQ": str(event.seq),
        "ATFND_INTERFACE": event.nic,
        "ATFND_FLOW": None if event.flow is None else str(event.flow),
        "ATFND_WHAT": event.what,
        "ATFND_OLD": event.old,
        "ATFND_NEW": event.new,
        "ATFND_WHY": event.why,
        "ATFND_RULE": event.rule,
        "ATFND_SOURCE": event.source,
        "ATFND_ERRNO": event.errno,
    }
    return {name: text for name, text in known.items() if text}


def native(fields: Mapping[str, str]) -> bytes:
    """As one datagram: a value of more than one line comes with its length."""
    parts = []
    for name, text in fields.items():
        value = text.encode(errors="surrogateescape")
        if b"\n" in value:
            parts.append(name.encode() + b"\n" + len(value).to_bytes(8, "little") + value + b"\n")
        else:
            parts.append(name.encode() + b"=" + value + b"\n")
    return b"".join(parts)
