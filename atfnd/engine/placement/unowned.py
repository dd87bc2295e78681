# SPDX-License-Identifier: GPL-2.0-or-later
"""Which queues of a NIC that filters steer have RFS: those that nobody owns, while threads that
wander use what comes through them. Pure.

The rules:

1. Only where the policy asks for it (`unowned: rfs`), and where RFS would not make the driver write
   filters of its own (`Caps.arfs`). Where RFS steers the whole NIC, no queue is switched here.
   With `unowned: keep` a queue has the RFS that it was found with, as long as nobody owns it; rules
   2, 3 and 5 do not hold then.
2. A queue gets RFS once a flow comes through it that is not at home there: its thread wanders, or
   stays on another CPU. The queue is on the CPU that it has without an owner, or has changed places
   with another one.
3. It loses RFS at once when somebody owns it, whatever program switched it on, and `REST_NS` after
   the last such flow was used.
4. A queue that was switched off stays so for 1 s. If it is switched off again within 64 s after
   that, it stays so for 2 s, then 4 s, ... 64 s. What was refused is tried again in the same way.
5. A thread that has just come to stay on a CPU may get a queue of its own. RFS waits for that until
   queues are looked at.

`rps_cpus` is not needed (get_rps_cpu(), net/core/dev.c): with it, flows whose thread has made no
call yet would be spread over CPUs by their hash. Without it they are delivered where they are
polled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from atfnd.engine.placement.steering_method import RFS_FLOWS, of_queue
from atfnd.engine.table.memory import Memory, NicMemory
from atfnd.model import Action, Distance, Flow, NicView, Outcome, Plan, SteeringMethod
from atfnd.model.nic import RFS_TABLE
from atfnd.model.reason import Code
from atfnd.model.rests import SECONDS

__all__ = [
    "REST_NS",
    "hands_on",
    "heard",
    "looked",
    "partner",
    "reported",
    "switched",
    "taken_over",
]

REST_NS = 10_000_000_000
_USED_NS = 2_000_000_000
_ENTRIES = 32768  # Documentation/networking/scaling.rst: "works fairly well"


def heard(nic: NicView, flow: Flow, memory: Memory, now_ns: int) -> bool:
    """This flow was used. True: RFS is for it, because its queue is not delivered where its thread
    stays, or its thread does not stay. Where its thread was last reported says nothing once RFS
    hands its packets on: these arrive right wherever it goes."""
    index, rfs = flow.rx_queue, memory.nics[nic.name].rfs
    if flow.location is not None and flow.target_queue is not None:
        index = flow.target_queue
    if index is None:
        return False
    cpu = next((queue.cpu for queue in nic.queues if queue.index == index), None)
    handed_on = rfs.wrote.get(index, "0") != "0" and flow.rx_cpu not in (None, cpu)
    if flow.home is Distance.CPU and flow.app_cpu == cpu and not handed_on:
        return False
    rfs.used_ns[index] = now_ns
    return True


def reported(nic: NicView, flow: Flow, memory: Memory, now_ns: int) -> bool:
    """As `heard`. The flow of a thread that has just come to stay on a CPU may be placed, or get a
    queue: that is seen at the next look."""
    if flow.home is Distance.CPU:
        memory.nics[nic.name].rfs.look = True
        return False
    return heard(nic, flow, memory, now_ns)


def taken_over(nic: NicView, originals: Mapping[str, str], memory: Memory, now_ns: int) -> None:
    """An earlier run wrote settings that were so before: RFS that it left on is ours, and was just
    used."""
    rfs = memory.nics[nic.name].rfs
    for queue in nic.queues:
        setting = of_queue(RFS_FLOWS, queue.index)
        value, original = nic.settings.get(setting, "0"), originals.get(setting)
        if original is None:
            continue
        rfs.wrote.setdefault(queue.index, value)
        if original != "0":
            rfs.found.setdefault(queue.index, original)
        if value != "0":
            rfs.used_ns.setdefault(queue.index, now_ns)


def looked(nic: NicView, memory: Memory, now_ns: int) -> None:
    """Note again which queues such flows come through: under RFS they are no longer reported.
    This reads the whole table."""
    known = memory.nics[nic.name]
    if not known.rfs.used_ns and not known.rfs.look:
        return
    known.rfs.look = False
    for flow in memory.table:
        if flow.nic == nic.name and memory.in_use(flow, _USED_NS):
            heard(nic, flow, memory, now_ns)


def partner(nic: NicView, memory: Memory, now_ns: int) -> Plan:
    """The queues whose RFS is to be switched now."""
    known = memory.nics[nic.name]
    if not (known.rfs.used_ns or known.rfs.wrote or known.owned):
        return ()
    return tuple(_switches(nic, known, memory, now_ns))


def _switches(nic: NicView, known: NicMemory, memory: Memory, now_ns: int) -> Iterator[Action]:
    if not nic.armed or nic.method is SteeringMethod.RFS:
        return
    rfs = known.rfs
    may = (nic.unowned_rfs or nic.keeps_rfs) and nic.refuses_rfs() is None
    exchanged = known.lent.only_exchanged({queue.index: queue.cpu for queue in nic.queues})
    for queue in nic.queues:
        index, setting = queue.index, of_queue(RFS_FLOWS, queue.index)
        value = rfs.wrote.get(index, nic.settings.get(setting))
        if value is None or setting in nic.manual or index in rfs.asked:
            continue
        used_ns = rfs.used_ns.get(index)
        home = exchanged or known.lent.homes.get(index, queue.cpu) == queue.cpu
        home = home and index not in known.lent.sent
        wanted = may and home and index not in known.owned
        if nic.keeps_rfs:
            wanted = wanted and (rfs.found.get(index, "0") if index in rfs.wrote else value) != "0"
        else:
            wanted = wanted and used_ns is not None and now_ns - used_ns < REST_NS
        if wanted == (value != "0") or rfs.refused.on(index, now_ns):
            continue
        if rfs.switched_off.on(index, now_ns):
            continue
        if not wanted and index not in rfs.wrote and index not in known.owned:
            continue  # we have not switched it on, and it is in nobody's way
        rfs.asked.add(index)
        if not wanted and index not in rfs.wrote:
            rfs.found[index] = value
        if wanted and nic.keeps_rfs:
            why = Code.RFS_FOUND(index)
            yield Action.of_setting(nic.name, setting, rfs.found[index], why)
        elif wanted:
            entries = int(nic.settings.get(RFS_TABLE, "0"))
            if not entries and RFS_TABLE not in rfs.tables:
                rfs.tables.add(RFS_TABLE)
                yield Action.of_setting(nic.name, RFS_TABLE, str(_ENTRIES), Code.RFS_TABLE())
            share = max(1, (entries or _ENTRIES) // max(1, len(nic.queues)))
            count = str(1 << (share.bit_length() - 1))
            yield Action.of_setting(nic.name, setting, count, Code.RFS_USED(index))
        elif index in known.owned:
            yield Action.of_setting(nic.name, setting, "0", Code.RFS_OWNED(index))
        else:
            yield Action.of_setting(nic.name, setting, "0", Code.RFS_UNUSED(index))


def hands_on(nic: NicView, memory: Memory) -> dict[int, int] | None:
    """The CPU that polls each queue with RFS, by NAPI id. None: as at the last call."""
    rfs, found = memory.nics[nic.name].rfs, dict[int, int]()
    table = nic.settings.get(RFS_TABLE, "0") != "0" or RFS_TABLE in rfs.tables
    steers = table and nic.armed and nic.method is SteeringMethod.FILTERS
    for queue in nic.queues if steers else ():
        setting = of_queue(RFS_FLOWS, queue.index)
        value = rfs.wrote.get(queue.index, nic.settings.get(setting, "0"))
        if value != "0" and queue.napi_id is not None and queue.cpu is not None:
            found[queue.napi_id] = queue.cpu
    if found == rfs.hands_on:
        return None
    rfs.hands_on = found
    return found


def switched(outcome: Outcome, memory: Memory, now_ns: int) -> bool:
    """RFS of a queue was switched (True), or not."""
    action = outcome.action
    name, _, number = (action.setting or "").partition(":")
    if name != RFS_FLOWS or not number.isdecimal():
        return False
    rfs, index = memory.nics[action.nic].rfs, int(number)
    if index not in rfs.asked:
        return False
    rfs.asked.discard(index)
    if outcome.errno:
        rfs.refused.vain(index, SECONDS, now_ns)
        return False
    rfs.refused.pop(index, None)
    rfs.wrote[index] = action.value or "0"
    if action.value == "0":
        if now_ns >= rfs.switched_off.of(index).until_ns + SECONDS.most_ns:
            rfs.switched_off.pop(index, None)
        rfs.switched_off.vain(index, SECONDS, now_ns)
    return True
