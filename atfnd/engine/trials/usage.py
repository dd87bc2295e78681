# SPDX-License-Identifier: GPL-2.0-or-later
"""From two looks at CPUs, threads, sockets and queues to the windows of trials. Pure.

What the network costs on a CPU is its softirq time and that of the NAPI threads of the NIC's queues
there; what its users cost is the time of their threads. Without CONFIG_IRQ_TIME_ACCOUNTING a thread
that is interrupted by softirqs is charged for them, too: so a CPU never counts for more than it was
busy. A wait is the time that these threads were ready while another had the CPU; the kernel does
not say how long softirqs waited.

An epoll that polls does a queue's work in a thread that uses its flows. Where no such thread is
known, or two windows have not the same, all that CPUs were busy with counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from atfnd.compare.window import Window
from atfnd.engine.placement.auto import placement_of
from atfnd.engine.placement.place import right
from atfnd.engine.table.memory import Memory
from atfnd.engine.trials.subjects import Application
from atfnd.model import CpuTime, Flow, FlowKey, FlowState, NicView, Reception, Thread
from atfnd.model.reason import Code, Why

__all__ = ["QueueCount", "UsageReading", "queue_windows", "threads_of", "windows"]


@dataclass(frozen=True, slots=True)
class QueueCount:
    """Of one queue, since its NIC came up. None: the driver does not say."""

    cpu: int | None  # that it is delivered on
    packets: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class UsageReading:
    """What was read at one moment."""

    time: CpuTime
    bytes: Mapping[FlowKey, int] = field(default_factory=dict)  # of the applications' flows
    lost: int = 0  # events, since the start
    counts: Mapping[tuple[str, int], QueueCount] = field(default_factory=dict)  # by NIC and queue


class _Spent(NamedTuple):
    """Between two looks, by CPU."""

    ran_ns: defaultdict[int, int]
    waited_ns: defaultdict[int, int]


def windows(
    before: UsageReading,
    now: UsageReading,
    nic: NicView,
    flows_of: Mapping[Application, Sequence[Flow]],
    memory: Memory,
) -> dict[Application, Window]:
    """For each application on this NIC, what it did between the looks."""
    then_ns = before.time.busy_ns
    busy_ns = {cpu: ns - then_ns.get(cpu, ns) for cpu, ns in now.time.busy_ns.items()}
    network = _network_spent(before.time, now.time, nic)
    known = before.time.ran_ns.keys() & now.time.ran_ns.keys()
    found = {}
    for application, flows in flows_of.items():
        if application.nic != nic.name:
            continue
        keys = frozenset(flow.key for flow in flows)
        void = Code.EVENTS_LOST() if now.lost != before.lost else None
        if not keys <= before.bytes.keys() & now.bytes.keys():
            void = void or Code.FLOWS_CHANGED()
        on_cpu = {flow.thread.tid: flow.app_cpu for flow in flows if flow.thread is not None}
        if not on_cpu.keys() <= known:
            void = void or Code.TIMES_UNKNOWN()
        own = _threads_spent(before.time, now.time, on_cpu.items())
        spent_ns, waited_ns = _charged(busy_ns, network, own)
        led_to = [_led_to(flow, nic, memory) for flow in flows]
        found[application] = Window(
            began_ns=before.time.at_ns,
            ended_ns=now.time.at_ns,
            bytes=max(0, sum(now.bytes.get(key, 0) - before.bytes.get(key, 0) for key in keys)),
            spent_ns=spent_ns,
            waited_ns=waited_ns,
            app_cpus=frozenset(on_cpu.values()),
            rx_cpus=frozenset(cpu for cpu in led_to if cpu is not None),
            there=None not in led_to,
            void=void,
            flows=keys,
        )
    return found


def queue_windows(
    before: UsageReading, now: UsageReading, nic: NicView, asking: Iterable[int], memory: Memory
) -> dict[int, Window]:
    """By queue, what it received between the looks; of those that were read both times."""
    received, used = memory.nics[nic.name].reception, threads_of(nic.name, memory)
    network, busy_ns = _network_spent(before.time, now.time, nic), _busy(before.time, now.time)
    of_all = busy_ns, {cpu: max(0, network.waited_ns[cpu]) for cpu in busy_ns}
    known, found = before.time.ran_ns.keys() & now.time.ran_ns.keys(), {}
    beside = memory.nics[nic.name].trials.trying
    for queue in asking:
        then, count = (each.counts.get((nic.name, queue)) for each in (before, now))
        if then is None or count is None:
            continue
        void, packets, carried = _received(then, count)
        if void is None and queue in received.why_not:
            void = received.why_not[queue]
        if beside:
            void = void or Code.OTHER_TRIAL()
        threads = used.get(queue, {})
        on_cpu = {thread.tid: cpu for thread, cpu in threads.items() if thread.tid in known}
        own = _threads_spent(before.time, now.time, on_cpu.items())
        spent_ns, waited_ns = _charged(busy_ns, network, own) if on_cpu else of_all
        found[queue] = Window(
            began_ns=before.time.at_ns,
            ended_ns=now.time.at_ns,
            bytes=carried,
            spent_ns=spent_ns,
            waited_ns=waited_ns,
            app_cpus=frozenset(threads.values()),
            rx_cpus=frozenset({-1 if count.cpu is None else count.cpu}),
            there=Reception.found(nic.settings, queue) == received.auto.state(queue).side,
            void=void,
            packets=packets,
            threads=frozenset(on_cpu),
            of_all=of_all,
        )
    return found


def threads_of(nic: str, memory: Memory) -> dict[int, dict[Thread, int]]:
    """By queue, the threads that use its flows, and on which CPU they ran last."""
    found: dict[int, dict[Thread, int]] = {}
    for flow in memory.table:
        if flow.nic == nic and flow.target_queue is not None and flow.thread is not None:
            found.setdefault(flow.target_queue, {})[flow.thread] = flow.app_cpu
    return found


def _charged(
    busy_ns: Mapping[int, int], network: _Spent, own: _Spent
) -> tuple[dict[int, int], dict[int, int]]:
    """By CPU: what the network and these threads took, and how long the threads waited."""
    spent_ns, waited_ns = {}, {}
    for cpu, most_ns in busy_ns.items():
        spent_ns[cpu] = max(0, min(network.ran_ns[cpu] + own.ran_ns[cpu], most_ns))
        waited_ns[cpu] = max(0, network.waited_ns[cpu] + own.waited_ns[cpu])
    return spent_ns, waited_ns


def _network_spent(before: CpuTime, now: CpuTime, nic: NicView) -> _Spent:
    """Softirqs, and the NAPI threads of the queues."""
    threads = ((q.pid, q.cpu) for q in nic.queues if q.pid is not None and q.cpu is not None)
    spent = _threads_spent(before, now, threads)
    for cpu, softirq_ns in now.softirq_ns.items():
        spent.ran_ns[cpu] += softirq_ns - before.softirq_ns.get(cpu, softirq_ns)
    return spent


def _threads_spent(before: CpuTime, now: CpuTime, threads: Iterable[tuple[int, int]]) -> _Spent:
    """Each is a tid and its CPU. One that was not known before has spent nothing yet."""
    spent = _Spent(defaultdict(int), defaultdict(int))
    for tid, cpu in threads:
        for by_cpu, then, since in (
            (spent.ran_ns, before.ran_ns, now.ran_ns),
            (spent.waited_ns, before.waited_ns, now.waited_ns),
        ):
            total_ns = since.get(tid, 0)
            by_cpu[cpu] += total_ns - then.get(tid, total_ns)
    return spent


def _busy(before: CpuTime, now: CpuTime) -> dict[int, int]:
    """By CPU: what was not idle, which the kernel counts exactly (`placement.load`)."""
    passed_ns = now.at_ns - before.at_ns
    return {
        cpu: max(0, min(passed_ns, passed_ns - idle_ns + before.idle_ns[cpu]))
        for cpu, idle_ns in now.idle_ns.items()
        if cpu in before.idle_ns
    }


def _led_to(flow: Flow, nic: NicView, memory: Memory) -> int | None:
    """The CPU that a rule leads it to, if the placement in force asks for that CPU."""
    filtered = flow.location is not None or flow.state is FlowState.PORT
    queue = next((each for each in nic.queues if each.index == flow.target_queue), None)
    if not filtered or queue is None:
        return None
    placement = placement_of(flow, memory)
    fits = right(placement, flow.app_cpu, queue.cpu, flow.thread, memory)
    return queue.cpu if fits else None


def _received(then: QueueCount, now: QueueCount) -> tuple[Why | None, int, int]:
    """Why nothing can be said, the packets, and the bytes."""
    if now.cpu is None:
        return Code.NOT_CONFINED(), 0, 0
    if now.packets is None or now.bytes is None or then.packets is None or then.bytes is None:
        return Code.NOT_COUNTED(), 0, 0
    packets, carried = now.packets - then.packets, now.bytes - then.bytes
    if packets < 0 or carried < 0:
        return Code.COUNTED_ANEW(), 0, 0
    return None if then.cpu == now.cpu else Code.OTHER_CPU(), packets, carried
