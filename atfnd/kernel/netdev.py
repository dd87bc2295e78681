# SPDX-License-Identifier: GPL-2.0-or-later
"""Receive queues of a network device: their NAPI, who else uses them, what they counted.

Reads the generic netlink family netdev: queue-get (6.8), qstats-get (6.9)
(Documentation/netlink/specs/netdev.yaml; net/core/netdev-genl.c). A driver links queues to NAPIs
(netif_queue_set_napi) or does not; the kernel says nothing of a device that is down.
"""

from __future__ import annotations

import struct
import sys
from typing import NamedTuple

from atfnd.kernel.napi import NapiFamily
from atfnd.kernel.netlink import attribute

__all__ = ["NetdevFamily", "QueueCounters", "ReceiveQueue"]

NETDEV_CMD_QUEUE_GET, NETDEV_CMD_QSTATS_GET = 10, 12
QUEUE_ID, QUEUE_IFINDEX, QUEUE_TYPE, QUEUE_NAPI_ID = 1, 2, 3, 4
QUEUE_USERS = {5: "devmem TCP", 6: "io_uring zero-copy receive", 7: "an AF_XDP socket"}
QSTATS_IFINDEX, QSTATS_QUEUE_TYPE, QSTATS_QUEUE_ID, QSTATS_SCOPE = 1, 2, 3, 4
QSTATS_RX_PACKETS, QSTATS_RX_BYTES = 8, 9
SCOPE_QUEUE = 1
RX = 0

_index = struct.Struct("=I")


class ReceiveQueue(NamedTuple):
    queue: int
    napi_id: int | None
    user: str | None  # who takes its packets away from the sockets


class QueueCounters(NamedTuple):
    queue: int
    packets: int | None
    bytes: int | None


class NetdevFamily(NapiFamily):
    """As `NapiFamily`, and its queues."""

    def receive_queues(self, ifindex: int) -> list[ReceiveQueue] | None:
        """In index order; empty while the device is down; None: a kernel before 6.8."""
        found = self._dump(NETDEV_CMD_QUEUE_GET, attribute(QUEUE_IFINDEX, _index.pack(ifindex)))
        if found is None:
            return None
        return sorted(_queue(queue) for queue in found if _receives(queue, QUEUE_TYPE))

    def counters(self, ifindex: int) -> list[QueueCounters] | None:
        """What each receive queue was given since the device came up, in index order; None: the
        driver counts for ethtool -S only."""
        request = attribute(QSTATS_IFINDEX, _index.pack(ifindex))
        request += attribute(QSTATS_SCOPE, _index.pack(SCOPE_QUEUE))
        found = self._dump(NETDEV_CMD_QSTATS_GET, request)
        if found is None:
            return None
        return sorted(
            QueueCounters(
                _number(queue[QSTATS_QUEUE_ID]),
                _maybe(queue.get(QSTATS_RX_PACKETS)),
                _maybe(queue.get(QSTATS_RX_BYTES)),
            )
            for queue in found
            if _receives(queue, QSTATS_QUEUE_TYPE)
        )


def _receives(found: dict[int, bytes], kind: int) -> bool:
    return _number(found[kind]) == RX


def _queue(found: dict[int, bytes]) -> ReceiveQueue:
    user = next((user for kind, user in QUEUE_USERS.items() if kind in found), None)
    return ReceiveQueue(_number(found[QUEUE_ID]), _maybe(found.get(QUEUE_NAPI_ID)), user)


def _number(value: bytes) -> int:
    return int.from_bytes(value, sys.byteorder)


def _maybe(value: bytes | None) -> int | None:
    return None if value is None else _number(value)
