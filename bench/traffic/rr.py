# SPDX-License-Identifier: GPL-2.0-or-later
"""Our own server: sends back whatever comes, over many TCP connections (tcp(7), epoll(7)). Prints a
line when it is ready, and runs until SIGTERM.

`rr ADDRESS PORT notes` prints at its end, as JSON, how long each connection took to follow when the
server had moved to another CPU: from its first request that was read there to the first one that
had been processed there, too (SO_INCOMING_CPU), in ns.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import select
import signal
import socket
import sys
import time

__all__ = ["Followed", "serve"]

SO_INCOMING_CPU = 49  # asm-generic/socket.h


class Followed:
    """The CPU that each connection was last read on, and since when its packets do not follow."""

    def __init__(self) -> None:
        self.took_ns: list[int] = []
        self._here: dict[int, int] = {}
        self._since_ns: dict[int, int] = {}
        self._cpu = ctypes.CDLL(None).sched_getcpu

    def read(self, connection: socket.socket) -> None:
        """A request was read."""
        cpu, name = self._cpu(), connection.fileno()
        if self._here.setdefault(name, cpu) != cpu:
            self._here[name] = cpu
            self._since_ns[name] = time.monotonic_ns()
        if (
            name in self._since_ns
            and connection.getsockopt(socket.SOL_SOCKET, SO_INCOMING_CPU) == cpu
        ):
            self.took_ns.append(time.monotonic_ns() - self._since_ns.pop(name))


def serve(address: str, port: int, followed: Followed | None = None) -> None:
    """Until the process ends."""
    connections: dict[int, socket.socket] = {}
    with socket.create_server((address, port), backlog=64) as listener, select.epoll() as poll:
        poll.register(listener, select.EPOLLIN)
        print("ready", flush=True)
        while True:
            for fd, _ in poll.poll():
                if fd == listener.fileno():
                    connection = listener.accept()[0]
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    connections[connection.fileno()] = connection
                    poll.register(connection, select.EPOLLIN)
                    continue
                try:
                    request = connections[fd].recv(4096)
                except ConnectionResetError:
                    request = b""
                if request:
                    if followed:
                        followed.read(connections[fd])
                    connections[fd].sendall(request)
                else:
                    connections.pop(fd).close()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    noted = Followed() if sys.argv[3:] else None
    with contextlib.suppress(SystemExit):
        serve(sys.argv[1], int(sys.argv[2]), noted)
    if noted:
        print(json.dumps(noted.took_ns), flush=True)
