# SPDX-License-Identifier: GPL-2.0-or-later
"""Driving a BPF observer: sockets whose packets all arrive on one CPU, used from any we choose."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable
from typing import TypeVar

from atfnd.model import Match
from atfnd.observe.sockets.bpf import BpfObserver
from tests.labs import Lab
from tests.wait import until

__all__ = [
    "RIGHT",
    "WRONG",
    "Pair",
    "Watch",
    "cookie",
    "direct",
    "directed",
    "lockstep",
    "napis",
    "on_cpu",
    "use",
    "wanders_to",
]

RIGHT, WRONG = sorted(os.sched_getaffinity(0))[:2]  # queue 0 is delivered on the first CPU
SO_COOKIE = 57  # asm-generic/socket.h
_ports = itertools.count(30000)

T = TypeVar("T")
Pair = tuple[socket.socket, socket.socket]  # the peer's, the host's
# Makes an observer of these labs that tells at once and never again, unless told.
Watch = Callable[..., BpfObserver]


def cookie(made: socket.socket) -> int:
    """What the kernel and every observation call this socket."""
    return int.from_bytes(made.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8), "little")


def napis(*labs: Lab) -> dict[int, str]:
    """What an observer of these labs watches."""
    return {
        queue.napi_id: lab.nic.name
        for lab in labs
        for queue in lab.nic.queues()
        if queue.napi_id is not None
    }


def on_cpu(cpu: int) -> None:
    """Migrate the calling thread."""
    os.sched_setaffinity(0, {cpu})


def wanders_to(cpu: int) -> None:
    """The calling thread comes to this CPU, and may run on any."""
    os.sched_setaffinity(0, {cpu})
    os.sched_setaffinity(0, {RIGHT, WRONG})


def direct(
    lab: Lab,
    port: int,
    family: int = socket.AF_INET,
    protocols: tuple[int, ...] = (socket.IPPROTO_TCP, socket.IPPROTO_UDP),
) -> None:
    """Have everything for this port of the host arrive on RIGHT."""
    version = 4 if family == socket.AF_INET else 6
    for protocol in protocols:
        lab.nic.insert(Match(version, protocol, None, 0, None, 0, None, port), 0)


def directed(lab: Lab, make: Callable[..., Pair], family: int = socket.AF_INET) -> Pair:
    """What `make` (lab.tcp_pair, lab.udp_pair) makes, with all its packets arriving on RIGHT."""
    port = next(_ports)
    direct(lab, port, family)
    return make(family, *((next(_ports), port) if make == lab.udp_pair else (port,)))


def lockstep(sender: socket.socket, receiver: socket.socket, times: int = 1, size: int = 1) -> None:
    """One message through the NIC, received before the next is sent: two calls, one each."""
    for _ in range(times):
        sender.send(bytes(size))
        left = size
        while left:
            left -= len(receiver.recv(left))


def use(pair: Pair, condition: Callable[[], T], what: str, *, touch: bool = True) -> T:
    """Use the host's socket (if `touch`) until the condition holds."""

    def step() -> T:
        if touch:
            lockstep(*pair)
        return condition()

    return until(step, what)
