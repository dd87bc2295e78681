# SPDX-License-Identifier: GPL-2.0-or-later
"""Many TCP streams from one process to another (tcp(7), epoll(7)): `receive` or `send`.

iperf3 3.12 takes 128 streams a process; the paper's counts go to 2000. `send` connects and then
keeps every socket full, or sends two segments on each in turn, `--rate` bytes/s a stream. (TCP's
own pacing sends a slow stream in bursts of up to 64 KiB where the round trip is short, see
net.ipv4.tcp_tso_rtt_log: seconds apart.) `receive --threads` has a thread for each connection, as
iperf 2 has, which waits in recv(2). Both print one line when ready and run until SIGTERM; `receive`
then prints the bytes it took as JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import select
import socket
import threading
import time
from contextlib import suppress
from typing import NoReturn

from bench.traffic import BACKLOG, leave_on_sigterm

__all__ = ["receive", "receive_in_threads", "send"]

READ_BYTES = 1 << 18
THREAD_READ_BYTES = 1 << 13  # iperf 2's
STACK_BYTES = 1 << 17
WRITE_BYTES = 1 << 14
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


def receive_in_threads(address: str, port: int) -> None:
    """The same, by a thread for each connection."""
    taken: list[list[int]] = []
    threading.stack_size(STACK_BYTES)

    def discard(connection: socket.socket, count: list[int]) -> None:
        buffer = bytearray(THREAD_READ_BYTES)
        with connection, suppress(ConnectionResetError):
            while got := connection.recv_into(buffer):
                count[0] += got

    with socket.create_server((address, port), backlog=BACKLOG) as listener:
        print("ready", flush=True)
        try:
            while True:
                taken.append([0])
                arguments = (listener.accept()[0], taken[-1])
                threading.Thread(target=discard, args=arguments, daemon=True).start()
        finally:
            found = {"bytes": sum(count for (count,) in taken), "connections": len(taken) - 1}
            print(json.dumps(found), flush=True)


def send(address: str, port: int, streams: int, rate: float | None) -> None:
    """Keep `streams` connections full, or each at `rate` bytes/s."""
    connections: dict[int, socket.socket] = {}
    for _ in range(streams):
        connection = socket.create_connection((address, port), timeout=20)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        connections[connection.fileno()] = connection
    print("connected", flush=True)
    if rate:
        _send_paced(list(connections.values()), rate)
    else:
        _send_full(connections)


def _send_full(connections: dict[int, socket.socket]) -> NoReturn:
    payload = bytes(WRITE_BYTES)
    with select.epoll() as poll:
        for connection in connections.values():
            poll.register(connection, select.EPOLLOUT)
        while True:
            for fd, _ in poll.poll():
                with suppress(BlockingIOError):
                    connections[fd].send(payload)


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
    parser.add_argument("--rate", type=float, help="bytes/s of each stream")
    parser.add_argument("--threads", action="store_true", help="receive: one a connection")
    given = parser.parse_args()
    leave_on_sigterm()
    if given.role == "receive":
        (receive_in_threads if given.threads else receive)(given.address, given.port)
    else:
        send(given.address, given.port, given.streams, given.rate)


if __name__ == "__main__":
    main()
