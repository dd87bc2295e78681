# SPDX-License-Identifier: GPL-2.0-or-later
"""The reference for reordering: numbered datagrams, and a receiver that knows nothing of queues.

`python -m bench.traffic.sequence` is `send FD RATE`, `check FD` or `stall CPU BUSY_MS PERIOD_MS`;
`sequence` runs a sender and a checker, `stalled` a hog. A datagram is late when a higher number
came before it. The checker notes when the kernel received it (SO_TIMESTAMPNS,
net_timestamp_check() in net/core/dev.c, before it is queued on a socket).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

__all__ = ["Sequence", "Tally", "sequence", "stalled"]

SO_TIMESTAMPNS = 35  # asm-generic/socket.h
SO_RCVBUFFORCE = 33
BUFFER_BYTES = 32 << 20
_number, _stamp = struct.Struct("=Q40x"), struct.Struct("=qq")
PRIORITY = 50


class Tally(NamedTuple):
    """What arrived."""

    received: int
    highest: int
    late_ns: list[int]  # CLOCK_REALTIME of each late datagram
    last_ns: int  # and of the last of all


class Sequence(NamedTuple):
    """A sender and a checker at work."""

    sender: subprocess.Popen[str]
    checker: subprocess.Popen[str]

    def so_far(self) -> Tally:
        """What arrived until now."""
        self.checker.send_signal(signal.SIGUSR1)
        assert self.checker.stdout is not None
        return Tally(*json.loads(self.checker.stdout.readline()))

    def finish(self) -> Tally:
        """Stop sending, let the checker read what is queued, and have its tally."""
        self.sender.terminate()
        self.sender.wait()
        self.checker.terminate()
        answer, _ = self.checker.communicate()
        return Tally(*json.loads(answer))


def _process(*arguments: object, keep: socket.socket | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.traffic.sequence", *map(str, arguments)]
    kept = [] if keep is None else [keep.fileno()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=kept)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@contextmanager
def sequence(sender: socket.socket, receiver: socket.socket, rate_pps: int) -> Iterator[Sequence]:
    """Numbered datagrams from one connected socket to the other until `finish`."""
    receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
    receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    with _process("check", receiver.fileno(), keep=receiver) as checker:
        try:
            with _process("send", sender.fileno(), rate_pps, keep=sender) as sending:
                try:
                    yield Sequence(sending, checker)
                finally:
                    sending.kill()
        finally:
            checker.kill()


@contextmanager
def stalled(cpu: int, busy_ms: float = 3.0, period_ms: float = 10.0) -> Iterator[None]:
    """A SCHED_FIFO hog above every NAPI thread of this CPU, for part of each period."""
    with _process("stall", cpu, busy_ms, period_ms) as hog:
        try:
            yield
        finally:
            hog.kill()


def _send(sock: socket.socket, rate_pps: int) -> None:
    """In bursts, twice a millisecond. What finds no room in the socket goes with the next burst."""
    print("ready", flush=True)
    number, began = 0, time.monotonic()
    while True:
        due = int((time.monotonic() - began) * rate_pps)
        while number < due:
            try:
                sock.send(_number.pack(number + 1))
            except BlockingIOError:
                break
            number += 1
        time.sleep(0.0005)


def _check(sock: socket.socket) -> None:
    received = highest = last_ns = 0
    late: list[int] = []
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True
        sock.setblocking(False)

    def tell(*_: object) -> None:
        print(json.dumps((received, highest, late, last_ns)), flush=True)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGUSR1, tell)
    print("ready", flush=True)
    sock.settimeout(0.1)
    while True:
        try:
            datagram, control, _, _ = sock.recvmsg(64, 64)
        except TimeoutError:
            continue
        except BlockingIOError:
            if stopping:
                break
            continue
        (number,) = _number.unpack(datagram)
        seconds, ns = _stamp.unpack(control[0][2])
        received, last_ns = received + 1, seconds * 1_000_000_000 + ns
        if number < highest:
            late.append(last_ns)
        highest = max(highest, number)
    tell()


def _stall(cpu: int, busy_ms: float, period_ms: float) -> None:
    os.sched_setaffinity(0, {cpu})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    print("ready", flush=True)
    while True:
        until = time.monotonic() + busy_ms / 1e3
        while time.monotonic() < until:
            pass
        time.sleep((period_ms - busy_ms) / 1e3)


def main(role: str, *arguments: str) -> None:
    if role == "stall":
        _stall(int(arguments[0]), float(arguments[1]), float(arguments[2]))
    with socket.socket(fileno=int(arguments[0])) as sock:
        if role == "send":
            _send(sock, int(arguments[1]))
        _check(sock)


if __name__ == "__main__":
    main(*sys.argv[1:])
