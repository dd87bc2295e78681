# SPDX-License-Identifier: GPL-2.0-or-later
"""How long each CPU was busy, and with the network's softirqs: atfnd/bpf/programs/busy.bpf.c.

It costs some 50 ns a context switch and a softirq while it runs, so it runs during a measurement
only. OSError: the kernel refuses the program.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from atfnd.bpf import _bpf
from atfnd.bpf.layout import layout

__all__ = ["BusyCpus", "BusyTimes"]


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
