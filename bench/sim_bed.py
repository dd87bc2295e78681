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
import socket
from collections.abc import Iterator

from atfnd.kernel.interrupts.irq import actions, set_affinity
from atfnd.nic.driver import open_nic
from bench.bed import Bed, succeed
from tests.guest.simpair import HOST, simnic
from tests.guest.simpair import PEER as THERE

__all__ = ["counted_bed"]

DEVICE, PEER_DEVICE, PEER = "sim0", "sim1", "peer"
TABLE = 8192  # filter slots
RING = 1024


@contextlib.contextmanager
def counted_bed(clients: int = 2) -> Iterator[Bed]:
    """A queue with its interrupt on each CPU but the last ones, which are the remote host's and
    take its interrupts."""
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    here, there = cpus[:-clients], cpus[-clients:]
    made = simnic(
        queues=len(here), table=TABLE, ring=RING, location="explicit", overwrite="in_place",
        drvname="hns3", max_queues=len(here), dma=1,
    )  # fmt: skip
    with made:
        # there is no wire to cut a frame for: TCP's 64 KiB would arrive as one packet
        succeed("ip", "netns", "exec", PEER, "ethtool", "-K", PEER_DEVICE, "tso", "off")
        with contextlib.closing(open_nic(DEVICE)) as nic:
            for index, cpu in enumerate(here):
                nic.set_queue_cpu(index, cpu)
            theirs = [irq for irq, name in actions().items() if name.startswith(f"{PEER_DEVICE}-")]
            for number, irq in enumerate(sorted(theirs)):
                set_affinity(irq, {there[number % clients]})
            yield Bed(
                DEVICE, DEVICE, None, PEER, HOST[socket.AF_INET], nic.ifindex, here, arfs=True,
                peer_address=THERE[socket.AF_INET], spare=there,
            )  # fmt: skip
