# SPDX-License-Identifier: GPL-2.0-or-later
"""The test driver's pair of ports as a bed, inside the guest (tests/guest): sim0 is the NIC under
test, in our own namespace; sim1 is the remote host's, in the namespace `peer`.

Loads and unloads the module simnic. Its filters have locations, and one at a location in use is
replaced at once. It plays hns3, whose filters are so: of a driver that nobody knows it would not be
believed that a write has taken effect when it returns, and nothing moved strictly.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

from atfnd.kernel.interrupts.irq import actions, set_affinity
from atfnd.nic import Nic
from atfnd.nic.driver import open_nic
from bench.bed import Bed, succeed
from tests.guest.simpair import HOST, simnic
from tests.guest.simpair import PEER as THERE

__all__ = [
    "DEVICE",
    "TABLE",
    "apart_bed",
    "counted_bed",
    "interrupts_along",
    "kernel_filters",
    "sim_bed",
    "threaded_bed",
]

DEVICE, PEER_DEVICE, PEER = "sim0", "sim1", "peer"
QUEUES = 4
TABLE = 8192  # filter slots
RING = 1024
SHARED, THREADS = 0, (1, 2)  # CPUs


@contextlib.contextmanager
def _pair(queues: int, drvname: str = "hns3", **changes: object) -> Iterator[Nic]:
    made = simnic(
        queues=queues, table=TABLE, ring=RING, location="explicit", overwrite="in_place",
        drvname=drvname, **changes,
    )  # fmt: skip
    with made:
        # there is no wire to cut a frame for: TCP's 64 KiB would arrive as one packet
        succeed("ip", "netns", "exec", PEER, "ethtool", "-K", PEER_DEVICE, "tso", "off")
        with contextlib.closing(open_nic(DEVICE)) as nic:
            yield nic


def _bed(
    nic: Nic,
    cpus: tuple[int, ...],
    order: str,
    spare: tuple[int, ...] = (),
    delivery: str = "interrupts of simnic",
    *,
    arfs: bool = True,
) -> Bed:
    here, there = HOST[socket.AF_INET], THERE[socket.AF_INET]
    return Bed(
        DEVICE, DEVICE, None, PEER, here, nic.ifindex, cpus, order, arfs=arfs, peer_address=there,
        spare=spare, delivery=delivery,
    )  # fmt: skip


@contextlib.contextmanager
def sim_bed() -> Iterator[Bed]:
    """One NIC of a queue and an interrupt per CPU; queue N's interrupt goes to CPU N."""
    with _pair(QUEUES) as nic:
        for index in range(QUEUES):
            nic.set_queue_cpu(index, index)
        # no NAPI has a thread here: ports' rules and queues that follow are what `strict` has
        yield _bed(nic, tuple(range(QUEUES)), "strict")


@contextlib.contextmanager
def apart_bed() -> Iterator[Bed]:
    """Interrupts of three queues on the CPUs 0 to 2, which are for the host's applications. The
    last CPU is for everything else: the remote host with its interrupts, and atfnd. It plays
    rvu-nicpf, whose driver has no aRFS: with it no queue could have RFS beside our filters."""
    *here, there = sorted(os.sched_getaffinity(0))
    with _pair(len(here), "rvu-nicpf", arfs=0) as nic:
        for index, cpu in enumerate(here):
            nic.set_queue_cpu(index, cpu)
        for irq, name in actions().items():
            if name.startswith(f"{PEER_DEVICE}-"):
                set_affinity(irq, {there})
        yield _bed(nic, tuple(here), "strict", (there,), arfs=False)


@contextlib.contextmanager
def counted_bed(clients: int = 2) -> Iterator[Bed]:
    """A queue with its interrupt on each CPU but the last ones, which are the remote host's and
    take its interrupts."""
    cpus = sorted(os.sched_getaffinity(0))
    here, there = cpus[:-clients], cpus[-clients:]
    with _pair(len(here), max_queues=len(here), dma=1) as nic:
        for index, cpu in enumerate(here):
            nic.set_queue_cpu(index, cpu)
        theirs = [irq for irq, name in actions().items() if name.startswith(f"{PEER_DEVICE}-")]
        for number, irq in enumerate(sorted(theirs)):
            set_affinity(irq, {there[number % clients]})
        yield _bed(nic, tuple(here), "strict", tuple(there))


@contextlib.contextmanager
def threaded_bed() -> Iterator[Bed]:
    """Two queues, each polled by a thread on a CPU of its own. Interrupts are taken on a third,
    the one that is spare: an emulated CPU may stand still between a frame's classification and its
    interrupt (docs/internals/ordering.md, H1), but not while the mover has the CPU of both."""
    with _pair(len(THREADS)) as nic:
        Path(f"/sys/class/net/{DEVICE}/threaded").write_text("1")
        for queue, cpu in zip(nic.queues(), THREADS, strict=True):
            nic.set_queue_cpu(queue.index, cpu)
        bed = _bed(nic, THREADS, "strict", (SHARED,), "NAPI threads")
        _interrupt(bed, (SHARED,) * len(THREADS))
        yield bed


@contextlib.contextmanager
def interrupts_along(bed: Bed) -> Iterator[None]:
    """Interrupts of `threaded_bed` on the CPUs of the threads: aRFS finds the queue of a CPU by
    where its interrupt goes (rx_cpu_rmap)."""
    _interrupt(bed, bed.cpus)
    try:
        yield
    finally:
        _interrupt(bed, (SHARED,) * len(bed.cpus))


def _interrupt(bed: Bed, cpus: tuple[int, ...]) -> None:
    with bed.open() as nic:
        for queue, cpu in zip(nic.queues(), cpus, strict=True):
            if queue.irq is not None:
                set_affinity(queue.irq, {cpu})


def kernel_filters(bed: Bed) -> int:
    """How many filters of aRFS are in the NIC. ethtool lists none of them; the driver counts."""
    counters = succeed("ethtool", "-S", bed.device)
    (found,) = re.findall(r"^ +arfs_rules: (\d+)$", counters, re.MULTILINE)
    return int(found)
