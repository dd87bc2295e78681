# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon's API over its Unix socket (docs/api.md), one connection a request."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from atfnd.errors import OperatorError
from atfnd.socket_path import of_root

__all__ = ["Client", "Row"]

TIMEOUT_S = 10.0
AGAIN_S = 0.01  # until a socket whose backlog is full is tried again
LOOK_S = 60.0  # the longest; another may be under way, and is answered to all
ORDER_S = 60.0  # irqbalance may sleep before it takes an interrupt back
PAGE = 1000
REFUSED, BAD_INPUT, UNREACHABLE = 1, 2, 3
START = "start it: systemctl start atfnd, or in the foreground: atfnd run"

Row = dict[str, Any]


class _UnixConnection(HTTPConnection):
    def __init__(self, path: str, patience_s: float) -> None:
        super().__init__("localhost", timeout=patience_s)
        self._path = path

    def connect(self) -> None:
        """Root uses its own socket, if there is one, which no other user can keep busy."""
        path = Path(self._path)
        if os.geteuid() == 0:
            with suppress(FileNotFoundError, ConnectionRefusedError, PermissionError):
                self.sock = self._connected(of_root(path))
                return
        self.sock = self._connected(path)

    def _connected(self, path: Path) -> socket.socket:
        """OSError: no daemon listens there. BlockingIOError: its backlog was full all the time."""
        tried_until_s = time.monotonic() + min(TIMEOUT_S, self.timeout or TIMEOUT_S)
        while True:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                made.settimeout(self.timeout)
                made.connect(str(path))
            except BlockingIOError:
                made.close()
                if time.monotonic() > tried_until_s:
                    raise
                time.sleep(AGAIN_S)
            except OSError:
                made.close()
                raise
            else:
                return made


class Client:
    """Every method raises OperatorError: exit 3 without a daemon, 2 for what it does not
    understand, 1 for what it refuses."""

    def __init__(self, socket_path: str) -> None:
        self._path = socket_path

    def get(self, path: str, **query: object) -> Row:
        """One object. A query value of None is left out."""
        return self._request("GET", _url(path, query))

    def look(self, path: str, **query: object) -> Row:
        """As `get`, of what the daemon looks at for some time before it answers."""
        return self._request("GET", _url(path, query), LOOK_S + TIMEOUT_S)

    def pages(
        self, path: str, rows: str, limit: int | None = None, **query: object
    ) -> Iterator[Row]:
        """Every row of a paged list, or the first `limit`, asked for a page at a time."""
        cursor: int | None = None
        left = limit
        while left is None or left > 0:
            size = PAGE if left is None else min(left, PAGE)
            page = self.get(path, limit=size, cursor=cursor, **query)
            yield from page[rows]
            left = None if left is None else left - len(page[rows])
            cursor = page["next"]
            if cursor is None:
                return

    def flows(self, **query: object) -> Iterator[Row]:
        """Every flow, as it comes: the table, and with `all` those without an entry."""
        return map(json.loads, self.lines("/v1/flows/stream", TIMEOUT_S, **query))

    def events(self, after: int = 0) -> Iterator[Row]:
        """Every retained event since number `after`, asked for a page at a time."""
        while page := self.get("/v1/events", after=after, limit=PAGE)["events"]:
            yield from page
            after = page[-1]["seq"]

    def order(self, nic: str, verb: str) -> Row:
        """`verb` is arm, disarm, pause, resume or restore."""
        return self._request("POST", f"/v1/nics/{quote(nic, safe=':')}/{verb}", ORDER_S)

    def measuring(
        self, nic: str, patience_s: float, **query: object
    ) -> Generator[bytes, None, None]:
        """A measurement, which goes on for as long as its lines are read."""
        path = f"/v1/nics/{quote(nic, safe=':')}/measure"
        return self._lines("POST", path, patience_s, query)

    def lines(self, path: str, patience_s: float, **query: object) -> Iterator[bytes]:
        """An answer of lines, as they come; none may be `patience_s` late."""
        return self._lines("GET", path, patience_s, query)

    def _lines(
        self, method: str, path: str, patience_s: float, query: Mapping[str, object]
    ) -> Generator[bytes, None, None]:
        with self._asked(method, _url(path, query), patience_s) as response:
            if response.status != 200:
                _reply(response, response.read())
            yield from response

    def post(self, path: str) -> Row:
        """Have something done."""
        return self._request("POST", path)

    def _request(self, method: str, url: str, patience_s: float = TIMEOUT_S) -> Row:
        with self._asked(method, url, patience_s) as response:
            return _reply(response, response.read())

    @contextmanager
    def _asked(
        self, method: str, url: str, patience_s: float = TIMEOUT_S
    ) -> Iterator[HTTPResponse]:
        """The answer to one request, to be read in the block."""
        connection = _UnixConnection(self._path, patience_s)
        try:
            connection.request(method, url)
            yield connection.getresponse()
        except (FileNotFoundError, ConnectionRefusedError):
            message = f"atfnd is not running: nothing listens on {self._path}"
            raise OperatorError(message, START, UNREACHABLE) from None
        except PermissionError:
            message = f"not permitted to connect to {self._path}"
            hint = "run it as root, or as a member of the socket's group"
            raise OperatorError(message, hint, UNREACHABLE) from None
        except BlockingIOError:
            message = f"too many clients wait for atfnd on {self._path}"
            raise OperatorError(message, "try again, or as root", UNREACHABLE) from None
        except (OSError, HTTPException, json.JSONDecodeError) as fault:
            reason = "no answer in time" if isinstance(fault, TimeoutError) else str(fault)
            message = f"no answer from atfnd on {self._path}: {reason}"
            raise OperatorError(message, "see `systemctl status atfnd`", UNREACHABLE) from None
        finally:
            connection.close()


def _url(path: str, query: Mapping[str, object]) -> str:
    given = {name: str(value) for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _reply(response: HTTPResponse, body: bytes) -> Row:
    if response.status == 200:
        answer: Row = json.loads(body)
        return answer
    if response.headers.get_content_type() != "application/json":
        message = f"atfnd answered {response.status} {response.reason}"
        raise OperatorError(message, "see its log: journalctl -u atfnd", REFUSED)
    error = json.loads(body)
    code = BAD_INPUT if response.status in (400, 404, 405, 413) else REFUSED
    raise OperatorError(error["error"], error["hint"], code)
