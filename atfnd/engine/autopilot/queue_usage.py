# SPDX-License-Identifier: GPL-2.0-or-later
"""From two looks at queues and CPUs to the windows of the autopilot. Pure.

What a queue costs is all that its CPU was busy with, and the CPUs of the threads that use its
flows: which of it the queue caused, nothing tells at once for interrupts, NAPI threads and epolls
that poll. Busy is what is not idle, which the kernel counts exactly (`placement.load`). A wait is
the time that the NAPI thread was ready while another thread had the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from atfnd.engine.autopilot.pilot import QueueWindow
from atfnd.engine.table.memory import Memory
from atfnd.engine.trials.window import Window
from atfnd.model import CpuTime, FlowKey, NicView, Queue, Reception

__all__ = ["QueueCount", "QueuesReading", "queue_windows"]


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
    app_cpus: dict[int, set[int]] = {}
    flows: dict[int, set[FlowKey]] = {}
    for flow in memory.table:
        if flow.nic == nic.name and flow.target_queue is not None:
            app_cpus.setdefault(flow.target_queue, set()).add(flow.app_cpu)
            flows.setdefault(flow.target_queue, set()).add(flow.key)
    found = {}
    for queue in nic.queues:
        name = nic.name, queue.index
        if queue.index in asking and name in before.counts and name in now.counts:
            used = app_cpus.get(queue.index, ())
            found[queue.index] = _window(before, now, nic, queue, frozenset(used), memory)
    return found


def _window(
    before: QueuesReading,
    now: QueuesReading,
    nic: NicView,
    queue: Queue,
    app_cpus: frozenset[int],
    memory: Memory,
) -> QueueWindow:
    known = memory.nics[nic.name].reception
    then, count = (each.counts[nic.name, queue.index] for each in (before, now))
    void, packets, carried = _carried(then, count)
    void = void or known.why_not.get(queue.index)
    if memory.trials.trying(nic.name):
        void = void or "another trial goes on: where its flows should be delivered"
    passed_ns = now.time.at_ns - before.time.at_ns
    cpu = -1 if count.cpu is None else count.cpu
    idle_ns = {
        each: idle - before.time.idle_ns[each]
        for each, idle in now.time.idle_ns.items()
        if each in before.time.idle_ns
    }
    waited = {} if queue.pid is None else _waited(before.time, now.time, queue.pid, cpu)
    state = known.auto.get(queue.index)
    used = Window(
        began_ns=before.time.at_ns,
        ended_ns=now.time.at_ns,
        bytes=carried,
        spent_ns={each: max(0, min(passed_ns, passed_ns - idle)) for each, idle in idle_ns.items()},
        waited_ns=waited,
        app_cpus=app_cpus,
        rx_cpus=frozenset({cpu}),
        flows=frozenset(),
        there=state is not None and Reception.found(nic.settings, queue.index) == state.reception,
        void=void,
    )
    return QueueWindow(cpu, packets, used)


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


def _waited(before: CpuTime, now: CpuTime, tid: int, cpu: int) -> dict[int, int]:
    if tid not in before.waited_ns or tid not in now.waited_ns:
        return {}
    return {cpu: max(0, now.waited_ns[tid] - before.waited_ns[tid])}
