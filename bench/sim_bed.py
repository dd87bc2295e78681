# SPDX-License-Identifier: GPL-2.0-or-later
"""The test driver's pair of ports as a bed, inside the guest (tests/guest): sim0 is the NIC under
test, in our own namespace; sim1 is the remote host's, in the namespace `peer`.

Loads and unloads the module simnic; queue N's interrupt goes to CPU N.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from atfnd.nic.driver import open_nic
from bench.bed import Bed, succeed
from tests.guest.simpair import HOST, simnic

__all__ = ["DEVICE", "TABLE", "sim_bed"]

DEVICE, PEER_DEVICE, PEER = "sim0", "sim1", "peer"
QUEUES = 4
TABLE = 8192  # filter slots
RING = 1024


@contextlib.contextmanager
def sim_bed() -> Iterator[Bed]:
    """One NIC of a queue and an interrupt per CPU. Its filters have locations, and one at a
    location in use is replaced at once, as on ixgbe, hns3 and octeontx2."""
    with simnic(queues=QUEUES, table=TABLE, ring=RING, location="explicit", overwrite="in_place"):
        # there is no wire to cut a frame for: TCP's 64 KiB would arrive as one packet
        succeed("ip", "netns", "exec", PEER, "ethtool", "-K", PEER_DEVICE, "tso", "off")
        with contextlib.closing(open_nic(DEVICE)) as nic:
            for index in range(QUEUES):
                nic.set_queue_cpu(index, index)
            ifindex = nic.ifindex
        cpus = tuple(range(QUEUES))
        # no NAPI has a thread here: `strict` could move no flow that lives already
        yield Bed(
            DEVICE, DEVICE, None, PEER, HOST[socket.AF_INET], ifindex, cpus, "immediate", arfs=True
        )
