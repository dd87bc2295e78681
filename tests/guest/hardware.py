# SPDX-License-Identifier: GPL-2.0-or-later
"""What simnic really has and did: its filters in debugfs, `ethtool -S`, /proc/interrupts.

Reads only, but for `behave`, which writes module parameters (tests/guest/simnic/README.md).
"""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.wait import until

__all__ = ["Held", "behave", "effective_cpus", "ethtool", "held", "interrupts", "packets"]
__all__ += ["queue_of", "send", "statistics"]

PARAMETERS = Path("/sys/module/simnic/parameters")
MAX_QUEUES = 8


class Held(NamedTuple):
    """A filter in the hardware; `location` None: it is aRFS's."""

    location: int | None
    queue: str
    hits: int
    match: str


def held(port: str = "sim0") -> list[Held]:
    """In the order of locations."""
    found = []
    for line in Path("/sys/kernel/debug/simnic", port, "rules").read_text().splitlines():
        first, *rest = line.split()
        words = dict(word.split("=", 1) for word in rest)
        kind, number = first.split("=")
        hits, queue = int(words.pop("hits")), words.pop("queue")
        location = int(number) if kind == "location" else None
        found.append(Held(location, queue, hits, " ".join(map("=".join, words.items()))))
    return found


@contextmanager
def behave(**parameters: object) -> Iterator[None]:
    """Change how the hardware behaves, for as long as this lasts."""
    before = {name: (PARAMETERS / name).read_text() for name in parameters}
    for name, value in parameters.items():
        (PARAMETERS / name).write_text(f"{value}\n")
    try:
        yield
    finally:
        for name, text in before.items():
            (PARAMETERS / name).write_text(text)


def ethtool(*words: object) -> str:
    """bookworm's exits 0 when a filter is refused: for filters see rxnfc.py."""
    argv = ["ethtool", *map(str, words)]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def statistics(port: str = "sim0") -> dict[str, int]:
    found = re.findall(r"^ +(\S+): (\d+)$", ethtool("-S", port), re.MULTILINE)
    return {name: int(value) for name, value in found}


def packets(port: str = "sim0") -> list[int]:
    """Received so far, by queue."""
    counts = statistics(port)
    return [counts[f"rx_queue_{queue}_packets"] for queue in range(MAX_QUEUES)]


def send(sender: socket.socket, receiver: socket.socket, count: int = 50) -> None:
    """UDP packets, each waited for: none is lost because another fills a ring or a socket."""
    for _ in range(count):
        sender.sendto(b"x", receiver.getsockname())
        receiver.recv(16)


def queue_of(sender: socket.socket, receiver: socket.socket, count: int = 50) -> int:
    """The queue of sim0 that `count` packets of a flow go to, all of them."""
    before = packets()
    send(sender, receiver, count)

    def grown() -> list[int]:
        return [now - then for now, then in zip(packets(), before, strict=True)]

    until(lambda: sum(grown()) >= count, f"{count} packets are counted")
    queues = [queue for queue, more in enumerate(grown()) if more >= count]
    assert len(queues) == 1, grown()
    return queues[0]


def interrupts(name: str) -> tuple[int, list[int]]:
    """Number and counts by CPU of the one interrupt with this name."""
    lines = Path("/proc/interrupts").read_text().splitlines()
    cpus = len(lines[0].split())
    [words] = [line.split() for line in lines if line.split()[-1] == name]
    return int(words[0].rstrip(":")), [int(word) for word in words[1 : 1 + cpus]]


def effective_cpus(irq: int) -> str:
    return Path(f"/proc/irq/{irq}/effective_affinity_list").read_text().strip()
