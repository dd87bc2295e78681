# SPDX-License-Identifier: GPL-2.0-or-later
"""What the kernel may be silent about: flow rules as clauses that BPF can judge. Pure.

A clause errs on one side only: it tells. A rule that leaves is a clause where all it asks is seen
in the kernel; else (it asks for a user, say, or a threshold) it is none, and its flows are judged
by the rules below it. A rule that steers is a clause of those of its conditions that are seen
there. What finds no room in the kernel's table is told of, too.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import product
from math import prod
from typing import NamedTuple

from atfnd.model import Clause, FlowRule, Placement, Policy
from atfnd.policy.match import qualify
from atfnd.policy.systemd import units_in

__all__ = ["CLAUSES", "GROUPS", "Compiled", "compiled"]

CLAUSES = 256  # atfnd/bpf/clause.h
GROUPS = 64  # bits of clause_facts.groups

# Of the fields of a rule: what BPF sees of a flow, and what is asked of none.
_SEEN = {"protocols", "ports", "local", "remote", "direction", "cgroups", "units"}
_NO_MATCH = {"name", "source", "placement", "order", "owner", "dwell_ns", "t_delete_ns"}
_UNSEEN = {field.name for field in fields(FlowRule)} - _SEEN - _NO_MATCH


class Compiled(NamedTuple):
    """The clauses of a policy, and the rules that its groups are of."""

    clauses: tuple[Clause, ...]
    groups: tuple[FlowRule, ...]

    def groups_of(self, cgroup: str) -> int:
        """The groups that a control group is in, by its path: bit i is of `groups[i]`."""
        return sum(1 << i for i, rule in enumerate(self.groups) if _is_in(rule, cgroup))


def compiled(policy: Policy) -> Compiled:
    """The flow rules as at most CLAUSES clauses; the last one leaves what no rule matches."""
    clauses: list[Clause] = []
    groups: list[FlowRule] = []
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
        groups += [rule] if grouped else []
    return Compiled((*clauses, Clause(True)), tuple(groups))


def _is_seen(rule: FlowRule) -> bool:
    """Whether a flow falls under this rule can be told in the kernel, once and for all."""
    return all(getattr(rule, name) in (None, 0) for name in _UNSEEN)


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


def _is_in(rule: FlowRule, cgroup: str) -> bool:
    return _names(rule.cgroups, (cgroup,)) and _names(rule.units, units_in(cgroup))


def _names(globs: tuple[str, ...] | None, names: tuple[str, ...]) -> bool:
    return globs is None or any(fnmatch.fnmatchcase(name, glob) for glob in globs for name in names)
