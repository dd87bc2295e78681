# SPDX-License-Identifier: GPL-2.0-or-later
"""Request/response over many TCP connections (tcp(7), epoll(7)): `serve` or `drive`.

Like netperf's TCP_RR: `drive` keeps one 64-byte request outstanding on each connection, or sends
`--rate` requests/s over all of them in turn. Both print a line when ready and run until SIGTERM;
`drive` then prints its transactions as JSON, and of one connection how long they took (p50, p99).
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import time
from array import array

from bench.traffic import BACKLOG, leave_on_sigterm

__all__ = ["drive", "serve"]

MESSAGE = bytes(64)
SAMPLES = 1_000_000


def serve(address: str, port: int) -> None:
    """Send back whatever comes."""
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


def drive(address: str, port: int, count: int, rate: float | None) -> None:
    """Ask over `count` connections, at `rate` requests/s over all of them if there is one."""
    connections: dict[int, socket.socket] = {}
    transactions, took_ns = 0, array("q")
    with select.epoll() as poll:
        for _ in range(count):
            connection = socket.create_connection((address, port), timeout=20)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connections[connection.fileno()] = connection
            poll.register(connection, select.EPOLLIN)
        print("connected", flush=True)
        idle = list(connections)
        began = due = time.monotonic()
        try:
            while True:
                now = time.monotonic()
                while idle and (rate is None or due <= now):
                    asked_ns = time.monotonic_ns()
                    connections[idle.pop(0)].sendall(MESSAGE)
                    due = max(due, now - 0.1) + (1 / rate if rate else 0)
                wait = max(0.0, due - now) if rate and idle else None
                for fd, _ in poll.poll(wait):
                    if not connections[fd].recv(4096):
                        raise SystemExit("the server closed a connection")
                    transactions += 1
                    idle.append(fd)
                    if count == 1 and len(took_ns) < SAMPLES:
                        took_ns.append(time.monotonic_ns() - asked_ns)
        finally:
            seconds = time.monotonic() - began
            found: dict[str, object] = {"transactions": transactions, "seconds": seconds}
            if took_ns:
                ordered = sorted(took_ns)
                found["took_ns"] = [ordered[len(ordered) * part // 100] for part in (50, 99)]
            print(json.dumps(found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["serve", "drive"])
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--rate", type=float, help="requests/s over all connections")
    given = parser.parse_args()
    leave_on_sigterm()
    if given.role == "serve":
        serve(given.address, given.port)
    else:
        drive(given.address, given.port, given.connections, given.rate)


if __name__ == "__main__":
    main()
