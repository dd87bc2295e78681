# SPDX-License-Identifier: GPL-2.0-or-later
"""How the flows of a NIC are steered: by filters, indirection entries, RFS, or not at all. Pure.

Hardware first: a filter serves one flow, an entry of the indirection table all that hash to it, and
RFS spends the CPU of a softirq and an interprocessor interrupt to hand a packet on
(Documentation/networking/scaling.rst).
"""

from __future__ import annotations

from dataclasses import replace

from atfnd.decide import buckets
from atfnd.decide.auto import placement_of
from atfnd.decide.memory import Memory
from atfnd.model import Flow, FlowKey, FlowState, Match, Means, NicView, Placement, Protocol

__all__ = [
    "RFS_FLOWS",
    "RFS_TABLE",
    "means_of",
    "no_filter",
    "of_queue",
    "without_filter",
]

RFS_TABLE, RFS_FLOWS = "rps-sock-flow-entries", "rps-flow-cnt"
NO_RULES = "this NIC has no 5-tuple filters"


def of_queue(knob: str, index: int) -> str:
    """The name of a queue's knob: `xps-cpus:3`."""
    return f"{knob}:{index}"


def means_of(nic: NicView) -> tuple[Means, str]:
    """The means, and why this one, in an admin's words."""
    if nic.paused:
        return Means.NONE, "paused by the operator"
    for conflict in nic.conflicts:
        if conflict.blocks:
            return Means.NONE, f"{conflict.what}: nothing is steered until that ends"
    if nic.caps.rules:
        return Means.RULES, "this NIC takes 5-tuple filters: one a flow"
    without = nic.caps.why or NO_RULES
    if "rss" in nic.manual:
        return Means.NONE, "somebody else changed the indirection table: let go of until armed"
    if (unusable := _no_rss(nic)) is None:
        return Means.RSS, f"{without}; flows are steered by their entries of the indirection table"
    if not _has_rfs(nic):
        return Means.NONE, f"{without}, {unusable}, and the kernel offers no RFS here"
    if any(knob.partition(":")[0] in (RFS_TABLE, RFS_FLOWS) for knob in nic.manual):
        return Means.NONE, "somebody else changed the RFS tables: let go of until armed"
    return Means.RFS, f"{without}, {unusable}; the kernel hands packets on to the right CPU (RFS)"


def _no_rss(nic: NicView) -> str | None:
    """Why the indirection table is no means here; None: it is one."""
    if len(nic.queues) < 2:
        return "has one receive queue"
    if not nic.caps.rss_table:
        return "its indirection table cannot be written"
    if nic.rss is None or not nic.rss.key or not nic.rss.table:
        return "its RSS key is not told, so no flow's entry is known"
    if not nic.rss.toeplitz:
        return "its RSS hash is not Toeplitz, so no flow's entry is known"
    known = {queue.cpu for queue in nic.queues} - {None}
    if len(known) < 2 and not nic.caps.queue_cpu:
        return "its queues are not on CPUs that are known, and cannot be put on one"
    return None


def _has_rfs(nic: NicView) -> bool:
    flows = (of_queue(RFS_FLOWS, queue.index) for queue in nic.queues)
    return RFS_TABLE in nic.knobs and any(knob in nic.knobs for knob in flows)


def no_filter(nic: NicView, key: FlowKey) -> str | None:
    """Why no filter for this flow may be tried; None: one may."""
    if nic.means is not Means.RULES:
        return nic.means_why
    if nic.caps.takes(Match.of(key)):
        return None
    kind = f"IPv{key.family} {Protocol(key.protocol).name}"
    if nic.caps.flow_types is not None and (key.family, key.protocol) not in nic.caps.flow_types:
        return f"this NIC's filters take no {kind} flow"
    return "this NIC's filters name a whole 5-tuple, and this socket leaves the remote end open"


def without_filter(flow: Flow, nic: NicView, memory: Memory, why: str) -> None:
    """Write into the table what serves a flow of an armed NIC that no filter may be tried for."""
    state, cpu, placement = FlowState.WANTED, None, placement_of(flow, memory)
    fell_back = None
    if nic.means is Means.RSS and placement is Placement.CORE:
        buckets.wait(nic, flow.key, memory)
        return
    if placement is not Placement.CORE:
        instead = "on its own CPU instead" if _rfs_is_on(nic) else "left to RSS"
        fell_back = f"{placement}: that takes a filter; {instead}"
    if _rfs_is_on(nic):
        state, cpu = FlowState.RFS, flow.app_cpu
        why = f"RFS hands its packets on to CPU {cpu}, where its thread calls: {why}"
    shown = replace(
        flow, state=state, target_queue=None, target_cpu=cpu, why=why, fell_back=fell_back
    )
    if shown != flow:
        memory.table.put(shown)


def _rfs_is_on(nic: NicView) -> bool:
    """The kernel hands packets on, whoever set that up: both tables are there
    (net/core/dev.c, get_rps_cpu)."""
    counts = (nic.knobs.get(of_queue(RFS_FLOWS, queue.index), "0") for queue in nic.queues)
    return nic.knobs.get(RFS_TABLE, "0") != "0" and any(count != "0" for count in counts)
