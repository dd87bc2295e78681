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
from atfnd.model.nic import RFS_TABLE

__all__ = [
    "RFS_FLOWS",
    "method_of",
    "no_filter",
    "of_queue",
    "without_filter",
]

RFS_FLOWS = "rps-flow-cnt"
NO_FILTERS = "this NIC has no 5-tuple filters"


def of_queue(setting: str, index: int) -> str:
    """The name of a queue's setting: `xps-cpus:3`."""
    return f"{setting}:{index}"


def method_of(nic: NicView) -> tuple[SteeringMethod, str]:
    """The means, and why this one, in words for an admin."""
    if nic.paused:
        return SteeringMethod.NONE, "paused"
    for conflict in nic.conflicts:
        if conflict.blocks:
            return SteeringMethod.NONE, f"{conflict.what}: nothing is steered until that ends"
    if nic.caps.filters and not (nic.caps.asynchronous and nic.orders <= {Mode.STRICT}):
        return SteeringMethod.FILTERS, "this NIC takes 5-tuple filters: one a flow"
    if nic.caps.filters:
        return _without_proof(nic)
    without = nic.caps.why or NO_FILTERS
    if "rss" in nic.manual:
        return (
            SteeringMethod.NONE,
            "another program changed the indirection table: left alone until atfnctl resume",
        )
    refused, unusable = _no_rfs(nic), _no_rss(nic)
    if unusable is None and Mode.IMMEDIATE in nic.orders:
        by_entries = "flows are steered by their entries of the indirection table"
        return SteeringMethod.RSS, f"{without}; {by_entries}"
    if unusable is None:
        unusable = "no rule has order: immediate, without which no indirection entry moves"
        if refused is None and not nic.wants_rfs():
            refused = "RFS was not set up; `unowned: rfs` asks for it"
    if refused is not None:
        return SteeringMethod.NONE, f"{without}, {unusable}, and {refused}"
    return (
        SteeringMethod.RFS,
        f"{without}, {unusable}; the kernel hands packets on to the right CPU (RFS)",
    )


def _without_proof(nic: NicView) -> tuple[SteeringMethod, str]:
    """Every rule is strict, and a filter that may be dropped later proves no order
    (`move.choose.why_no_hold`). A driver that turns RFS into filters of its own keeps what it
    has."""
    why = (
        f"{nic.caps.driver} may drop a filter after it has accepted it, so no move by filters is "
        "proven to keep the order; a rule with order: bounded lets flows move"
    )
    if nic.wants_rfs() and not nic.caps.arfs and _no_rfs(nic) is None:
        return SteeringMethod.RFS, f"{why}; the kernel hands packets on to the right CPU (RFS)"
    return SteeringMethod.NONE, why


def _no_rfs(nic: NicView) -> str | None:
    """Why RFS cannot be used here; None: it can."""
    flows = (of_queue(RFS_FLOWS, queue.index) for queue in nic.queues)
    if RFS_TABLE not in nic.settings or not any(setting in nic.settings for setting in flows):
        return "the kernel offers no RFS here"
    if any(setting.partition(":")[0] in (RFS_TABLE, RFS_FLOWS) for setting in nic.manual):
        return "another program changed the RFS tables: left alone until atfnctl resume"
    return None


def _no_rss(nic: NicView) -> str | None:
    """Why the indirection table cannot be used here; None: it can."""
    if len(nic.queues) < 2:
        return "has one receive queue"
    if not nic.caps.rss_table:
        return "its indirection table cannot be written"
    if nic.rss is None or not nic.rss.key or not nic.rss.table:
        return "its RSS key is not known, so no flow's entry is known"
    if nic.rss.another is not None:
        return f"{nic.rss.another}, so no flow's entry is known"
    known = {queue.cpu for queue in nic.queues} - {None}
    if len(known) < 2 and not nic.caps.queue_cpu:
        return "the CPUs of its queues are not known, and cannot be set"
    return None


def no_filter(nic: NicView, key: FlowKey) -> str | None:
    """Why no filter for this flow may be tried; None: one may."""
    if nic.method is not SteeringMethod.FILTERS:
        return nic.method_why
    if (match := Match.of(key)) in nic.their_matches:
        return "another program has a filter for it"
    if nic.caps.takes(match):
        return None
    kind = f"IPv{key.family} {Protocol(key.protocol).name}"
    if nic.caps.flow_types is not None and (key.family, key.protocol) not in nic.caps.flow_types:
        return f"this NIC's filters take no {kind} flow"
    return "this NIC's filters name a whole 5-tuple, and this socket leaves the remote end open"


def without_filter(flow: Flow, nic: NicView, memory: Memory, why: str) -> None:
    """Write into the table how a flow of an armed NIC is served that no filter may be tried for."""
    state, cpu, placement = FlowState.WANTED, None, placement_of(flow, memory)
    fell_back = None
    if nic.method is SteeringMethod.RSS and placement is Placement.CORE:
        entries.wait(nic, flow.key, memory)
        return
    if placement is not Placement.CORE:
        instead = "on its own CPU instead" if nic.has_rfs() else "left to RSS"
        fell_back = f"{placement}: that takes a filter; {instead}"
    if nic.has_rfs():
        state, cpu = FlowState.RFS, flow.app_cpu
        why = f"RFS hands its packets on to CPU {cpu}, where its thread calls: {why}"
    shown = flow._replace(
        state=state, target_queue=None, target_cpu=cpu, why=why, fell_back=fell_back
    )
    if shown != flow:
        memory.table.put(shown)
