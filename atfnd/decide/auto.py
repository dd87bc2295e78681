# SPDX-License-Identifier: GPL-2.0-or-later
"""What the placement `auto` comes to for a flow now: `core`, or `llc` where its application's trial
has it there or kept it there. The one place that is asked. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from atfnd.decide.memory import Memory
from atfnd.decide.trials import Application
from atfnd.model import Flow, FlowState, Placement, Thread

__all__ = ["applications", "in_force", "placement_of", "said"]


def in_force(
    placement: Placement, nic: str, policy: str, thread: Thread | None, memory: Memory
) -> Placement:
    """A rule's placement, for the flows of a thread. Of one that is not known `auto` is `core`."""
    if placement is not Placement.AUTO:
        return placement
    if thread is None:
        return Placement.CORE
    return memory.trials.placement(Application(nic, policy, thread.comm, thread.cgroup))


def placement_of(flow: Flow, memory: Memory) -> Placement:
    """Where a flow of the table is to go; to its core when no rule is known, as of one adopted."""
    ruled = memory.settling.placement(flow.policy)
    return in_force(ruled, flow.nic, flow.policy, flow.thread, memory)


def applications(memory: Memory, nics: Collection[str]) -> dict[Application, list[Flow]]:
    """Who has flows under `auto` on these NICs, but for those that were let go."""
    found: defaultdict[Application, list[Flow]] = defaultdict(list)
    for flow in memory.table:
        application = _application(flow, memory) if flow.nic in nics else None
        if application is not None and flow.state is not FlowState.MANUAL:
            found[application].append(flow)
    return dict(found)


def said(flow: Flow, memory: Memory, now_ns: int) -> str | None:
    """How its application stands, for `explain`; None: its placement is another one."""
    application = _application(flow, memory)
    return None if application is None else memory.trials.told(application, now_ns)


def _application(flow: Flow, memory: Memory) -> Application | None:
    thread = flow.thread
    if thread is None or flow.key.listens or flow.key in memory.left:
        return None
    if memory.settling.placement(flow.policy) is not Placement.AUTO:
        return None
    return Application(flow.nic, flow.policy, thread.comm, thread.cgroup)
