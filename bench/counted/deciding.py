# SPDX-License-Identifier: GPL-2.0-or-later
"""What deciding and moving execute, by the number of flows: instructions of user code, while a
recording is replayed through the engine. Inside the counted guest, after start.sh.

A `decision`: the thread of a flow was seen on another CPU, and the flow gets another queue. A
`look`: every socket is read again; each carried more, and all are where they belong. Matching and
the engine are the product's; nothing is written to a NIC. A `move`: moving.py. Garbage is collected
before, not meanwhile.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from statistics import median

from atfnd.model import (
    Actuator,
    Caps,
    Cpu,
    FlowKey,
    NicStats,
    NicView,
    Node,
    Protocol,
    Queue,
    Rss,
    SocketSeen,
    SocketUse,
    Thread,
    Topology,
)
from atfnd.policy.file.load import built_in
from atfnd.replay.recording import FORMAT, Audited, RecordedMachine, RecordedSocket
from atfnd.replay.replay import Replay
from bench.counted.counts import marks
from bench.counted.moving import Moves

__all__ = ["FLOWS", "TIMES", "Decider", "Figures", "measure"]

Figures = dict[str, float]  # instructions, by what they are of

FLOWS = (100, 1000, 10_000)
CPUS = 16
TIMES = 9  # of which the median counts
SECOND_NS = 1_000_000_000
MARK = bytes((0x0F, 0x1F, 0x80, 0, 0, 0x5A, 0x5A, 0xC3))  # as in plugin.c, and a return
NIC = NicView(
    name="eth0", netns=None, ifindex=2, armed=True, budget=2 * max(FLOWS), up=True,
    caps=Caps("ice", True, None, True, False, True, True, Actuator.IN_PLACE, exact_wins=True),
    queues=tuple(Queue(n, 100 + n, None, n, True, None) for n in range(CPUS)), filters=(),
    owned=frozenset(), rss=Rss(bytes(40), tuple(range(CPUS)) * 8), ring_size=None,
    stats=NicStats((), None),
)  # fmt: skip
MACHINE = Topology(
    tuple(Cpu(n, True, n // 8, n // 8, n, (n,), tuple(range(n // 8 * 8, n // 8 * 8 + 8)))
          for n in range(CPUS)),
    (Node(0, (), {}), Node(1, (), {})),
)  # fmt: skip


class Decider:
    """An engine that has placed so many flows, each of a thread of its own."""

    def __init__(self, flows: int) -> None:
        self.flows, self._now_ns, self._bytes = flows, SECOND_NS, 1 << 20
        self._replay = Replay(built_in())
        self._replay.take(RecordedMachine(0, (NIC,), MACHINE, FORMAT))
        self._cpus = [number % CPUS for number in range(flows)]
        self._keys = [
            FlowKey(Protocol.TCP, bytes((10, 0, 0, 1)), 443, bytes((10, 1, n // 250, n % 250)), n)
            for n in range(1024, 1024 + flows)
        ]
        for number in range(flows):
            self._use(number)
        for _ in range(3):
            self.look()
        self._next = 0
        self.move = Moves(self._keys).move

    def decide(self) -> int:
        """The next flow's thread is on the CPU after its own. Returns how many actions follow."""
        self._next = (self._next + 7) % self.flows
        self._cpus[self._next] = (self._cpus[self._next] + 1) % CPUS
        before = len(self._replay.decided)
        self._use(self._next)
        return len(self._replay.decided) - before

    def look(self) -> None:
        self._now_ns, self._bytes = self._now_ns + 2 * SECOND_NS, self._bytes + (1 << 20)
        uses = tuple(
            SocketUse(1000 + number, key, None, 100 + cpu, cpu, self._bytes)
            for number, (key, cpu) in enumerate(zip(self._keys, self._cpus, strict=True))
        )
        self._replay.take(Audited(self._now_ns, uses))

    def _use(self, number: int) -> None:
        self._now_ns += SECOND_NS // 1000
        now_ns, thread = self._now_ns, Thread(5000 + number, 5000 + number, "app", None)
        event = SocketSeen(
            now_ns, 1000 + number, self._keys[number], self._cpus[number], thread, 100, 0,
            self._bytes, now_ns - SECOND_NS, 0,
        )  # fmt: skip
        self._replay.take(RecordedSocket(now_ns, NIC.name, event, (number + 3) % CPUS))


def measure(deciders: list[Decider], counts: Path) -> Figures:
    """`counts`: what the plugin writes. This process has a CPU on which no other runs."""
    (cpu,) = os.sched_getaffinity(0)
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(MARK)
    mark = ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))

    def instructions(work: Callable[[], object]) -> float:
        for _ in range(TIMES):
            mark()
            work()
            mark()
        found = [each[cpu].instructions["user"] for each in marks(counts.read_text())]
        edges = found[-2 * TIMES :]
        return median(end - begin for begin, end in zip(edges[::2], edges[1::2], strict=True))

    figures: Figures = {}
    gc.collect()
    gc.disable()
    for decider in deciders:
        works = ("a decision", decider.decide), ("a move", decider.move), ("a look", decider.look)
        for what, work in works:
            figures[f"{what}, {decider.flows} flows"] = instructions(work)
    return figures
