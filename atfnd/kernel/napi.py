# SPDX-License-Identifier: GPL-2.0-or-later
"""NAPI instances of a network device, and the threads that poll them.

Reads the generic netlink family netdev, napi-get (Documentation/netlink/specs/netdev.yaml;
net/core/netdev-genl.c). Writes the scheduling of a NAPI thread (sched(7)).
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from typing import NamedTuple

from atfnd.kernel.netlink import DUMP, Netlink, attribute, attributes, generic_family

__all__ = ["Napi", "NapiFamily", "make_realtime", "thread_cpus", "thread_realtime"]

NETLINK_GENERIC = 16
NETDEV_CMD_NAPI_GET = 11
NAPI_IFINDEX, NAPI_ID, NAPI_IRQ, NAPI_PID = 1, 2, 3, 4
NAPI_GRO_FLUSH_TIMEOUT, NAPI_THREADED = 6, 8
NOT_SAID = {errno.EOPNOTSUPP, errno.ENOENT}

_index = struct.Struct("=I")


class Napi(NamedTuple):
    """One NAPI instance as the kernel describes it now."""

    id: int
    ifindex: int
    irq: int | None
    pid: int | None  # its thread, when polled by one
    threaded: bool | None  # None: a kernel before 6.17 does not say
    gro_flush_timeout_ns: int | None = None  # None: a kernel before 6.13 does not say


class NapiFamily:
    """A netdev netlink socket in the namespace at `netns`."""

    def __init__(self, netns: str | None = None) -> None:
        self._netlink = Netlink(NETLINK_GENERIC, netns)
        self._family = generic_family(self._netlink, "netdev")

    def close(self) -> None:
        self._netlink.close()

    def napis(self, ifindex: int) -> list[Napi] | None:
        """The device's NAPI instances by ascending id, as far as it is told (`napi_threads.polled`
        knows more); none while it is down. None: a kernel before 6.8. OSError(ENODEV)."""
        found = self._dump(NETDEV_CMD_NAPI_GET, attribute(NAPI_IFINDEX, _index.pack(ifindex)))
        return None if found is None else sorted(map(_napi, found))

    def _dump(self, command: int, request: bytes) -> list[dict[int, bytes]] | None:
        """None: the kernel does not know the command, or has nothing to say."""
        message = struct.pack("=BBH", command, 1, 0) + request
        try:
            answers = self._netlink.request(self._family, message, DUMP)
        except OSError as refusal:
            if refusal.errno not in NOT_SAID:
                raise
            return None
        return [attributes(answer, at=4) for answer in answers]


def _napi(found: dict[int, bytes]) -> Napi:
    pid = _number(found, NAPI_PID)
    # A thread outlives its use (before 6.17), so it alone says nothing; none is no.
    threaded = bool(_number(found, NAPI_THREADED)) if NAPI_THREADED in found else None
    ids = _index.unpack(found[NAPI_ID])[0], _index.unpack(found[NAPI_IFINDEX])[0]
    return Napi(
        *ids,
        _number(found, NAPI_IRQ),
        pid,
        False if pid is None else threaded,
        _number(found, NAPI_GRO_FLUSH_TIMEOUT),
    )


def _number(found: dict[int, bytes], kind: int) -> int | None:
    return int.from_bytes(found[kind], sys.byteorder) if kind in found else None


def thread_cpus(pid: int) -> frozenset[int]:
    """CPUs a NAPI thread may run on; ProcessLookupError when it is gone."""
    return frozenset(os.sched_getaffinity(pid))


def thread_realtime(pid: int) -> bool:
    return os.sched_getscheduler(pid) == os.SCHED_FIFO


def make_realtime(pid: int, cpu: int | None, priority: int) -> None:
    """Make a NAPI thread as prompt as an interrupt: SCHED_FIFO, and confined to `cpu` if given.

    OSError(EINVAL) for a CPU that is not online; ProcessLookupError when the thread is gone.
    """
    if cpu is not None:
        os.sched_setaffinity(pid, {cpu})
    os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(priority))
