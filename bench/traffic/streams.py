# SPDX-License-Identifier: GPL-2.0-or-later
"""Many TCP streams from one process to another (tcp(7), epoll(7)): `receive` or `send`.

iperf3 3.12 takes 128 streams a process; the paper's counts go to 2000. `send` connects and then
sends two segments on each in turn, `--rate` bytes/s a stream. (TCP's own pacing sends a slow stream
in bursts of up to 64 KiB where the round trip is short, see net.ipv4.tcp_tso_rtt_log: seconds
apart.) Both print one line when ready and run until SIGTERM; `receive` then prints the bytes it
took as JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import select
import socket
import time
from contextlib import suppress
from typing import NoReturn

from bench.traffic import BACKLOG, leave_on_sigterm

__all__ = ["receive", "send"]

READ_BYTES = 1 << 18
CHUNK_BYTES = 2 * 1448  # two segments of a 1500-byte MTU


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


def send(address: str, port: int, streams: int, rate: float) -> None:
    """Keep `streams` connections at `rate` bytes/s each."""
    connections = []
    for _ in range(streams):
        connection = socket.create_connection((address, port), timeout=20)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        connections.append(connection)
    print("connected", flush=True)
    _send_paced(connections, rate)


def _send_paced(connections: list[socket.socket], rate: float) -> NoReturn:
    payload, turns = bytes(CHUNK_BYTES), itertools.cycle(connections)
    per_s = rate * len(connections) / CHUNK_BYTES
    due = time.monotonic()
    while True:
        now = time.monotonic()
        due = max(due, now - 0.1)  # late by more than that: the load is what it is
        while due <= now:
            with suppress(BlockingIOError):  # this one is behind; the next has its turn
                next(turns).send(payload)
            due += 1 / per_s
        time.sleep(max(0.0, due - now))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["receive", "send"])
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.0, help="bytes/s of each stream")
    given = parser.parse_args()
    leave_on_sigterm()
    if given.role == "receive":
        receive(given.address, given.port)
    else:
        send(given.address, given.port, given.streams, given.rate)


if __name__ == "__main__":
    main()
