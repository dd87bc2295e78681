# SPDX-License-Identifier: GPL-2.0-or-later
"""What the benches compare on one NIC: RSS alone, RFS, and atfnd.

RFS is set up as Documentation/networking/scaling.rst says: a global flow table of 32768 entries
(net.core.rps_sock_flow_entries, machine-wide, restored afterwards), an equal part of it for each
queue (rps_flow_cnt), and every CPU in each queue's rps_cpus.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from bench.bed import Bed
from bench.children import child
from bench.daemon import FOLLOW_TCP, Daemon, daemon

__all__ = ["CONTENDERS", "atfnd", "rfs", "rss"]

FLOW_ENTRIES = 32768
SYSCTL = Path("/proc/sys/net/core/rps_sock_flow_entries")

Contender = Callable[[Bed], AbstractContextManager[Daemon | None]]


@contextlib.contextmanager
def rss(bed: Bed) -> Iterator[None]:
    """The NIC's hash and nothing else."""
    bed.clear_rules()
    yield


def _each_queue(bed: Bed, file: str, value: str) -> None:
    # sysfs shows a namespace's devices only to a mount made there, which `ip netns exec` does
    script = f"for q in /sys/class/net/r0/queues/rx-*; do echo {value} > $q/{file} || exit 1; done"
    with child("ip", "netns", "exec", bed.host, "sh", "-c", script) as writer:
        writer.wait(10)


@contextlib.contextmanager
def rfs(bed: Bed) -> Iterator[None]:
    """Receive flow steering in software, on top of RSS."""
    bed.clear_rules()
    before = SYSCTL.read_text()
    with contextlib.ExitStack() as undo:
        undo.callback(SYSCTL.write_text, before)
        SYSCTL.write_text(str(FLOW_ENTRIES))
        undo.callback(_each_queue, bed, "rps_flow_cnt", "0")
        _each_queue(bed, "rps_flow_cnt", str(FLOW_ENTRIES // len(bed.cpus)))
        undo.callback(_each_queue, bed, "rps_cpus", "0")
        _each_queue(bed, "rps_cpus", f"{sum(1 << cpu for cpu in bed.cpus):x}")
        yield


@contextlib.contextmanager
def atfnd(bed: Bed, config: str = FOLLOW_TCP) -> Iterator[Daemon]:
    """The daemon, armed on the NIC."""
    bed.clear_rules()
    with daemon(bed.name, config) as running:
        yield running


CONTENDERS: dict[str, Contender] = {"rss": rss, "rfs": rfs, "atfnd": atfnd}
