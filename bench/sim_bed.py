# SPDX-License-Identifier: GPL-2.0-or-later
"""The test driver's pair of ports as a bed, inside the guest (tests/guest): sim0 is the NIC under
test, in our own namespace; sim1 is the remote host's, in the namespace `peer`.

Loads and unloads the module simnic; queue N's interrupt goes to CPU N.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from atfnd.nic.driver import open_nic
from bench.bed import Bed, succeed

__all__ = ["DEVICE", "sim_bed"]

DEVICE, PEER_DEVICE, PEER = "sim0", "sim1", "peer"
PAIR = Path(__file__).parents[1] / "tests/guest/pair.sh"
QUEUES = 4
TABLE = 4096  # filter slots
RING = 1024


@contextlib.contextmanager
def sim_bed() -> Iterator[Bed]:
    """One NIC of a queue and an interrupt per CPU. Its filters have locations, and one at a
    location in use is replaced at once, as on ixgbe, hns3 and octeontx2."""
    parameters = f"queues={QUEUES} table={TABLE} ring={RING} location=explicit overwrite=in_place"
    succeed("bash", str(PAIR), *parameters.split())
    try:
        # there is no wire to cut a frame for: TCP's 64 KiB would arrive as one packet
        succeed("ip", "netns", "exec", PEER, "ethtool", "-K", PEER_DEVICE, "tso", "off")
        (link,) = json.loads(succeed("ip", "-j", "addr", "show", DEVICE))
        address = next(a["local"] for a in link["addr_info"] if a["family"] == "inet")
        with contextlib.closing(open_nic(DEVICE)) as nic:
            for index in range(QUEUES):
                nic.set_queue_cpu(index, index)
        yield Bed(
            DEVICE, DEVICE, None, PEER, address, link["ifindex"], tuple(range(QUEUES)), arfs=True
        )
    finally:
        succeed("ip", "netns", "del", PEER)
        succeed("rmmod", "simnic")
