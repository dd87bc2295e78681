# SPDX-License-Identifier: GPL-2.0-or-later
"""What a NIC needs before its flows can be steered: one owner, and queues on known CPUs. Pure.

Another steering on the same NIC is switched off, or RFS is switched on, where that is the means;
queues are put on one CPU each, and transmit completions follow them (XPS). Settings that are right
already are left, and so are those that another program changed after us (`nic.manual`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from atfnd.engine.placement.steering_method import of_queue
from atfnd.model import Action, ActionKind, Cpu, NicView, Plan, Queue, SteeringMethod, Topology
from atfnd.model.nic import RFS_FLOWS, RFS_TABLE
from atfnd.model.reason import Code, Why

__all__ = ["RFS_ENTRIES", "homes", "prepare", "rfs_flows"]

RFS_ENTRIES = "32768"  # Documentation/networking/scaling.rst: "works fairly well"
ANOTHER_STEERING = {
    # i40e, flow director: it samples what is transmitted and adds filters of its own
    "priv:flow-director-atr": Code.ONE_OWNER_ATR(),
}


def prepare(
    nic: NicView,
    topology: Topology,
    dedicated: frozenset[int] = frozenset(),
) -> Plan:
    """The changes that arming `nic` begins with. Empty when it has no means of steering. When
    queues are put on CPUs, the `dedicated` CPUs get theirs first, isolated or not. Where the
    policy lets queues that nobody owns have or keep RFS, `placement.unowned` switches it. A queue
    on a CPU that `serve_on` leaves out gets another."""
    match nic.method:
        case SteeringMethod.NONE:
            return ()
        case SteeringMethod.RFS:
            own = tuple(_rfs(nic))
        case SteeringMethod.FILTERS | SteeringMethod.RSS:
            own = tuple(_one_owner(nic))
    if nic.method is SteeringMethod.RFS and len(nic.queues) < 2:
        return own  # a lone queue has no CPU where it belongs more than elsewhere
    cpus = _placed(nic, topology, dedicated)
    return (*own, *_confined(nic, cpus), *_completions(nic, cpus))


def homes(
    nic: NicView,
    undo_journal: Mapping[str, str],
    topology: Topology,
    dedicated: frozenset[int] = frozenset(),
) -> dict[int, int]:
    """The CPU of each queue before it followed an owner: where it was found, or where arming put
    it. `undo_journal` are the settings that we wrote, with their values before that."""
    settings = {of_queue("queue-cpu", queue.index): queue for queue in nic.queues}
    ours = {k: v for k, v in undo_journal.items() if k in settings and k not in nic.manual}
    cpus = {settings[k].index: int(v) if v.isdecimal() else None for k, v in ours.items()}
    found = tuple(replace(q, cpu=cpus.get(q.index, q.cpu)) for q in nic.queues)
    fresh = replace(nic, queues=found, settings={**nic.settings, **ours})
    placed = {queue.index: queue.cpu for queue in found} | _placed(fresh, topology, dedicated)
    return {index: cpu for index, cpu in placed.items() if cpu is not None}


def _set(nic: NicView, setting: str, value: str, why: Why) -> Iterator[Action]:
    """Write one setting, if it is there, has another value, and is ours to write."""
    if setting in nic.settings and setting not in nic.manual and nic.settings[setting] != value:
        yield Action.of_setting(nic.name, setting, value, why)


def _one_owner(nic: NicView) -> Iterator[Action]:
    for setting, why in ANOTHER_STEERING.items():
        yield from _set(nic, setting, "off", why)
    partner = (nic.unowned_rfs or nic.keeps_rfs) and nic.refuses_rfs() is None
    for queue in () if partner else nic.queues:
        yield from _set(nic, of_queue(RFS_FLOWS, queue.index), "0", Code.ONE_OWNER_RFS())
    for queue in nic.queues:
        yield from _set(nic, of_queue("rps-cpus", queue.index), "", Code.ONE_OWNER_RPS())


def _rfs(nic: NicView) -> Iterator[Action]:
    """Both tables; a size that is already set stays."""
    if not int(nic.settings.get(RFS_TABLE, "0")):
        yield from _set(nic, RFS_TABLE, RFS_ENTRIES, Code.RFS_TABLE())
    for queue in nic.queues:
        setting = of_queue(RFS_FLOWS, queue.index)
        if nic.settings.get(setting) == "0":
            why = Code.RFS_OF_QUEUE(queue.index, nic.method_why)
            yield from _set(nic, setting, rfs_flows(nic), why)


def rfs_flows(nic: NicView) -> str:
    """The flow count of a queue that gets RFS: a power of two, for the kernel rounds others up
    (net/core/net-sysfs.c, store_rps_dev_flow_table_cnt)."""
    entries = int(nic.settings.get(RFS_TABLE, "0")) or int(RFS_ENTRIES)
    share = max(1, entries // max(1, len(nic.queues)))
    return str(1 << (share.bit_length() - 1))


def _confined_to(nic: NicView, queue: Queue) -> int | None:
    """The one CPU that a queue may be delivered on. An interrupt that may go to several is on one
    of them (`queue.cpu`) until the kernel or a balancer chooses another."""
    cpus = nic.settings.get(of_queue("queue-cpu", queue.index))
    if cpus is None:
        return queue.cpu
    return int(cpus) if cpus.isdecimal() else None


def _placed(nic: NicView, topology: Topology, dedicated: frozenset[int]) -> dict[int, int]:
    """The CPU of every queue: the one it is confined to, or will be."""
    confined = {queue.index: _confined_to(nic, queue) for queue in nic.queues}
    placed = {index: cpu for index, cpu in confined.items() if cpu is not None}
    online = (cpu for cpu in topology.cpus if cpu.online)
    cpus = {
        cpu.index: cpu
        for cpu in online
        if nic.serve_on.allows(cpu.index)
        and (not cpu.isolated or cpu.index in dedicated or nic.serve_on.names(cpu.index))
    }
    astray = [i for i, cpu in confined.items() if (cpu is None or not nic.serve_on.allows(cpu))]
    for index in astray:
        setting = of_queue("queue-cpu", index)
        ours = nic.caps.queue_cpu and setting in nic.settings and setting not in nic.manual
        if ours and cpus:
            placed.pop(index, None)
            queues = Counter(placed.values())
            bare = {each: cpus[each] for each in dedicated & cpus.keys() if not queues[each]}
            placed[index] = _best(nic, bare or cpus, queues)
    return placed


def _best(nic: NicView, cpus: dict[int, Cpu], queues: Counter[int]) -> int:
    """The CPU with the fewest queues; among equals one near the NIC, on a core that has the
    fewest."""

    def cost(cpu: Cpu) -> tuple[int, bool, int, int]:
        far = nic.device.node is not None and cpu.node is not None and cpu.node != nic.device.node
        core = sum(queues[sibling] for sibling in cpu.smt or (cpu.index,))
        return core, far, queues[cpu.index], cpu.index

    return min(cpus.values(), key=cost).index


def _confined(nic: NicView, cpus: dict[int, int]) -> Iterator[Action]:
    for queue in nic.queues:
        cpu = cpus.get(queue.index)
        if cpu is not None and (now := _confined_to(nic, queue)) != cpu:
            several = nic.settings[of_queue("queue-cpu", queue.index)]
            why = Code.UNCONFINED(queue.index, several)
            if now is not None:
                why = Code.NOT_SERVED(now, nic.serve_on)
            yield Action(
                ActionKind.QUEUE_CPU, nic.name, None, None, queue.cpu, cpu, why, "", queue.index
            )


def _completions(nic: NicView, cpus: dict[int, int]) -> Iterator[Action]:
    """Transmit on the queue whose receive side is on this CPU, where the two are one channel."""
    if sum(setting.startswith("xps-cpus:") for setting in nic.settings) != len(nic.queues):
        return
    for index, cpu in cpus.items():
        why = Code.XPS(cpu, cpu, index)
        yield from _set(nic, of_queue("xps-cpus", index), str(cpu), why)
