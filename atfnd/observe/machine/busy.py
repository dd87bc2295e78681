# SPDX-License-Identifier: GPL-2.0-or-later
"""How long each CPU was busy, and with the network's softirqs: atfnd/bpf/programs/busy.bpf.c. And
handoffs: how often one interrupted another to have it take packets over, as RPS and RFS do.

It costs some 50 ns a context switch and a softirq while it runs, so it runs during a measurement
only. OSError: the kernel refuses the program. Handoffs are in /proc/net/softnet_stat, a line a CPU
in hexadecimal (net/core/net-procfs.c, softnet_seq_show).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from atfnd.bpf import _bpf
from atfnd.bpf.layout import layout

__all__ = ["BusyCpus", "BusyTimes", "handoffs"]


class BusyTimes(NamedTuple):
    """By CPU. One that has not switched threads yet is missing: it may idle or not."""

    busy_ns: dict[int, int]  # since an arbitrary moment
    network_ns: dict[int, int]


class BusyCpus:
    """Counts until `close`."""

    def __init__(self) -> None:
        self._counter = _bpf.Busy()
        self._layout = layout("busy", "busy_time")

    def read(self) -> BusyTimes:
        """Up to now."""
        now_ns, raw = time.monotonic_ns(), self._counter.read()
        busy_ns, network_ns = {}, {}
        for cpu, row in enumerate(self._layout.codec.iter_unpack(raw)):
            said = dict(zip(self._layout.fields, row, strict=True))
            if not said["switches"]:
                continue
            since_ns = said["idle_since_ns"]
            idle_ns = said["idle_ns"] + (max(0, now_ns - since_ns) if since_ns else 0)
            busy_ns[cpu] = now_ns - idle_ns + said["over_idle_ns"]
            network_ns[cpu] = said["network_ns"]
        return BusyTimes(busy_ns, network_ns)

    def close(self) -> None:
        self._counter.close()


_RECEIVED_RPS = 9  # column


def handoffs(root: str = "/proc") -> int | None:
    """Since boot, of all CPUs. None: the kernel has no such column."""
    try:
        rows = [line.split() for line in Path(f"{root}/net/softnet_stat").read_text().splitlines()]
    except FileNotFoundError:
        return None
    if any(len(row) <= _RECEIVED_RPS for row in rows):
        return None
    return sum(int(row[_RECEIVED_RPS], 16) for row in rows)
