# SPDX-License-Identifier: GPL-2.0-or-later
"""Messages of equal size over TCP connections (messages.c): a server that waits in epoll(7), and
who sends to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench.bed import compiled
from bench.children import Child, child

__all__ = ["built", "sending", "serving"]

SOURCE = Path(__file__).with_suffix(".c")


def built(folder: Path) -> Path:
    """The program, compiled there."""
    return compiled(SOURCE, folder)


@contextlib.contextmanager
def serving(
    program: Path,
    netns: str | None,
    address: str,
    port: int,
    message_bytes: int,
    what: str,
    cpus: Iterable[int],
    *,
    work_ns: int = 0,
    prefers: bool = False,
) -> Iterator[Child]:
    """A server that does `what` (answer, copy, discard) with each message, and works for it.
    `prefers`: busy polling, in its epoll."""
    words = ["serve", address, port, message_bytes, what, work_ns, *(["prefer"] if prefers else [])]
    with child(str(program), *map(str, words), netns=netns, cpus=cpus) as server:
        server.said("ready")
        yield server


@contextlib.contextmanager
def sending(
    program: Path,
    netns: str | None,
    address: str,
    port: int,
    message_bytes: int,
    connections: int,
    bytes_per_s: float,
    cpus: Iterable[int] | None = None,
) -> Iterator[Child]:
    """So many bytes a second offered to a server, message by message, over all connections in
    turn."""
    words = ["send", address, port, message_bytes, connections, f"{bytes_per_s:.0f}"]
    with child(str(program), *map(str, words), netns=netns, cpus=cpus) as sender:
        sender.said("ready")
        yield sender
