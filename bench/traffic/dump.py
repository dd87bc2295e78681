# SPDX-License-Identifier: GPL-2.0-or-later
"""A client of the API that asks for all flows, again and again, without a pause: `stream` takes the
stream of them, `pages` walks the pages. Prints how many it got at SIGTERM."""

from __future__ import annotations

import contextlib
import re
import socket
import sys
from http.client import HTTPConnection

from bench.traffic import leave_on_sigterm

__all__ = ["dump"]

NEXT = re.compile(rb'"next": ([0-9]+)')
CHUNK = 1 << 16


class _Client(HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("atfnd")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def dump(path: str, *, pages: bool) -> None:
    """Until SIGTERM."""
    client, lines, cursor = _Client(path), 0, b"0"
    with contextlib.suppress(SystemExit):
        print("ready", flush=True)
        while True:
            where = f"?limit=1000&cursor={cursor.decode()}" if pages else "/stream"
            client.request("GET", f"/v1/flows{where}")
            answer, last = client.getresponse(), b""
            while chunk := answer.read1(CHUNK):
                lines += chunk.count(b"\n")
                last = (last + chunk)[-64:]
            more = NEXT.search(last) if pages else None
            cursor = b"0" if more is None else more[1]
    print(lines, flush=True)


if __name__ == "__main__":
    leave_on_sigterm()
    dump(sys.argv[2], pages=sys.argv[1] == "pages")
