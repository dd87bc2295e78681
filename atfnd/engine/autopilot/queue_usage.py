# SPDX-License-Identifier: GPL-2.0-or-later
"""From two looks at queues and CPUs to the windows of the autopilot. Pure.

What a queue costs is the softirq time of its CPU, and that of the NAPI threads there, and of the
threads that use its flows: an epoll that polls does it in one of those. Where no thread is known,
or two windows have not the same, all that CPUs were busy with counts. A wait is the time that these
threads were ready while another one had the CPU (`trials.usage`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from atfnd.engine.autopilot.pilot import QueueWindow
from atfnd.engine.table.memory import Memory
from atfnd.engine.trials.usage import network_spent, threads_spent
from atfnd.engine.trials.window import Window
from atfnd.model import CpuTime, NicView, Reception, Thread

__all__ = ["QueueCount", "QueuesReading", "queue_windows", "threads_of"]


@dataclass(frozen=True, slots=True)
class QueueCount:
    """Of one queue, since its NIC came up. None: the driver does not say."""

    cpu: int | None  # that it is delivered on
    packets: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class QueuesReading:
    """What was read at one moment."""

    time: CpuTime
    counts: Mapping[tuple[str, int], QueueCount]  # by NIC and queue


def queue_windows(
    before: QueuesReading, now: QueuesReading, nic: NicView, asking: Iterable[int], memory: Memory
) -> dict[int, QueueWindow]:
    """By queue, what it received between the looks; of those that were read both times."""
    used = threads_of(nic.name, memory)
    return {
        queue: _window(before, now, nic, queue, used.get(queue, {}), memory)
        for queue in asking
        if (nic.name, queue) in before.counts and (nic.name, queue) in now.counts
    }


def threads_of(nic: str, memory: Memory) -> dict[int, dict[Thread, int]]:
    """By queue, the threads that use its flows, and on which CPU they ran last."""
    found: dict[int, dict[Thread, int]] = {}
    for flow in memory.table:
        if flow.nic == nic and flow.target_queue is not None and flow.thread is not None:
            found.setdefault(flow.target_queue, {})[flow.thread] = flow.app_cpu
    return found


def _window(
    before: QueuesReading,
    now: QueuesReading,
    nic: NicView,
    queue: int,
    threads: Mapping[Thread, int],
    memory: Memory,
) -> QueueWindow:
    known = memory.nics[nic.name].reception
    then, count = (each.counts[nic.name, queue] for each in (before, now))
    void, packets, carried = _carried(then, count)
    void = void or known.why_not.get(queue)
    if memory.trials.trying(nic.name):
        void = void or "another trial goes on: where its flows should be delivered"
    read = before.time.ran_ns.keys() & now.time.ran_ns.keys()
    on_cpu = {thread.tid: cpu for thread, cpu in threads.items() if thread.tid in read}
    network = network_spent(before.time, now.time, nic)
    apps = threads_spent(before.time, now.time, on_cpu.items())
    busy_ns = _busy(before.time, now.time)
    state = known.auto.get(queue)
    cpu = -1 if count.cpu is None else count.cpu
    used = Window(
        began_ns=before.time.at_ns,
        ended_ns=now.time.at_ns,
        bytes=carried,
        spent_ns=busy_ns,
        waited_ns={each: max(0, network.waited_ns[each]) for each in busy_ns},
        app_cpus=frozenset(threads.values()),
        rx_cpus=frozenset({cpu}),
        flows=frozenset(),
        there=state is not None and Reception.found(nic.settings, queue) == state.reception,
        void=void,
    )
    if not on_cpu:
        return QueueWindow(cpu, packets, used)
    own = used._replace(
        spent_ns={
            each: max(0, min(network.ran_ns[each] + apps.ran_ns[each], most_ns))
            for each, most_ns in busy_ns.items()
        },
        waited_ns={
            each: max(0, network.waited_ns[each] + apps.waited_ns[each]) for each in busy_ns
        },
    )
    return QueueWindow(cpu, packets, used, own, frozenset(on_cpu))


def _busy(before: CpuTime, now: CpuTime) -> dict[int, int]:
    """By CPU: what was not idle, which the kernel counts exactly (`placement.load`)."""
    passed_ns = now.at_ns - before.at_ns
    return {
        cpu: max(0, min(passed_ns, passed_ns - idle_ns + before.idle_ns[cpu]))
        for cpu, idle_ns in now.idle_ns.items()
        if cpu in before.idle_ns
    }


def _carried(then: QueueCount, now: QueueCount) -> tuple[str | None, int, int]:
    """Why nothing can be said, the packets, and the bytes."""
    if now.cpu is None:
        return "its interrupt is not confined to one CPU", 0, 0
    if now.packets is None or now.bytes is None or then.packets is None or then.bytes is None:
        return "its driver does not count packets and bytes by queue", 0, 0
    packets, carried = now.packets - then.packets, now.bytes - then.bytes
    if packets < 0 or carried < 0:
        return "its counters began anew", 0, 0
    return None if then.cpu == now.cpu else "it came to another CPU", packets, carried
