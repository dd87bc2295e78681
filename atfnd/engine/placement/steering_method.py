# SPDX-License-Identifier: GPL-2.0-or-later
"""How the flows of a NIC are steered: by filters, indirection entries, RFS, or not at all. Pure.

Hardware first: a filter serves one flow, an entry of the indirection table all that hash to it, and
RFS spends the CPU of a softirq and an interprocessor interrupt to hand a packet on
(Documentation/networking/scaling.rst).
"""

from __future__ import annotations

from atfnd.engine.indirection import entries
from atfnd.engine.placement.auto import placement_of
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    Flow,
    FlowKey,
    FlowState,
    Match,
    Mode,
    NicView,
    Placement,
    Protocol,
    SteeringMethod,
)
from atfnd.model.nic import RFS_FLOWS, RFS_TABLE
from atfnd.model.reason import Code, Why

__all__ = [
    "method_of",
    "no_filter",
    "of_queue",
    "without_filter",
]


def of_queue(setting: str, index: int) -> str:
    """The name of a queue's setting: `xps-cpus:3`."""
    return f"{setting}:{index}"


def method_of(nic: NicView) -> tuple[SteeringMethod, Why]:
    """The means, and why this one."""
    if nic.paused:
        return SteeringMethod.NONE, Code.IS_PAUSED()
    for conflict in nic.conflicts:
        if conflict.blocks:
            return SteeringMethod.NONE, Code.CONFLICT(conflict.what)
    if nic.caps.filters and not (nic.caps.asynchronous and nic.orders <= {Mode.STRICT}):
        return SteeringMethod.FILTERS, Code.TAKES_FILTERS()
    if nic.caps.filters:
        return _without_proof(nic)
    without = Code.KERNEL(nic.caps.why) if nic.caps.why else Code.TAKES_NO_FILTERS()
    if "rss" in nic.manual:
        return SteeringMethod.NONE, Code.RSS_MANUAL()
    refused, unusable = _no_rfs(nic), _no_rss(nic)
    if unusable is None and Mode.IMMEDIATE in nic.orders:
        return SteeringMethod.RSS, Code.BY_ENTRIES(without)
    if unusable is None:
        unusable = Code.NO_IMMEDIATE()
        if refused is None and not nic.wants_rfs():
            refused = Code.RFS_NOT_SET_UP()
    if refused is not None:
        return SteeringMethod.NONE, Code.NO_MEANS(without, unusable, refused)
    return SteeringMethod.RFS, Code.RFS_HANDS_ON(Code.BOTH(without, unusable))


def _without_proof(nic: NicView) -> tuple[SteeringMethod, Why]:
    """Every rule is strict, and a filter that may be dropped later proves no order
    (`move.choose.why_no_hold`). A driver that turns RFS into filters of its own keeps what it
    has."""
    why = Code.NO_PROOF(nic.caps.driver)
    if nic.wants_rfs() and not nic.caps.arfs and _no_rfs(nic) is None:
        return SteeringMethod.RFS, Code.RFS_HANDS_ON(why)
    return SteeringMethod.NONE, why


def _no_rfs(nic: NicView) -> Why | None:
    """Why RFS cannot be used here; None: it can."""
    flows = (of_queue(RFS_FLOWS, queue.index) for queue in nic.queues)
    if RFS_TABLE not in nic.settings or not any(setting in nic.settings for setting in flows):
        return Code.NO_RFS()
    if any(setting.partition(":")[0] in (RFS_TABLE, RFS_FLOWS) for setting in nic.manual):
        return Code.RFS_MANUAL()
    return None


def _no_rss(nic: NicView) -> Why | None:
    """Why the indirection table cannot be used here; None: it can."""
    if len(nic.queues) < 2:
        return Code.ONE_QUEUE()
    if not nic.caps.rss_table:
        return Code.RSS_NOT_WRITABLE()
    if nic.rss is None or not nic.rss.key or not nic.rss.table:
        return Code.KEY_UNKNOWN()
    if nic.rss.another is not None:
        return Code.HASH_OTHER(nic.rss.another)
    known = {queue.cpu for queue in nic.queues} - {None}
    if len(known) < 2 and not nic.caps.queue_cpu:
        return Code.QUEUE_CPUS_UNKNOWN()
    return None


def no_filter(nic: NicView, key: FlowKey) -> Why | None:
    """Why no filter for this flow may be tried; None: one may."""
    if nic.method is not SteeringMethod.FILTERS:
        return nic.method_why
    if (match := Match.of(key)) in nic.their_matches:
        return Code.THEIR_FILTER()
    if nic.caps.takes(match):
        return None
    kind = f"IPv{key.family} {Protocol(key.protocol).name}"
    if nic.caps.flow_types is not None and (key.family, key.protocol) not in nic.caps.flow_types:
        return Code.KIND_NOT_TAKEN(kind)
    return Code.OPEN_END()


def without_filter(flow: Flow, nic: NicView, memory: Memory, why: Why) -> None:
    """Write into the table how a flow of an armed NIC is served that no filter may be tried for."""
    state, cpu, placement = FlowState.WANTED, None, placement_of(flow, memory)
    fell_back = None
    if nic.method is SteeringMethod.RSS and placement is Placement.CORE:
        entries.wait(nic, flow.key, memory)
        return
    if placement is not Placement.CORE:
        instead = Code.INSTEAD("on its own CPU") if nic.has_rfs() else Code.LEFT_TO_RSS()
        fell_back = Code.NEEDS_FILTER(placement, instead)
    if nic.has_rfs():
        state, cpu = FlowState.RFS, flow.app_cpu
        why = Code.BY_RFS(cpu, why)
    shown = flow._replace(
        state=state, target_queue=None, target_cpu=cpu, why=why, fell_back=fell_back
    )
    if shown != flow:
        memory.table.put(shown)
