# SPDX-License-Identifier: GPL-2.0-or-later
"""Established TCP connections for their own sake (tcp(7), epoll(7)): `accept`, `open` or `churn`.

`accept` listens on `--ports` consecutive ports (each gives a client another 28,000 source ports)
and closes what the other side closed. `open` makes `--count` connections, prints how many it got,
with why it stopped, and holds them. `churn` opens and closes `--rate` connections/s. All run until
SIGTERM. The file limit is raised as far as the kernel lets us (setrlimit(2), fs.nr_open).
"""

from __future__ import annotations

import argparse
import json
import resource
import select
import signal
import socket
import time
from pathlib import Path

from bench.traffic import BACKLOG, leave_on_sigterm

__all__ = ["accept", "churn", "hold_open"]


def _raise_file_limit() -> None:
    most = int(Path("/proc/sys/fs/nr_open").read_text())
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except ValueError:  # no CAP_SYS_RESOURCE: as far as the hard limit
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def accept(address: str, port: int, ports: int) -> None:
    """Hold whatever connects; answer the first byte of each with one byte, so it has been used."""
    connections: dict[int, socket.socket] = {}
    listeners = {}
    with select.epoll() as poll:
        for offset in range(ports):
            listener = socket.create_server((address, port + offset), backlog=BACKLOG)
            listeners[listener.fileno()] = listener
            poll.register(listener, select.EPOLLIN)
        print("ready", flush=True)
        while True:
            for fd, _ in poll.poll():
                if fd in listeners:
                    connection = listeners[fd].accept()[0]
                    connections[connection.fileno()] = connection
                    poll.register(connection, select.EPOLLIN)
                    continue
                try:
                    request = connections[fd].recv(4096)
                except ConnectionResetError:
                    request = b""
                if not request:
                    connections.pop(fd).close()


def hold_open(address: str, port: int, ports: int, count: int, limit_s: float) -> None:
    """Open `count` connections, or as many as fit in `limit_s` seconds and the machine takes."""
    connections: list[socket.socket] = []
    why, began = "all open", time.monotonic()
    for index in range(count):
        if time.monotonic() - began > limit_s:
            why = f"stopped after {limit_s:g} s"
            break
        try:
            connection = socket.create_connection((address, port + index % ports), timeout=5)
        except OSError as error:
            why = str(error)
            break
        connection.sendall(b"x")
        connections.append(connection)
    print(json.dumps({"open": len(connections), "why": why}), flush=True)
    signal.pause()


def churn(address: str, port: int, ports: int, rate: float) -> None:
    """Open and close `rate` connections/s; print how many were made."""
    made, began = 0, time.monotonic()
    print("ready", flush=True)
    try:
        while True:
            ahead = began + made / rate - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
            with socket.create_connection((address, port + made % ports), timeout=5) as connection:
                # a reset instead of TIME_WAIT: the source ports must not run out
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                connection.sendall(b"x")
            made += 1
    finally:
        seconds = time.monotonic() - began
        print(json.dumps({"connections": made, "seconds": seconds}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["accept", "open", "churn"])
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("--ports", type=int, default=1)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds to open them in")
    parser.add_argument("--rate", type=float, default=1000.0, help="connections/s of churn")
    given = parser.parse_args()
    leave_on_sigterm()
    _raise_file_limit()
    if given.role == "accept":
        accept(given.address, given.port, given.ports)
    elif given.role == "open":
        hold_open(given.address, given.port, given.ports, given.count, given.limit)
    else:
        churn(given.address, given.port, given.ports, given.rate)


if __name__ == "__main__":
    main()
