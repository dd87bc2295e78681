# SPDX-License-Identifier: GPL-2.0-or-later
"""One look at a NIC that nobody has to watch: what `doctor` reports of it."""

from __future__ import annotations

from dataclasses import replace

from atfnd.engine.placement.steering_method import method_of
from atfnd.model import NicView, Policy
from atfnd.nic.driver import open_nic
from atfnd.observe.nics.watch import NicWatch
from atfnd.policy.match.match import under_policy

__all__ = ["glance"]


def glance(name: str, policy: Policy) -> NicView:
    """Reads queues, filters, indirection table and settings of a NIC, and writes nothing.
    OperatorError: there is no such interface. OSError: the kernel refuses a read."""
    nic = open_nic(name)
    try:
        watch = NicWatch(nic)
    except OSError:
        nic.close()
        raise
    try:
        watch.inspect()
        view = under_policy(NicView.of(watch.facts), policy.interfaces, policy.flows)
        method, why = method_of(view)
        return watch.shown(replace(view, method=method, method_why=why), frozenset)
    finally:
        watch.close()
