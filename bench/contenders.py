# SPDX-License-Identifier: GPL-2.0-or-later
"""What the benches compare on one NIC: RSS alone, RFS, accelerated RFS where the NIC has it, atfnd.

RFS and aRFS are set up as Documentation/networking/scaling.rst says: a global flow table of 32768
entries (net.core.rps_sock_flow_entries, restored afterwards; it is machine-wide, and only the
machine's first network namespace has it), an equal part of it for each queue (rps_flow_cnt), and
every CPU in each queue's rps_cpus. With the feature ntuple-filters on, the kernel also writes a
filter for each flow it steers (net/core/dev.c, set_rps_cpu), which makes it aRFS; plain RFS on such
a NIC has the feature off, and turning it off empties the table.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from atfnd.kernel.system.cpulist import format_cpumask
from bench.bed import Bed, succeed
from bench.daemon import Daemon, daemon

__all__ = ["SYSCTL", "Contender", "arfs", "atfnd", "in_turn", "rfs", "rss"]

FLOW_ENTRIES = 32768
SYSCTL = Path("/proc/sys/net/core/rps_sock_flow_entries")

Contender = Callable[[Bed], AbstractContextManager[Daemon | None]]
T = TypeVar("T")


def in_turn(every: Iterable[T], turn: int) -> list[T]:
    """All of them; who begins changes with the round, so that nobody always runs after the same."""
    found = list(every)
    first = turn % len(found)
    return [*found[first:], *found[:first]]


@contextlib.contextmanager
def rss(bed: Bed) -> Iterator[None]:
    """The NIC's hash and nothing else."""
    bed.clear_filters()
    yield


def _inside(bed: Bed, *command: str) -> str:
    # sysfs shows a namespace's devices only to a mount made there, which `ip netns exec` does
    inside = ("ip", "netns", "exec", bed.host) if bed.host else ()
    return succeed(*inside, *command)


def _each_queue(bed: Bed, file: str, value: str) -> None:
    queues = f"/sys/class/net/{bed.device}/queues/rx-*"
    _inside(bed, "sh", "-c", f"for q in {queues}; do echo {value} > $q/{file} || exit 1; done")


def _put_back(bed: Bed, values: dict[str, str]) -> None:
    """Write files by their paths, with what was in them."""
    lines = (f"echo {value} > {path} || exit 1" for path, value in values.items())
    _inside(bed, "sh", "-c", "\n".join(lines))


def _of_queues(bed: Bed, file: str) -> dict[str, str]:
    """What is in a file of each queue, by path."""
    found = _inside(bed, "sh", "-c", f"grep . /sys/class/net/{bed.device}/queues/rx-*/{file}")
    return {path: value for path, _, value in (line.partition(":") for line in found.split())}


def _ntuple(bed: Bed, state: str) -> None:
    _inside(bed, "ethtool", "-K", bed.device, "ntuple", state)


@contextlib.contextmanager
def _flow_tables(bed: Bed) -> Iterator[None]:
    before = SYSCTL.read_text()
    with contextlib.ExitStack() as undo:
        undo.callback(SYSCTL.write_text, before)
        SYSCTL.write_text(str(FLOW_ENTRIES))
        undo.callback(_each_queue, bed, "rps_flow_cnt", "0")
        _each_queue(bed, "rps_flow_cnt", str(FLOW_ENTRIES // len(bed.cpus)))
        undo.callback(_put_back, bed, _of_queues(bed, "rps_cpus"))
        _each_queue(bed, "rps_cpus", format_cpumask(bed.cpus))
        yield


@contextlib.contextmanager
def rfs(bed: Bed) -> Iterator[None]:
    """Receive flow steering in software, on top of RSS."""
    bed.clear_filters()
    with contextlib.ExitStack() as undo:
        if bed.arfs:
            undo.callback(_ntuple, bed, "on")
            _ntuple(bed, "off")
        undo.enter_context(_flow_tables(bed))
        yield


@contextlib.contextmanager
def arfs(bed: Bed) -> Iterator[None]:
    """Receive flow steering by filters that the kernel writes; afterwards none of them is left."""
    bed.clear_filters()
    _ntuple(bed, "on")
    with contextlib.ExitStack() as undo:
        undo.callback(_ntuple, bed, "on")
        undo.callback(_ntuple, bed, "off")
        undo.enter_context(_flow_tables(bed))
        yield


@contextlib.contextmanager
def atfnd(bed: Bed, config: str) -> Iterator[Daemon]:
    """The daemon, armed on the NIC."""
    bed.clear_filters()
    with daemon(bed.nic, config) as running:
        yield running
