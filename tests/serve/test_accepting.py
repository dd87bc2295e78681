# SPDX-License-Identifier: GPL-2.0-or-later
"""Where there is no descriptor left for a connection, none is tried for a while; then those who
waited are served."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from contextlib import ExitStack
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
        with ExitStack() as stack:
            listener = stack.enter_context(Full(socket.AF_UNIX))
            listener.bind(str(tmp_path / "socket"))
            listener.setblocking(False)
            accepting = Accepting(listener, protocol, 0)
            try:
                for _ in range(CLIENTS):
                    client = stack.enter_context(socket.socket(socket.AF_UNIX))
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
