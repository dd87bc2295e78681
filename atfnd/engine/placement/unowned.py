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

from atfnd.engine.placement.steering_method import of_queue
from atfnd.engine.prepare import RFS_ENTRIES, rfs_flows
from atfnd.engine.settings import Wish
from atfnd.engine.table.memory import Memory, NicMemory
from atfnd.model import Action, Distance, Flow, NicView, Plan, SteeringMethod
from atfnd.model.nic import RFS_FLOWS, RFS_TABLE
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


def heard(nic: NicView, flow: Flow, memory: Memory, now_ns: int) -> bool:
    """This flow was used. True: RFS is for it, because its queue is not delivered where its thread
    stays, or its thread does not stay. Where its thread was last reported says nothing once RFS
    hands its packets on: these arrive right wherever it goes."""
    index = flow.rx_queue
    if flow.location is not None and flow.target_queue is not None:
        index = flow.target_queue
    if index is None:
        return False
    cpu = next((queue.cpu for queue in nic.queues if queue.index == index), None)
    has_rfs = nic.settings.get(of_queue(RFS_FLOWS, index), "0") != "0"
    handed_on = has_rfs and flow.rx_cpu not in (None, cpu)
    if flow.home is Distance.CPU and flow.app_cpu == cpu and not handed_on:
        return False
    memory.nics[nic.name].rfs.used_ns[index] = now_ns
    return True


def reported(nic: NicView, flow: Flow, memory: Memory, now_ns: int) -> bool:
    """As `heard`. The flow of a thread that has just come to stay on a CPU may be placed, or get a
    queue: that is seen at the next look."""
    if flow.home is Distance.CPU:
        memory.nics[nic.name].rfs.look = True
        return False
    return heard(nic, flow, memory, now_ns)


def taken_over(nic: NicView, originals: Mapping[str, str], memory: Memory, now_ns: int) -> None:
    """RFS that an earlier run left on was just used. `originals` are the settings that we wrote."""
    for queue in nic.queues:
        setting = of_queue(RFS_FLOWS, queue.index)
        if setting in originals and nic.settings.get(setting, "0") != "0":
            memory.nics[nic.name].rfs.used_ns.setdefault(queue.index, now_ns)


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
    """The queues whose RFS is to be switched now, and the machine's table if it is off."""
    known = memory.nics[nic.name]
    if not (known.rfs.used_ns or known.settings.found or known.owned):
        return ()
    plan = tuple(known.settings.differences(nic, _wishes(nic, known, now_ns), now_ns))
    switches_on = any(each.value != "0" for each in plan) and not nic.keeps_rfs
    if switches_on and nic.settings.get(RFS_TABLE) == "0":
        table = Wish(RFS_TABLE, RFS_ENTRIES, Code.RFS_TABLE())
        return (*known.settings.differences(nic, [table], now_ns), *plan)
    return plan


def _wishes(nic: NicView, known: NicMemory, now_ns: int) -> Iterator[Wish]:
    if not nic.armed or nic.method is SteeringMethod.RFS:
        return
    rfs, found = known.rfs, known.settings.found
    may = (nic.unowned_rfs or nic.keeps_rfs) and nic.refuses_rfs() is None
    exchanged = known.lent.only_exchanged({queue.index: queue.cpu for queue in nic.queues})
    for queue in nic.queues:
        index, setting = queue.index, of_queue(RFS_FLOWS, queue.index)
        value = nic.settings.get(setting, "0")
        home = exchanged or known.lent.homes.get(index, queue.cpu) == queue.cpu
        home = home and index not in known.lent.sent
        wanted = may and home and index not in known.owned
        if nic.keeps_rfs:
            wanted = wanted and found.get(setting, value) != "0"
        else:
            wanted = wanted and index in rfs.used_ns and now_ns - rfs.used_ns[index] < REST_NS
        if wanted == (value != "0") or rfs.switched_off.on(index, now_ns):
            continue
        if wanted and nic.keeps_rfs:
            yield Wish(setting, found[setting], Code.RFS_FOUND(index))
        elif wanted:
            yield Wish(setting, rfs_flows(nic), Code.RFS_USED(index))
        elif index in known.owned:
            yield Wish(setting, "0", Code.RFS_OWNED(index))
        elif setting in found:  # else we have not switched it on, and it is in nobody's way
            yield Wish(setting, "0", Code.RFS_UNUSED(index))


def hands_on(nic: NicView, memory: Memory) -> dict[int, int] | None:
    """The CPU that polls each queue with RFS, by NAPI id. None: as at the last call."""
    known, found = memory.nics[nic.name], dict[int, int]()
    table = nic.settings.get(RFS_TABLE, "0") != "0" or RFS_TABLE in known.settings.asked
    steers = table and nic.armed and nic.method is SteeringMethod.FILTERS
    for queue in nic.queues if steers else ():
        value = nic.settings.get(of_queue(RFS_FLOWS, queue.index), "0")
        if value != "0" and queue.napi_id is not None and queue.cpu is not None:
            found[queue.napi_id] = queue.cpu
    if found == known.rfs.hands_on:
        return None
    known.rfs.hands_on = found
    return found


def switched(action: Action, memory: Memory, now_ns: int) -> bool:
    """This is done, whoever asked for it. True: RFS of a queue was switched."""
    name, _, number = (action.setting or "").partition(":")
    if name != RFS_FLOWS:
        return False
    rests = memory.nics[action.nic].rfs.switched_off
    if action.value == "0":
        if now_ns >= rests.of(int(number)).until_ns + SECONDS.most_ns:
            rests.pop(int(number), None)
        rests.vain(int(number), SECONDS, now_ns)
    return True
