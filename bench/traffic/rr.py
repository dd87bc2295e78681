# SPDX-License-Identifier: GPL-2.0-or-later
"""Our own server: sends back whatever comes, over many TCP connections (tcp(7), epoll(7)).
Prints a line when it is ready, and runs until SIGTERM."""

from __future__ import annotations

import select
import socket
import sys

from bench.traffic import BACKLOG, leave_on_sigterm

__all__ = ["serve"]


def serve(address: str, port: int) -> None:
    """Until the process ends."""
    connections: dict[int, socket.socket] = {}
    with socket.create_server((address, port), backlog=BACKLOG) as listener, select.epoll() as poll:
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
                    connections[fd].sendall(request)
                else:
                    connections.pop(fd).close()


if __name__ == "__main__":
    leave_on_sigterm()
    serve(sys.argv[1], int(sys.argv[2]))
