# SPDX-License-Identifier: GPL-2.0-or-later
"""Where a thread may run, if its flow's place depends on that."""

from __future__ import annotations

from collections.abc import Mapping

from atfnd.model import FlowRule, Placement, Policy, Thread
from atfnd.observe.processes.cpuset import cpuset_of

__all__ = ["cpusets_of"]


def cpusets_of(
    thread: Thread | None, rule: FlowRule | None, policy: Policy
) -> Mapping[int, frozenset[int] | None]:
    """By thread: at most this one."""
    if thread is None or rule is None or not policy.elsewhere():
        return {}
    if rule.placement in (Placement.LEAVE, Placement.CORE):
        return {}
    return {thread.tid: cpuset_of(thread.tid)}
