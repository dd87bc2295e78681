# SPDX-License-Identifier: GPL-2.0-or-later
"""The page for browsers, on a free port, over a daemon of model values."""

from __future__ import annotations

import asyncio
import errno
import http.client
import random
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from atfnd.serve.api.loopback import Page
from atfnd.serve.log.event_log import EventLog
from tests.serve.published import Published
from tests.wait import until

__all__ = ["Answer", "Paging", "ask", "free_port", "listens", "paging"]

T = TypeVar("T")


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: str


def free_port() -> int:
    """Of both loopback addresses, a moment ago. The kernel chooses none of these for a connection
    of another test (net.ipv4.ip_local_port_range)."""
    while True:
        port = random.randrange(10_000, 30_000)
        try:
            with (
                socket.create_server(("127.0.0.1", port)),
                socket.create_server(("::1", port), family=socket.AF_INET6),
            ):
                return port
        except OSError as refusal:
            if refusal.errno != errno.EADDRINUSE:
                raise


def listens(port: int, address: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((address, port), 5).close()
    except ConnectionRefusedError:
        return False
    return True


def ask(
    port: int, path: str, method: str = "GET", address: str = "127.0.0.1", **headers: str
) -> Answer:
    """One request. A header's `_` stands for `-`; `Host` is the port's own unless it is given."""
    connection = http.client.HTTPConnection(address, port, timeout=30)
    try:
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=said)
        answer = connection.getresponse()
        body = answer.read().decode()
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, body)
    finally:
        connection.close()


class Paging:
    """The page's thread, as a test sees it."""

    def __init__(self, source: Published, loop: asyncio.AbstractEventLoop) -> None:
        self.source, self.log = source, EventLog()
        self.page = Page(source, self.log)
        self._loop = loop

    def do(self, change: Callable[[], T]) -> T:
        """Run `change` on the daemon's loop."""

        async def step() -> T:
            return change()

        return asyncio.run_coroutine_threadsafe(step(), self._loop).result(10)

    def want(self, port: int | None) -> None:
        self.do(lambda: self.page.want(port))

    def said(self) -> list[str]:
        return self.do(lambda: [event.what for event in self.log.after(0, 1000)])


@contextmanager
def paging(source: Published, port: int | None) -> Iterator[Paging]:
    """Serve until the block ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="page")
    thread.start()
    try:
        made = Paging(source, loop)
        keeping = made.do(lambda: loop.create_task(made.page.keep()))
        try:
            if port is not None:
                made.want(port)
                until(lambda: listens(port), "the page is served")
            yield made
        finally:
            made.do(keeping.cancel)
            until(keeping.done, "the page has ended")
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
