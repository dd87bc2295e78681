# SPDX-License-Identifier: GPL-2.0-or-later
"""Takes connections of a listening socket: one in each round of the loop, and a limited number in a
second. A client that connects again and again waits in the kernel, and costs us nothing."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable

__all__ = ["Accepting"]

BACKLOG = 100
AT_ONCE = 64  # connections, after a rest
NO_ROOM_S = 1.0  # out of descriptors or memory: wait before the next try


class Accepting:
    """Listens until `close`, which leaves the socket open. `every_s`: between two connections, on
    average; 0: no limit."""

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        every_s: float,
    ) -> None:
        self._listener, self._protocol, self._every_s = listener, protocol, every_s
        self._loop = asyncio.get_running_loop()
        self._begun: set[asyncio.Task[object]] = set()
        self._paid_s = -math.inf  # until then, the connections taken are paid for
        self._waiting: asyncio.TimerHandle | None = None
        listener.listen(BACKLOG)
        self._loop.add_reader(listener.fileno(), self._take)

    def close(self) -> None:
        self._loop.remove_reader(self._listener.fileno())
        if self._waiting is not None:
            self._waiting.cancel()
        for each in self._begun:
            each.cancel()

    def _take(self) -> None:
        try:
            taken, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as refusal:
            context = {"message": "no connections are accepted for a while", "exception": refusal}
            self._loop.call_exception_handler(context)
            self._rest(NO_ROOM_S)
            return
        taken.setblocking(False)
        task = self._loop.create_task(self._loop.connect_accepted_socket(self._protocol, taken))
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        self._pay()

    def _pay(self) -> None:
        """A leaky bucket: connections beyond AT_ONCE wait for their time."""
        now_s = self._loop.time()
        rested_s = now_s - (AT_ONCE - 1) * self._every_s
        self._paid_s = max(self._paid_s, rested_s) + self._every_s
        if self._paid_s > now_s:
            self._rest(self._paid_s - now_s)

    def _rest(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._waiting = self._loop.call_later(seconds, self._again)

    def _again(self) -> None:
        self._waiting = None
        self._loop.add_reader(self._listener.fileno(), self._take)
