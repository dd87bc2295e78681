# SPDX-License-Identifier: GPL-2.0-or-later
"""Requests to a real server over many connections, at times that do not wait for its answers
(requests.c): what a user of it feels. Latency counts from when a request was to be sent."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.bed import Bed, compiled
from bench.children import Child, child

__all__ = ["Answers", "Asked", "answers", "asking", "built"]

SOURCE = Path(__file__).with_suffix(".c")


class Asked(NamedTuple):
    """How a server is asked. `means`: `tcp` keeps its connections, `short` makes one for each
    request, which the server closes; `udp`. `times`: how often its request is sent for an answer,
    on the counted machine."""

    means: str
    request: bytes
    prologue: bytes = b""  # once on each connection
    times: int = 1


class Answers(NamedTuple):
    """Of one window. `lost`: not answered within half a second (udp)."""

    lost: int
    per_s: float
    p50_ns: int
    p99_ns: int


def built(folder: Path) -> Path:
    """The program, compiled there."""
    return compiled(SOURCE, folder)


@contextlib.contextmanager
def asking(
    program: Path,
    bed: Bed,
    port: int,
    asked: Asked,
    connections: int,
    rate: float | None,
    warm_s: float,
    window_s: float,
) -> Iterator[Child]:
    """Requests from the remote host, all connected. None: each connection asks again as soon as it
    is answered."""
    words = [asked.means, bed.address, port, connections, rate or 0, warm_s, window_s]
    words += [asked.request.hex(), *([asked.prologue.hex()] if asked.prologue else [])]
    with child(str(program), *map(str, words), netns=bed.peer, cpus=bed.spare or None) as client:
        client.said("connected")
        yield client


def answers(client: Child, deadline_s: float) -> Answers:
    """Once its window has ended. OperatorError: a connection broke."""
    found = json.loads(client.wait(deadline_s).splitlines()[-1])
    per_s = found["answers"] / found["seconds"]
    return Answers(found["lost"], per_s, found["p50_ns"], found["p99_ns"])
