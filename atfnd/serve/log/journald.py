# SPDX-License-Identifier: GPL-2.0-or-later
"""Events to systemd's journal, with a field for each part of them, by its native protocol
(https://systemd.io/JOURNAL_NATIVE_PROTOCOL): one datagram a message.

`journalctl -u atfnd ATFND_FLOW='tcp 10.0.0.2:5201 <- 10.9.0.1:40000' -o verbose` is the life of a
flow. The loop never waits for the journal: an event that the journal does not take at once counts
as lost.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from atfnd.model import Event
from atfnd.serve.log.line import line_of, priority_of

__all__ = ["Journald", "fields_of", "native"]

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
        "ATFND_POLICY": event.policy,
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
