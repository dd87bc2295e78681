# SPDX-License-Identifier: GPL-2.0-or-later
"""The policies that slots are measured under. Pure."""

from __future__ import annotations

from dataclasses import replace
from glob import escape

from atfnd.model import FlowRule, InterfaceRule, Migrant, Mode, Placement, Policy

__all__ = ["AT_REST", "at_rest", "with_flows_of"]

AT_REST = "(at rest)"  # no rule of a file has such a name


def at_rest(policy: Policy, nic: str | None, interface: InterfaceRule | None = None) -> Policy:
    """The same policy, but every flow of this NIC is left alone, or every flow at all. Those that
    have a filter lose it in the order that their rules ask for. `interface` is the rule for the
    NIC: RFS that it wants is only where an admin had set it up."""
    interfaces = policy.interfaces
    if interface is not None and interface.unowned == "rfs":
        name = interface.name if nic is None else _only(nic)
        interfaces = (replace(interface, name=name, unowned="keep"), *interfaces)
    rule = FlowRule(
        name=AT_REST,
        source="the guard",
        protocols=None,
        ports=None,
        local=None,
        remote=None,
        processes=None,
        min_bytes=0,
        min_age_ns=0,
        placement=Placement.LEAVE,
        order=Mode.STRICT,
        owner=Migrant.THREAD,
        dwell_ns=0,
        t_delete_ns=1,
        interfaces=None if nic is None else (_only(nic),),
    )
    return replace(policy, flows=(rule, *policy.flows), interfaces=interfaces)


def _only(nic: str) -> str:
    """A glob that no other interface meets. In front it must not have the `!` that excludes; a
    blank is in no name (net/core/dev.c, dev_valid_name())."""
    return f"[ -!]{escape(nic[1:])}" if nic.startswith("!") else escape(nic)


def with_flows_of(policy: Policy, other: Policy) -> Policy:
    """The same policy, with the other one's rules for flows, shares, and how often flows move.
    Interfaces, table, observer, page and stop are those of the daemon."""
    return replace(
        policy,
        flows=other.flows,
        hold_down_ns=other.hold_down_ns,
        moves_per_s=other.moves_per_s,
        user_share=other.user_share,
        cgroup_share=other.cgroup_share,
        files=other.files,
    )
