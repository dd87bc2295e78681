# SPDX-License-Identifier: GPL-2.0-or-later
"""The CPUs that a placement may use, best first, and those it falls back to. Pure.

Steps are tried in order; the first with a queue is taken, and whatever comes after the placement's
own is a fallback. Each group of a step is better than the next one.

    core       its own CPU                                                 then: left to RSS
    smt        the other thread of its core                                then: core, left to RSS
    llc        another core under its last-level cache, its SMT sibling    then: node, core, RSS
    node       another core of its NUMA node, its SMT sibling              then: core, left to RSS
    cpus       these                                                       then: left to RSS
    dedicated  these                                                       then: left to RSS

Beyond its core nothing shares the caches that `core` and `smt` are for, so these go no further. For
one busy flow another core of its socket is best, then another socket, then its own core (Hanford et
al., Future Generation Computer Systems, 2015): hence the order of `llc`.

An offline CPU is never taken, and one that is dedicated serves only the rule that says so. Beside
its own CPU, `near` takes none that is isolated or outside the cpuset of its thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from atfnd.model import Cpu, Distance, Placement, PlacementKind

__all__ = ["Step", "fits", "narrower", "steps", "within"]


_CORE = frozenset({PlacementKind.CORE, PlacementKind.SMT})
_WITHIN = {  # placements that ask for a smaller part than this, or the same
    Distance.LLC: _CORE | {PlacementKind.LLC},
    Distance.NODE: _CORE | {PlacementKind.LLC, PlacementKind.NODE},
}


class Step(NamedTuple):
    """CPUs that meet a placement of this kind, in groups; those of one group are equally good."""

    kind: PlacementKind
    groups: tuple[frozenset[int], ...]


def steps(
    app_cpu: int,
    placement: Placement,
    cpus: Mapping[int, Cpu],
    *,
    allowed: frozenset[int] | None = None,
    dedicated: frozenset[int] = frozenset(),
) -> list[Step]:
    """The CPUs a placement may use, best first: its own step, and those it falls back to. `cpus`
    is every CPU by number, `allowed` the cpuset of the thread (None: not known, or any),
    `dedicated` all CPUs that some rule dedicates. ValueError: of `auto`, which is another one."""
    if placement.kind is PlacementKind.AUTO:
        raise ValueError("what `auto` comes to is known to auto.in_force")
    online = {index for index, cpu in cpus.items() if cpu.online}
    if placement.kind in (PlacementKind.CPUS, PlacementKind.DEDICATED):
        mine = placement.kind is PlacementKind.DEDICATED
        named = placement.cpus & online - (frozenset() if mine else dedicated)
        return [Step(placement.kind, (named,))]
    app = cpus.get(app_cpu)
    own = frozenset({app_cpu} & online - dedicated)
    core = Step(PlacementKind.CORE, (own,))
    if app is None or placement.kind is PlacementKind.LEAVE:
        return [] if placement.kind is PlacementKind.LEAVE else [Step(placement.kind, ()), core]
    fit = {i for i in online - dedicated - {app_cpu} if not cpus[i].isolated}
    fit &= fit if allowed is None else allowed
    sibling = frozenset(fit.intersection(app.smt))
    llc = frozenset(fit.intersection(app.llc) - sibling)
    node = frozenset(i for i in fit - sibling if cpus[i].node == app.node)  # all, without NUMA
    beside = () if placement.avoid_smt else (sibling,)
    match placement.kind:
        case PlacementKind.CORE:
            return [core]
        case PlacementKind.SMT:
            return [Step(PlacementKind.SMT, (sibling,)), core]
        case PlacementKind.LLC:
            near = Step(PlacementKind.LLC, (llc, *beside))
            return [near, Step(PlacementKind.NODE, (node,)), core]
        case PlacementKind.NODE:
            return [Step(PlacementKind.NODE, (node, *beside)), core]


def narrower(placement: Placement, home: Distance) -> bool:
    """It asks for no larger a part than a thread stays in that has no CPU of its own."""
    return placement.kind in _WITHIN.get(home, ())


def within(
    app_cpu: int,
    home: Distance,
    placement: Placement,
    cpus: Mapping[int, Cpu],
    *,
    allowed: frozenset[int] | None = None,
    dedicated: frozenset[int] = frozenset(),
) -> list[Step]:
    """The same for a thread that has no CPU of its own, but stays in its LLC or node (`home`): each
    CPU there that it may use is as near as another. A placement that is wider, or names CPUs, holds
    as it is."""
    app = cpus.get(app_cpu)
    if app is None or not narrower(placement, home):
        return steps(app_cpu, placement, cpus, allowed=allowed, dedicated=dedicated)
    fit = {i for i, cpu in cpus.items() if cpu.online and not cpu.isolated} - dedicated
    fit = fit if allowed is None else fit & allowed
    here = app.llc if home is Distance.LLC else [i for i in fit if cpus[i].node == app.node]
    return [Step(placement.kind, (frozenset(fit.intersection(here)),))]


def fits(step: Step, cpu: int | None) -> bool:
    """Packets that arrive on `cpu` meet this step."""
    return any(cpu in group for group in step.groups)
