# SPDX-License-Identifier: GPL-2.0-or-later
"""The page for browsers (page/), on a TCP port of the loopback addresses, where the policy has one.

Every local user may connect, and any site can make a browser send requests here. So we answer only
what is in READ, under a loopback name, to the page itself. No request changes anything.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from aiohttp import web

from atfnd.serve import Source
from atfnd.serve.api.answers import error
from atfnd.serve.api.door import Accepting, Door
from atfnd.serve.api.flows import Flows
from atfnd.serve.api.pairs import PairRoutes
from atfnd.serve.api.requests import (
    BODY_BYTES,
    Pace,
    answer_errors,
    prepared,
    read_body,
    serving,
)
from atfnd.serve.api.route import Handler, query_of
from atfnd.serve.api.routes import Api
from atfnd.serve.log.event_log import EventLog

__all__ = ["Page"]

ADDRESSES = (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")
NO_IPV6 = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}
AGAIN_S = 10.0  # until a port that was taken is tried again
CLIENTS = 16  # connections at once
# Between two requests, and two connections, of all clients together: local users must not keep the
# daemon busy. CPUs are read from sysfs each time.
SOON_S = 0.02
EVERY_S = {"/v1/topology": 1.0}
READ = (
    "/v1/status", "/v1/history", "/v1/queues", "/v1/topology", "/v1/cpu-time", "/v1/flows",
    "/v1/flows/stream", "/v1/pairs/latest", "/v1/doctor/latest",
)  # fmt: skip
METHODS = "GET", "HEAD"
OUR_NAME = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.ASCII | re.IGNORECASE)
ITS_OWN = {"same-origin", "none"}  # Sec-Fetch-Site: by the page, or typed by its user
FILES = Path(__file__).parent.with_name("page")
KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Page:
    """Listens where it is wanted, for as long as `keep` runs."""

    def __init__(self, source: Source, log: EventLog) -> None:
        self.turn = asyncio.Lock()  # of long answers, the API's and ours
        self._source, self._log = source, log
        self._wanted: int | None = None
        self._port: int | None = None  # where we listen
        self._changed = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._listening: list[tuple[socket.socket, Accepting]] = []
        self._said = ""

    def want(self, port: int | None) -> None:
        """Listen on this port from now on; None: on none."""
        self._wanted = port
        self._changed.set()

    async def keep(self) -> None:
        """Never returns. If another process has the port, it is tried again: steering does not
        depend on a page that any user could block."""
        try:
            while True:
                self._changed.clear()
                if self._port != self._wanted:
                    await self._close()
                    await self._open()
                missing = self._port != self._wanted
                with suppress(TimeoutError):
                    async with asyncio.timeout(AGAIN_S if missing else None):
                        await self._changed.wait()
        finally:
            await self._close()

    async def _open(self) -> None:
        port, self._port = self._wanted, None
        if port is None:
            self._said = ""
            return
        try:
            app, bound = _application(self._source), _bound(port)
        except OSError as refusal:
            why = f"{refusal.strerror}; tried again every {AGAIN_S:.0f} s"
            self._say("not-served", f"the page is not served on port {port}", why)
            return
        self._runner = prepared(app, self.turn, "/ is the page")
        door = Door(await serving(self._runner, _paced()), CLIENTS)
        for each in bound:
            self._listening.append((each, Accepting(each, door, SOON_S)))
        self._port = port
        self._say("page", f"served at http://localhost:{port}/", "any local user may read it")

    async def _close(self) -> None:
        listening, runner = self._listening, self._runner
        self._port, self._listening, self._runner = None, [], None
        for bound, accepting in listening:
            accepting.close()
            bound.close()
        if runner is not None:
            await runner.cleanup()

    def _say(self, kind: str, what: str, why: str) -> None:
        """Log it once, however often it is tried."""
        if what != self._said:
            self._log.add(kind, what, why)
        self._said = what


def _bound(port: int) -> list[socket.socket]:
    """Sockets that listen on each loopback address there is: no other process may answer under our
    name. OSError: one of them is taken."""
    bound: list[socket.socket] = []
    try:
        for family, address in ADDRESSES:
            try:
                made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
                bound.append(made)
                made.setblocking(False)
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                made.bind((address, port))
                made.listen()
            except OSError as refusal:
                if family == socket.AF_INET or refusal.errno not in NO_IPV6:
                    raise
                if len(bound) == len(ADDRESSES):
                    bound.pop().close()
    except OSError:
        for each in bound:
            each.close()
        raise
    return bound


def _application(source: Source) -> web.Application:
    """The page's files and what it reads."""
    app = web.Application(
        middlewares=[_guard, answer_errors, read_body, answer_errors],
        client_max_size=BODY_BYTES,
    )
    app.on_response_prepare.append(_add_headers)
    for resources in (Api, Flows, PairRoutes):
        routes = resources(source).routes()
        app.add_routes(route.served() for route in routes if route.path in READ)
    for file in sorted(FILES.iterdir()):
        app.add_routes([_file(file)])
    return app


def _file(path: Path) -> web.RouteDef:
    """One file as it was when we began to listen."""
    body, kind = path.read_bytes(), KINDS[path.suffix]

    async def answer(request: web.Request) -> web.StreamResponse:
        query_of(request)
        return web.Response(body=body, content_type=kind, charset="utf-8")

    return web.get("/" if path.name == "index.html" else f"/{path.name}", answer)


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    del request
    response.headers.update(HEADERS)


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A browser that was led here by another name (DNS rebinding) or by another site, or that asks
    for a change, gets nothing."""
    if request.method not in METHODS:
        answer = error(405, f"this page does not take {request.method}", "use GET, HEAD")
        answer.headers["Allow"] = ", ".join(METHODS)
        answer.force_close()  # its body is not read
        return answer
    names = request.headers.getall("Host", [])
    if len(names) != 1 or not OUR_NAME.fullmatch(names[0]):
        return error(421, "this page is not of that host", "ask for it as http://localhost:PORT/")
    if request.path != "/" and request.headers.get("Sec-Fetch-Site", "none") not in ITS_OWN:
        return error(403, "only the page itself may ask for that", "open / in a tab of its own")
    return await handler(request)


def _paced() -> Pace:
    """So many requests a second, all clients together; one more waits, whatever its answer."""
    turns: defaultdict[float, asyncio.Lock] = defaultdict(asyncio.Lock)

    @asynccontextmanager
    async def pace(request: web.BaseRequest) -> AsyncIterator[None]:
        every_s = EVERY_S.get(request.path, SOON_S)
        async with turns[every_s]:
            await asyncio.sleep(every_s)
        yield

    return pace
