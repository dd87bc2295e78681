# SPDX-License-Identifier: GPL-2.0-or-later
"""Which sockets the kernel need not report: flow rules as clauses that BPF can judge. Pure.

A clause errs on one side only: it reports too much. A rule that leaves becomes a clause if the
kernel can see all that it asks for. If it asks for something else (a user, say, or a threshold), it
becomes none, and the rules below it judge its flows. A rule that steers becomes a clause of those
of its conditions that the kernel can see. A flow is reported, too, if its rule finds no room in the
kernel's table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from math import prod
from typing import NamedTuple

from atfnd.model import Clause, FlowRule, Placement, Policy
from atfnd.policy.match.match import CONDITIONS, has_threshold, in_groups, qualify

__all__ = ["CLAUSES", "GROUPS", "Compiled", "compiled"]

CLAUSES = 256  # atfnd/bpf/shared/clause.h
GROUPS = 64  # bits of clause_facts.groups

# What a rule may ask for that BPF cannot see.
_UNSEEN = CONDITIONS.keys() - {
    "protocols", "ports", "local", "remote", "direction", "cgroups", "units",
}  # fmt: skip


class Compiled(NamedTuple):
    """The clauses of a policy, and which control groups its groups hold, by their path."""

    clauses: tuple[Clause, ...]
    groups: tuple[Callable[[str], bool], ...]

    def groups_of(self, cgroup: str) -> int:
        """The groups that a control group is in: bit i stands for `groups[i]`."""
        return sum(1 << i for i, holds in enumerate(self.groups) if holds(cgroup))


def compiled(policy: Policy) -> Compiled:
    """The flow rules as at most CLAUSES clauses; the last one leaves what no rule matches."""
    clauses: list[Clause] = []
    groups: list[Callable[[str], bool]] = []
    for at, rule in enumerate(policy.flows):
        leaves = rule.placement is Placement.LEAVE
        grouped = rule.cgroups is not None or rule.units is not None
        room = CLAUSES - 2 - len(clauses)  # for the rest, and for the end
        fits = _count(rule) <= room and not (grouped and len(groups) == GROUPS)
        if leaves and not (fits and _is_seen(rule)):
            continue
        if not room:
            _, min_bytes, min_age_ns = qualify(replace(policy, flows=policy.flows[at:]))
            clauses.append(Clause(False, min_bytes=min_bytes, min_age_ns=min_age_ns))
            break
        if not fits:
            rule = replace(rule, ports=None, local=None, remote=None, cgroups=None, units=None)
            grouped = False
        clauses += _clauses(rule, len(groups) if grouped else None)
        groups += [in_groups(rule)] if grouped else []
    return Compiled((*clauses, Clause(True)), tuple(groups))


def _is_seen(rule: FlowRule) -> bool:
    """The kernel can decide whether a flow falls under this rule, once and for all."""
    return not has_threshold(rule) and all(getattr(rule, key) is None for key in _UNSEEN)


def _count(rule: FlowRule) -> int:
    return prod(len(each) for each in (rule.ports, rule.local, rule.remote) if each is not None)


def _clauses(rule: FlowRule, group: int | None) -> Iterator[Clause]:
    """One for each combination of a range of ports and two networks."""
    plain = Clause(rule.placement is Placement.LEAVE, direction=rule.direction, group=group)
    plain = plain._replace(min_bytes=rule.min_bytes, min_age_ns=rule.min_age_ns)
    if rule.protocols is not None:
        plain = plain._replace(protocols=rule.protocols)
    ends = rule.ports or (plain.ports,), rule.local or (None,), rule.remote or (None,)
    for ports, local, remote in product(*ends):
        yield plain._replace(ports=ports, local=local, remote=remote)
