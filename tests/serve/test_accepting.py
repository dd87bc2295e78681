# SPDX-License-Identifier: GPL-2.0-or-later
"""Where there is no descriptor left for a connection, none is tried for a while; then those who
waited are served."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from atfnd.serve.api.door import NO_ROOM_S, Accepting

__all__: list[str] = []

CLIENTS = 2
ROUNDS = 1000  # of the loop


class Full(socket.socket):
    """Has no room at first."""

    tries = 0

    def accept(self) -> tuple[socket.socket, Any]:
        self.tries += 1
        if self.tries == 1:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


@contextmanager
def waited_for(path: Path) -> Iterator[tuple[Full, list[socket.socket]]]:
    """A listener, and clients for it."""
    with ExitStack() as stack:
        listener = stack.enter_context(Full(socket.AF_UNIX))
        listener.bind(str(path))
        listener.setblocking(False)
        clients = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(CLIENTS)]
        yield listener, clients


async def rounds(count: int) -> None:
    """So many rounds of the loop are over."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()

    def one(left: int) -> None:
        loop.call_soon(one, left - 1) if left else over.set()

    one(count)
    await over.wait()


def test_without_room_it_rests_and_then_takes_those_who_waited(tmp_path: Path) -> None:
    reported: list[Any] = []
    times_s: list[float] = []

    async def run() -> None:
        loop, refused, served = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

        def on_error(_: object, context: dict[str, Any]) -> None:
            reported.append(context["exception"].errno)
            times_s.append(loop.time())
            refused.set()

        def protocol() -> asyncio.Protocol:
            times_s.append(loop.time())
            if len(times_s) == 1 + CLIENTS:
                served.set()
            return asyncio.Protocol()

        loop.set_exception_handler(on_error)
        with waited_for(tmp_path / "socket") as (listener, clients):
            accepting = Accepting(listener, protocol, 0)
            try:
                for client in clients:
                    client.connect(str(tmp_path / "socket"))
                await asyncio.wait_for(refused.wait(), 30)
                await rounds(ROUNDS)
                assert listener.tries == 1
                await asyncio.wait_for(served.wait(), 30)
                assert listener.tries == 1 + CLIENTS
            finally:
                accepting.close()

    asyncio.run(run())
    assert reported == [errno.EMFILE]
    assert times_s[1] - times_s[0] > NO_ROOM_S / 2


def test_one_that_is_closed_while_it_rests_tries_no_more(tmp_path: Path) -> None:
    """Its descriptor may be another's by then."""

    async def run() -> int:
        loop, refused, rested = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        loop.set_exception_handler(lambda *_: refused.set())
        with waited_for(tmp_path / "socket") as (listener, [client, _]):
            accepting = Accepting(listener, asyncio.Protocol, 0)
            client.connect(str(tmp_path / "socket"))
            await asyncio.wait_for(refused.wait(), 30)
            accepting.close()
            loop.call_later(NO_ROOM_S, rested.set)
            await asyncio.wait_for(rested.wait(), 30)
            await rounds(ROUNDS)
            return listener.tries

    assert asyncio.run(run()) == 1
