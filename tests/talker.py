# SPDX-License-Identifier: GPL-2.0-or-later
"""A process with sockets, for tests: talks or echoes, on the core that it is given, until stdin
ends.

    python -m tests.talker echo tcp|udp ADDRESS PORT
    python -m tests.talker talk tcp|udp ADDRESS PORT LOCAL [LOCAL_PORT]

Commands, one a line, each answered by `ok`: `pin CPU`, `pause`, `resume`, `idle` (open one more
connection and leave it alone), `thread CPU` (a second thread that runs there), `also LOCAL_PORT`
(talk from there as well), `close` (the talking or accepted socket), `busy` (ask for data again and
again instead of waiting), `rest` (but for 0.2 ms in 10), `load BYTES` (a message is this long),
`ask` (the next message once the last one has come back whole), `threads` (each connection from now
on has a thread of its own), `together CPU` (pins them), `name TEXT` (of the thread), `user UID` (be
that user from now on).
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import sys
import threading
import time
from pathlib import Path

from tests.wait import EMULATED

MESSAGE = b"x" * 1000
PACE_S = 0.002 * EMULATED  # an emulated CPU is to have time for others
BUSY_S, REST_S = 0.0098, 0.0002


def _spin(cpu: int) -> None:
    os.sched_setaffinity(threading.get_native_id(), {cpu})
    wake = threading.Event()
    while True:
        wake.wait(PACE_S)


def _echo(made: socket.socket) -> None:
    while data := made.recv(65536):
        made.sendall(data)


class Talker:
    """One selector, one thread: what the socket does happens on the core we are pinned to."""

    def __init__(
        self,
        role: str,
        transport: str,
        address: str,
        port: str,
        local: str = "",
        local_port: str = "0",
    ) -> None:
        self.kind = socket.SOCK_STREAM if transport == "tcp" else socket.SOCK_DGRAM
        self.family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.peer, self.local = (address, int(port)), (local, int(local_port))
        self.talks = role == "talk"
        self.paused = self.busy = self.asks = self.threads = False
        self.message = MESSAGE
        self.awaited = 0  # bytes
        self.rest_at: float | None = None
        self.idle: list[socket.socket] = []
        self.also: list[socket.socket] = []
        self.stream: socket.socket | None = None
        self.selector = selectors.DefaultSelector()
        self.selector.register(sys.stdin, selectors.EVENT_READ, self.command)
        if self.talks:
            self.use(self.connect(self.local))
        else:
            listener = socket.socket(self.family, self.kind)
            if self.family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind(self.peer)
            if self.kind == socket.SOCK_STREAM:
                listener.listen()
                self.selector.register(listener, selectors.EVENT_READ, self.accept)
            else:
                self.use(listener)

    def connect(self, local: tuple[str, int]) -> socket.socket:
        made = socket.socket(self.family, self.kind)
        made.bind(local)
        made.connect(self.peer)
        return made

    def use(self, made: socket.socket) -> None:
        self.stream = made
        self.selector.register(made, selectors.EVENT_READ, self.receive)

    def accept(self, listener: socket.socket) -> None:
        made = listener.accept()[0]
        if self.threads:
            threading.Thread(target=_echo, args=(made,), daemon=True).start()
            return
        self.selector.register(made, selectors.EVENT_READ, self.receive)
        self.stream = self.stream or made

    def receive(self, made: socket.socket) -> None:
        data, sender = made.recvfrom(65536)
        if not data:
            self.selector.unregister(made)
            made.close()
        elif not self.talks:
            made.sendto(data, sender) if sender else made.sendall(data)
        elif self.asks:
            self.awaited -= len(data)
            self.ask()

    def ask(self) -> None:
        if self.stream and self.awaited <= 0:
            self.awaited = len(self.message)
            self.stream.sendall(self.message)

    def command(self, _: object) -> None:
        words = sys.stdin.readline().split()
        match words:
            case []:
                raise SystemExit
            case ["pin", cpu]:
                os.sched_setaffinity(0, {int(cpu)})
            case ["threads"]:
                self.threads = True
            case ["together", cpu]:
                for tid in os.listdir("/proc/self/task"):
                    os.sched_setaffinity(int(tid), {int(cpu)})
            case ["pause"]:
                self.paused = True
            case ["resume"]:
                self.paused = False
            case ["idle"]:
                self.idle.append(self.connect(self.local))
            case ["also", port]:
                self.also.append(made := self.connect((self.local[0], int(port))))
                self.selector.register(made, selectors.EVENT_READ, self.receive)
            case ["thread", cpu]:
                threading.Thread(target=_spin, args=(int(cpu),), daemon=True).start()
            case ["name", *words]:
                Path("/proc/self/comm").write_text(" ".join(words))
            case ["user", uid]:
                os.setresuid(int(uid), int(uid), int(uid))
            case ["ask"]:
                self.asks, self.awaited = True, 0
            case ["busy"]:
                self.busy = True
            case ["rest"]:
                self.rest_at = 0.0
            case ["load", size]:
                self.message = b"x" * int(size)
            case ["close"] if self.stream:
                self.selector.unregister(self.stream)
                self.stream.close()
                self.stream, self.talks = None, False
        print("ok", flush=True)

    def turn(self) -> None:
        if self.rest_at is not None and self.rest_at < time.monotonic():
            threading.Event().wait(REST_S)
            self.rest_at = time.monotonic() + BUSY_S
        wait_s = PACE_S if self.talks and not self.paused else None
        ready = self.selector.select(0 if self.busy else wait_s)
        for key, _ in ready:
            key.data(key.fileobj)
        if not ready and self.talks and not self.paused and self.stream:
            self.ask() if self.asks else self.stream.send(self.message)
            for made in self.also:
                made.send(self.message)

    def run(self) -> None:
        while True:
            try:
                self.turn()
            except OSError as error:
                if error.errno != errno.ENETUNREACH:  # the link is down, a datagram is lost
                    raise


if __name__ == "__main__":
    talker = Talker(*sys.argv[1:])
    print("ok", flush=True)
    talker.run()
