# SPDX-License-Identifier: GPL-2.0-or-later
"""From two looks at CPUs, threads and sockets to the windows of the trials. Pure.

What the network costs on a CPU is its softirq time and that of the NAPI threads of the NIC's queues
there. Without CONFIG_IRQ_TIME_ACCOUNTING a thread that is interrupted by softirqs is charged for
them, too: so a CPU never counts for more than it was busy. A wait is the time that these threads
were ready while another had the CPU; the kernel does not say how long softirqs waited.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from atfnd.engine.placement.auto import placement_of
from atfnd.engine.placement.place import guest, right
from atfnd.engine.table.memory import Memory
from atfnd.engine.trials.trial import LLC
from atfnd.engine.trials.trials import Application
from atfnd.engine.trials.window import Window
from atfnd.model import CpuTime, Flow, FlowKey, FlowState, NicView

__all__ = ["Spent", "UsageReading", "network_spent", "threads_spent", "windows"]


@dataclass(frozen=True, slots=True)
class UsageReading:
    """What was read at one moment."""

    time: CpuTime
    bytes: Mapping[FlowKey, int]  # of the flows of all applications
    lost: int  # events, since the start


class Spent(NamedTuple):
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
    network = network_spent(before.time, now.time, nic)
    return {
        application: _window(before, now, nic, flows, network, memory)
        for application, flows in flows_of.items()
        if application.nic == nic.name
    }


def _window(
    before: UsageReading,
    now: UsageReading,
    nic: NicView,
    flows: Sequence[Flow],
    network: Spent,
    memory: Memory,
) -> Window:
    keys = frozenset(flow.key for flow in flows)
    void = "events were lost" if now.lost != before.lost else None
    if not keys <= before.bytes.keys() & now.bytes.keys():
        void = void or "its flows have changed"
    carried = sum(now.bytes.get(key, 0) - before.bytes.get(key, 0) for key in keys)
    on_cpu = {flow.thread.tid: flow.app_cpu for flow in flows if flow.thread is not None}
    if not on_cpu.keys() <= before.time.ran_ns.keys() & now.time.ran_ns.keys():
        void = void or "the kernel does not report the CPU time of its threads"
    own = threads_spent(before.time, now.time, on_cpu.items())
    spent_ns, waited_ns = {}, {}
    for cpu, busy_ns in now.time.busy_ns.items():
        most_ns = busy_ns - before.time.busy_ns.get(cpu, busy_ns)
        spent_ns[cpu] = max(0, min(own.ran_ns[cpu] + network.ran_ns[cpu], most_ns))
        waited_ns[cpu] = max(0, own.waited_ns[cpu] + network.waited_ns[cpu])
    led_to = [_led_to(flow, nic, memory) for flow in flows]
    return Window(
        began_ns=before.time.at_ns,
        ended_ns=now.time.at_ns,
        bytes=max(0, carried),
        spent_ns=spent_ns,
        waited_ns=waited_ns,
        app_cpus=frozenset(on_cpu.values()),
        rx_cpus=frozenset(cpu for cpu in led_to if cpu is not None),
        flows=keys,
        there=None not in led_to,
        nowhere=_nowhere(flows, nic, memory),
        void=void,
    )


def network_spent(before: CpuTime, now: CpuTime, nic: NicView) -> Spent:
    """Softirqs, and the NAPI threads of the queues."""
    threads = ((q.pid, q.cpu) for q in nic.queues if q.pid is not None and q.cpu is not None)
    spent = threads_spent(before, now, threads)
    for cpu, softirq_ns in now.softirq_ns.items():
        spent.ran_ns[cpu] += softirq_ns - before.softirq_ns.get(cpu, softirq_ns)
    return spent


def threads_spent(before: CpuTime, now: CpuTime, threads: Iterable[tuple[int, int]]) -> Spent:
    """Each is a tid and its CPU. One that was not known before has spent nothing yet."""
    spent = Spent(defaultdict(int), defaultdict(int))
    for tid, cpu in threads:
        for by_cpu, then, since in (
            (spent.ran_ns, before.ran_ns, now.ran_ns),
            (spent.waited_ns, before.waited_ns, now.waited_ns),
        ):
            total_ns = since.get(tid, 0)
            by_cpu[cpu] += total_ns - then.get(tid, total_ns)
    return spent


def _led_to(flow: Flow, nic: NicView, memory: Memory) -> int | None:
    """The CPU that a rule leads it to, if the placement in force asks for that CPU."""
    filtered = flow.location is not None or flow.state is FlowState.PORT
    queue = next((each for each in nic.queues if each.index == flow.target_queue), None)
    if not filtered or queue is None:
        return None
    placement = placement_of(flow, memory)
    fits = right(placement, flow.app_cpu, queue.cpu, flow.thread, memory)
    return queue.cpu if fits else None


def _nowhere(flows: Sequence[Flow], nic: NicView, memory: Memory) -> str | None:
    """Why some flow cannot have `llc`."""
    for flow in flows:
        spot = guest(LLC, flow.app_cpu, flow.thread, nic, memory)
        if spot.fell_back is not None:
            return spot.fell_back
    return None
