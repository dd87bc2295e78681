# SPDX-License-Identifier: GPL-2.0-or-later
"""Requests to a real server over many connections, at times that do not wait for its answers, by
the client of the counted machine (bench/counted/load.c): what a user of it feels. Latency counts
from when a request was to be sent."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.bed import Bed, compiled
from bench.children import Child, child

__all__ = ["Answers", "Asked", "answers", "asking", "built"]

SOURCE = Path(__file__).parents[1] / "counted/load.c"


class Asked(NamedTuple):
    """How a server is asked. `means`: `tcp` keeps its connections, `short` makes one for each
    request, which the server closes; `udp`. `times`: how often its request is sent for an answer,
    on the counted machine."""

    means: str
    request: bytes
    prologue: bytes = b""  # once on each connection
    times: int = 1


class Answers(NamedTuple):
    """Of one window. Without one, there are no latencies: they are 0."""

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
    where = (asked.means, bed.address, port, 1, connections, "-", 0)
    times = (rate or 0, round(1000 * warm_s), round(1000 * window_s), 1)
    said = (asked.times, asked.request.hex(), asked.prologue.hex())
    words = map(str, (program, "ask", *where, *times, "-", *said))
    with child(*words, netns=bed.peer, cpus=bed.spare or None) as client:
        client.said("connected")
        os.kill(client.pid, signal.SIGUSR1)  # it waits for that
        yield client


def answers(client: Child, deadline_s: float) -> Answers:
    """Once its window has ended. OperatorError: a connection broke."""
    found = json.loads(client.wait(deadline_s).splitlines()[-1])
    took_ns = sorted(found["took_ns"]) or [0]
    p50_ns, p99_ns = (took_ns[len(took_ns) * of // 100] for of in (50, 99))
    return Answers(found["requests"] * 1e9 / found["ns"], p50_ns, p99_ns)
