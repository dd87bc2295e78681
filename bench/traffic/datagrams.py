# SPDX-License-Identifier: GPL-2.0-or-later
"""Numbered UDP datagrams over many flows (datagrams.c), and what the checkers noted of them.

A checker is a process of its own, one a CPU, and has an equal part of the flows. Its log is the
reference for reordering: it knows nothing of queues.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from atfnd.model import FlowKey, Protocol
from bench.bed import Bed, compiled
from bench.children import Child, child

__all__ = ["Datagram", "Load", "Stream", "Tally", "Traffic", "built", "read_log"]
__all__ += ["received", "sent"]

SOURCE = Path(__file__).with_suffix(".c")
PORT, PEER_PORT = 10_000, 4000
LATE = 1 << 31
_record = struct.Struct("=qI4x")


class Load(NamedTuple):
    """What is sent: `active` flows send at a time, `train` datagrams each, then the next ones."""

    rate_pps: int
    active: int
    train: int

    def sending(self, flows: int, since_ns: int) -> list[int]:
        """The flows whose turn it is so long after the first datagram."""
        active = min(self.active, flows)
        turn = self.rate_pps * since_ns // (1_000_000_000 * active * self.train)
        return [(turn * active + each) % flows for each in range(active)]


class Stream(NamedTuple):
    """One flow, and the cookie of the socket that receives it."""

    key: FlowKey
    cookie: int


class Tally(NamedTuple):
    """What came of all that was sent; lost before the NIC, in its rings, or at a socket."""

    received: int
    lost: int


class Datagram(NamedTuple):
    """One that arrived. CLOCK_REALTIME."""

    received_ns: int
    flow: int
    late: bool  # a higher number of its flow came before it


class Traffic(NamedTuple):
    """Checkers at work, and a sender once it was started."""

    checkers: tuple[Child, ...]
    streams: tuple[Stream, ...]
    logs: tuple[Path, ...]
    load: Load
    began_ns: int = 0  # CLOCK_MONOTONIC
    sender: Child | None = None

    def sending(self) -> list[int]:
        """The flows whose turn it is now."""
        return self.load.sending(len(self.streams), time.monotonic_ns() - self.began_ns)

    def finish(self) -> Tally:
        """Stop sending, let the checkers read what is queued, and count."""
        if self.sender is not None:
            self.sender.result()
        found = [checker.result() for checker in self.checkers]
        return Tally(sum(each["received"] for each in found), sum(each["lost"] for each in found))

    def datagrams(self) -> Iterator[Datagram]:
        """All that arrived, each flow's in the order in which its socket had them."""
        for log in self.logs:
            yield from read_log(log.read_bytes())


def built(folder: Path) -> Path:
    """The program, compiled there."""
    return compiled(SOURCE, folder)


def read_log(log: bytes) -> Iterator[Datagram]:
    """`struct record` after `struct record`."""
    for received_ns, flow in _record.iter_unpack(log):
        yield Datagram(received_ns, flow & ~LATE, bool(flow & LATE))


@contextmanager
def received(program: Path, bed: Bed, flows: int, load: Load) -> Iterator[Traffic]:
    """That many flows into the host of a bed, a checker for each of its CPUs; nothing is sent."""
    parts = len(bed.cpus)
    address, peer = socket.inet_aton(bed.address), socket.inet_aton(bed.peer_address)
    with ExitStack() as stack:
        checkers, streams, logs = [], [], []
        for part in range(parts):
            first, end = flows * part // parts, flows * (part + 1) // parts
            log = program.with_name(f"log{part}")
            words = (bed.address, PORT, end - first, bed.peer_address, first, log)
            command = (str(program), "check", *map(str, words))
            checker = stack.enter_context(child(*command, netns=bed.host, cpus=bed.cpus))
            checker.said("ready")
            cookies = json.loads(checker.text().splitlines()[0])["cookies"]
            for flow, cookie in enumerate(cookies, first):
                key = FlowKey(Protocol.UDP, address, PORT + flow, peer, PEER_PORT)
                streams.append(Stream(key, cookie))
            checkers.append(checker)
            logs.append(log)
        yield Traffic(tuple(checkers), tuple(streams), tuple(logs), load)


@contextmanager
def sent(program: Path, bed: Bed, traffic: Traffic, cpus: Iterable[int]) -> Iterator[Traffic]:
    """The same traffic, sent, by a sender on these CPUs."""
    load, flows = traffic.load, len(traffic.streams)
    words = (bed.address, PORT, flows, load.rate_pps, min(load.active, flows), load.train)
    command = (str(program), "send", *map(str, words))
    with child(*command, netns=bed.peer, cpus=cpus) as sender:
        sender.said("ready")
        began_ns = json.loads(sender.text().splitlines()[0])["began_ns"]
        yield traffic._replace(sender=sender, began_ns=began_ns)
