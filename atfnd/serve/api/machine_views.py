# SPDX-License-Identifier: GPL-2.0-or-later
"""CPUs, NUMA nodes and the time of CPUs as JSON objects (docs/api.md). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import TypedDict

from atfnd.model import Cpu, CpuTime, NapiTime, NicView, Node
from atfnd.serve.api.values import Count, shown

__all__ = ["CpuShown", "CpuTimesShown", "NodeShown", "cpu_time_view", "cpu_view", "node_view"]


class DeliveredShown(TypedDict):
    """A queue that is delivered on a CPU."""

    nic: str
    queue: int


class CpuShown(TypedDict):
    """A CPU, what it shares with others, and what is delivered on it."""

    cpu: Count
    online: bool
    node: int | None
    package: int | None
    core: int | None
    smt: list[int]
    llc: list[int]
    isolated: bool
    nohz_full: bool
    queues: list[DeliveredShown]


class NodeShown(TypedDict):
    """A NUMA node."""

    node: Count
    cpus: list[int]
    distances: dict[str, int]
    nics: list[str]


class BusyShown(TypedDict):
    """How long a CPU has been busy."""

    cpu: Count
    busy_ns: Count
    """All time except idle and stolen time."""
    softirq_ns: Count
    """The part in softirqs."""


class NapiThreadShown(TypedDict):
    """A thread that polls a queue; its time is not softirq time."""

    nic: str
    queue: Count
    cpu: int | None
    """Where the queue is delivered now."""
    ran_ns: Count


class CpuTimesShown(TypedDict):
    """Counters of every online CPU, and when they were read."""

    read_ns: int
    """CLOCK_MONOTONIC."""
    cpus: list[BusyShown]
    napi_threads: list[NapiThreadShown]


def cpu_view(cpu: Cpu, nics: Sequence[NicView]) -> CpuShown:
    """As sysfs shows it."""
    queues = [
        {"nic": nic.name, "queue": queue.index}
        for nic in nics
        for queue in nic.queues
        if queue.cpu == cpu.index
    ]
    return shown(CpuShown, cpu, cpu=cpu.index, queues=queues)


def cpu_time_view(spent: CpuTime, threads: Sequence[NapiTime]) -> CpuTimesShown:
    """Counters, and when they were read."""
    return {
        "read_ns": spent.at_ns,
        "cpus": [
            {"cpu": cpu, "busy_ns": busy_ns, "softirq_ns": spent.softirq_ns[cpu]}
            for cpu, busy_ns in sorted(spent.busy_ns.items())
        ],
        "napi_threads": [shown(NapiThreadShown, each) for each in threads],
    }


def node_view(node: Node, nics: Sequence[NicView]) -> NodeShown:
    """As sysfs shows it."""
    return {
        "node": node.index,
        "cpus": list(node.cpus),
        "distances": {str(other): distance for other, distance in node.distances.items()},
        "nics": [nic.name for nic in nics if nic.device.node == node.index],
    }
