# SPDX-License-Identifier: GPL-2.0-or-later
"""Many TCP streams from one process to another (tcp(7), epoll(7)): `receive` or `send`.

iperf3 3.12 takes 128 streams a process; the paper's counts go to 2000. `send` connects and then
keeps every socket full, or paces each at `--rate` bytes/s (SO_MAX_PACING_RATE, socket(7): TCP paces
itself, include/net/sock.h SK_PACING_NEEDED). Both print one line when ready and run until SIGTERM;
`receive` then prints the bytes it took as JSON.
"""

from __future__ import annotations

import argparse
import json
import select
import socket

from bench.traffic import BACKLOG, leave_on_sigterm

__all__ = ["receive", "send"]

READ_BYTES = 1 << 18
WRITE_BYTES = 1 << 14
SO_MAX_PACING_RATE = 47  # asm-generic/socket.h


def receive(address: str, port: int) -> None:
    """Accept every connection and discard what comes."""
    connections: dict[int, socket.socket] = {}
    buffer, taken = bytearray(READ_BYTES), 0
    with socket.create_server((address, port), backlog=BACKLOG) as listener, select.epoll() as poll:
        listener.setblocking(False)
        poll.register(listener, select.EPOLLIN)
        print("ready", flush=True)
        try:
            while True:
                for fd, _ in poll.poll():
                    if fd == listener.fileno():
                        connection = listener.accept()[0]
                        connection.setblocking(False)
                        connections[connection.fileno()] = connection
                        poll.register(connection, select.EPOLLIN)
                        continue
                    try:
                        count = connections[fd].recv_into(buffer)
                    except BlockingIOError:
                        continue
                    except ConnectionResetError:
                        count = 0
                    taken += count
                    if not count:
                        connections.pop(fd).close()
        finally:
            print(json.dumps({"bytes": taken, "connections": len(connections)}), flush=True)


def send(address: str, port: int, streams: int, rate: int | None) -> None:
    """Keep `streams` connections full, each paced at `rate` bytes/s if there is one."""
    payload = bytes(WRITE_BYTES)
    connections: dict[int, socket.socket] = {}
    with select.epoll() as poll:
        for _ in range(streams):
            connection = socket.create_connection((address, port), timeout=20)
            if rate:
                connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)
            connection.setblocking(False)
            connections[connection.fileno()] = connection
            poll.register(connection, select.EPOLLOUT)
        print("connected", flush=True)
        while True:
            for fd, _ in poll.poll():
                try:
                    connections[fd].send(payload)
                except BlockingIOError:
                    continue


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["receive", "send"])
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--rate", type=int, help="bytes/s of each stream")
    given = parser.parse_args()
    leave_on_sigterm()
    if given.role == "receive":
        receive(given.address, given.port)
    else:
        send(given.address, given.port, given.streams, given.rate)


if __name__ == "__main__":
    main()
