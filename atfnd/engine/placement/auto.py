# SPDX-License-Identifier: GPL-2.0-or-later
"""What the placement `auto` means for a flow now: `core`, or `llc` where a trial of its application
is under way or has succeeded. This is the one place that answers that. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from atfnd.engine.table.memory import Memory
from atfnd.engine.trials.subjects import Application
from atfnd.model import Flow, FlowState, Placement, Thread

__all__ = ["applications", "in_force", "placement_of", "said"]


def in_force(
    placement: Placement, nic: str, policy: str, thread: Thread | None, memory: Memory
) -> Placement:
    """The placement of a rule for the flows of a thread. For a thread that is not known, `auto` is
    `core`."""
    if placement is not Placement.AUTO:
        return placement
    known = memory.nics.get(nic)
    if thread is None or known is None:
        return Placement.CORE
    return known.trials.state(Application(nic, policy, thread.comm, thread.cgroup)).side


def placement_of(flow: Flow, memory: Memory) -> Placement:
    """The placement of a flow of the table; `core` when its rule is not known, as for an adopted
    flow."""
    asked = memory.in_force.placement(flow.rule_name)
    return in_force(asked, flow.nic, flow.rule_name, flow.thread, memory)


def applications(memory: Memory, nics: Collection[str]) -> dict[Application, list[Flow]]:
    """The applications that have flows under `auto` on these NICs, without the flows that are
    MANUAL."""
    found: defaultdict[Application, list[Flow]] = defaultdict(list)
    for flow in memory.table:
        application = _application(flow, memory) if flow.nic in nics else None
        if application is not None and flow.state is not FlowState.MANUAL:
            found[application].append(flow)
    return dict(found)


def said(flow: Flow, memory: Memory, now_ns: int) -> str | None:
    """Where its application stands, for `explain`; None: its placement is not `auto`."""
    application = _application(flow, memory)
    if application is None:
        return None
    return memory.nics[flow.nic].trials.in_words(application, now_ns)


def _application(flow: Flow, memory: Memory) -> Application | None:
    thread = flow.thread
    if thread is None or flow.key.listens or flow.key in memory.table.leaving():
        return None
    if memory.in_force.placement(flow.rule_name) is not Placement.AUTO:
        return None
    return Application(flow.nic, flow.rule_name, thread.comm, thread.cgroup)
