# SPDX-License-Identifier: GPL-2.0-or-later
"""What takes packets out of the rings of a NIC's queues, as the policy asks for it. Pure.

The rules:

1. A queue that a flow rule's owner owns, or that is delivered on one of the rule's dedicated CPUs,
   is received as that rule asks; of several rules, as the first in the policy that asks. Any other
   queue is received as its interface's rule asks.
2. `leave`: each value goes back to what it was before our first write, and is not touched else.
3. A mode that this NIC or kernel does not have is refused as a whole, with the reason, and the
   queue is as with `leave`. What the kernel refuses is tried again after 1 s, 2 s, ... 64 s.
4. A value that another program wrote over ours is left alone (`nic.manual`).
5. Where the kernel has the values for the whole interface only (before 6.13), a flow rule cannot
   ask for its own.
6. `auto` is what trials have shown for the queue (`trials.receiving`); interrupts, before they
   have. For a whole interface it is refused.
7. A thread polls without end (`busy`) only where another CPU, online and not isolated, is left;
   the first queues by name and number have it.

Nothing is written while a flow moves (`move.device`): what proves that a ring has drained depends
on who polls it.
"""

from __future__ import annotations

from collections.abc import Iterator

from atfnd.engine.settings import Wish
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    NicView,
    Placement,
    PlacementKind,
    Plan,
    Queue,
    Reception,
    ReceptionMode,
)
from atfnd.model.reason import Code, Why
from atfnd.model.reception import (
    DEFER,
    OF_NAPI,
    SUSPEND,
    THREAD,
    TIMEOUT,
)

__all__ = ["can_have", "due", "in_force", "of_device", "of_rules"]

_KINDS = *OF_NAPI, THREAD


def due(nic: NicView, memory: Memory, now_ns: int) -> Plan:
    """The settings to be written now."""
    known, settings = memory.nics[nic.name].reception, memory.nics[nic.name].settings
    known.of_rules = of_rules(nic, memory)
    known.why_not = {}
    if not nic.armed or not nic.up:
        settings.asked.clear()
        return ()
    return tuple(settings.differences(nic, _wishes(nic, memory), now_ns))


def of_rules(nic: NicView, memory: Memory) -> dict[int, tuple[Reception, str]]:
    """By queue: what a flow rule asks for it, and the rule's name."""
    asking = [rule for rule in memory.in_force.by_name.values() if rule.reception is not None]
    found: dict[int, tuple[Reception, str]] = {}
    if not asking:
        return found
    owned = _rules_of_owners(nic, memory)
    for queue in nic.queues:
        for rule in asking:
            cpus = rule.placement.cpus if rule.placement.kind is PlacementKind.DEDICATED else ()
            if rule.reception is not None and (
                rule.name in owned.get(queue.index, ()) or queue.cpu in cpus
            ):
                found[queue.index] = rule.reception, rule.name
                break
    return found


def _rules_of_owners(nic: NicView, memory: Memory) -> dict[int, set[str]]:
    """By queue that is owned: the rules of the flows of its owner, if they steer."""
    rules: dict[int, set[str]] = {}
    owned = {each.owner: queue for queue, each in memory.nics[nic.name].owned.items()}
    if not owned:
        return rules
    for flow in memory.table:
        if flow.nic != nic.name or flow.thread is None:
            continue
        thread = flow.thread
        units = ("thread", thread.tid), ("process", thread.pid), ("cgroup", thread.cgroup or 0)
        for unit in units:
            if unit in owned and memory.in_force.placement(flow.rule_name) is not Placement.LEAVE:
                rules.setdefault(owned[unit], set()).add(flow.rule_name)
    return rules


def of_device(nic: NicView) -> bool:
    """Its kernel has the values for the whole interface only."""
    return any(kind in nic.settings for kind in OF_NAPI)


def in_force(nic: NicView, queue: int, wanted: Reception, memory: Memory) -> Reception:
    """What a queue is to have now, of which a policy wants this."""
    if wanted.mode is not ReceptionMode.AUTO:
        return wanted
    return memory.nics[nic.name].reception.auto.state(queue).side


def can_have(nic: NicView, queue: int, reception: Reception, memory: Memory) -> bool:
    """It can be tried: nothing is known to be missing, and no other program has its say in it."""
    suffix, refused = f":{queue}", memory.nics[nic.name].settings.refused
    names = {kind + suffix for kind in reception.values}
    if nic.manual & names or refused.keys() & names:
        return False
    found = next((each for each in nic.queues if each.index == queue), None)
    return found is not None and _lacking(nic, found, suffix, reception, memory) is None


def _wishes(nic: NicView, memory: Memory) -> Iterator[Wish]:
    """The value that each setting should have, as far as a policy has a say in it."""
    known = memory.nics[nic.name].reception
    if of_device(nic):
        why_not = Code.WHOLE_INTERFACE()
        known.why_not.update(dict.fromkeys(known.of_rules, why_not))
        for queue in nic.queues[:1]:
            yield from _of_one(nic, queue, "", nic.reception, "", memory)
        return
    for queue in nic.queues:
        wanted, rule_name = known.of_rules.get(queue.index, (nic.reception, ""))
        reception = in_force(nic, queue.index, wanted, memory)
        yield from _of_one(nic, queue, f":{queue.index}", reception, rule_name, memory)


def _of_one(
    nic: NicView, queue: Queue, suffix: str, reception: Reception, rule: str, memory: Memory
) -> Iterator[Wish]:
    """`queue` stands for all if `suffix` is empty."""
    known, values = memory.nics[nic.name].reception, dict[str, str]()
    settings = memory.nics[nic.name].settings
    served = [queue.index] if suffix else [each.index for each in nic.queues]
    if reception.mode is not ReceptionMode.LEAVE:
        why_not = _lacking(nic, queue, suffix, reception, memory)
        if why_not is None:
            thread = {} if reception.polling is None else {THREAD: reception.polling}
            values = {**thread, **reception.values}
        else:
            known.why_not |= dict.fromkeys(served, Code.MODE_LACKS(reception.mode.value, why_not))
    whose = f"policy {rule}" if rule else f"the policy of {nic.name}"
    for kind in (*values, *(each for each in _KINDS if each not in values)):
        name = kind + suffix
        if kind in values:
            yield Wish(name, values[kind], Code.RECEPTION_ASKED(whose, reception), rule)
        elif name in settings.found:
            yield Wish(name, settings.found[name], Code.UNASKED(whose), rule)
    for kind in values:
        if (refusal := settings.refused.get(kind + suffix)) is not None:
            known.why_not |= dict.fromkeys(served, Code.MODE_LACKS(reception.mode.value, refusal))


def _lacking(
    nic: NicView, queue: Queue, suffix: str, reception: Reception, memory: Memory
) -> Why | None:
    """Why this mode cannot be had there. None: it can be tried."""
    if reception.mode is ReceptionMode.AUTO:
        return Code.WHOLE_INTERFACE()
    if reception.timeout_ns and not {TIMEOUT + suffix, DEFER + suffix} <= nic.settings.keys():
        return Code.NAPI_UNKNOWN()
    if reception.limit_ns and SUSPEND + suffix not in nic.settings:
        return Code.NO_SUSPEND()
    has_thread = queue.threaded and reception.mode is not ReceptionMode.BUSY
    if reception.polling and THREAD + suffix not in nic.settings and not has_thread:
        return Code.NAPI_WITHOUT_THREAD()
    if reception.mode is ReceptionMode.BUSY and not suffix:
        return Code.NO_BUSY()
    if reception.mode is ReceptionMode.BUSY and not _spare_cpu(nic, queue, memory):
        return Code.LAST_CPU()
    return None


def _spare_cpu(nic: NicView, queue: Queue, memory: Memory) -> bool:
    """A CPU is left besides those of this queue and of those before it, in the order of names and
    numbers."""
    usual = {index for index, cpu in memory.cpus.items() if cpu.online and not cpu.isolated}
    taken = {queue.cpu}
    for name, known in memory.nics.items():
        view, of_rules = known.view, known.reception.of_rules
        for each in view.queues if view.armed else ():
            wanted, _ = of_rules.get(each.index, (view.reception, ""))
            before = (name, each.index) < (nic.name, queue.index)
            if before and wanted.mode is ReceptionMode.BUSY:
                taken.add(each.cpu)
    return bool(usual - taken)
