# SPDX-License-Identifier: GPL-2.0-or-later
"""Placements of a policy: as values, and what is wrong with them taken together. Pure.

A CPU that some rule dedicates belongs to that rule alone: another rule that names it is a mistake,
and so is a CPU that the machine can never have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from atfnd.model import Placement, PlacementKind
from atfnd.policy.file.document import Document
from atfnd.policy.file.problem import Problem
from atfnd.policy.file.schema import AUTO, PlacementEntry, PolicyFile

__all__ = ["placement_of", "wrong_cpus"]


class _Named(NamedTuple):
    """CPUs that a rule names, and where."""

    rule: str
    at: str  # file:line
    document: Document
    path: tuple[str | int, ...]
    cpus: range
    dedicated: bool


def placement_of(entry: PlacementEntry | None) -> Placement:
    """None is `leave`."""
    if entry is None:
        return Placement.LEAVE
    if entry is AUTO:
        return Placement.AUTO
    if entry.near == "core":
        return Placement.CORE
    if entry.near is not None:
        return Placement(PlacementKind(entry.near), avoid_smt=entry.avoid == "smt")
    ranges = entry.cpus or entry.dedicated or ()
    cpus = frozenset(cpu for first, last in ranges for cpu in range(first, last + 1))
    return Placement(PlacementKind.CPUS if entry.cpus else PlacementKind.DEDICATED, cpus)


def wrong_cpus(
    contents: Sequence[tuple[Document, PolicyFile]], possible: int, machine: str = "this machine"
) -> list[Problem]:
    """CPUs that two rules claim, and impossible ones: the machine can have CPUs 0 to `possible` -
    1."""
    named = [each for document, content in contents for each in _named(document, content)]
    problems = []
    for i, each in enumerate(named):
        if each.cpus[-1] >= possible:
            message = f"impossible CPU {each.cpus[-1]}"
            hint = f"{machine} can have CPUs 0 to {possible - 1}"
            problems.append(each.document.problem(each.path, message, hint))
        for j, other in enumerate(named):
            both = range(max(each.cpus[0], other.cpus[0]), min(each.cpus[-1], other.cpus[-1]) + 1)
            earlier = j < i or not each.dedicated
            if both and i != j and other.dedicated and earlier and each.rule != other.rule:
                message = f"overlapping ownership: CPU {both[0]} is dedicated to `{other.rule}`"
                hint = f"by {other.at}: a dedicated CPU serves no other rule"
                problems.append(each.document.problem(each.path, message, hint))
                break
    return [*problems, *_serve_on(contents, possible, machine)]


def _serve_on(
    contents: Sequence[tuple[Document, PolicyFile]], possible: int, machine: str
) -> Iterator[Problem]:
    for document, content in contents:
        for i, rule in enumerate(content.interfaces):
            path, asked = ("interfaces", i, "serve_on"), rule.serve_on
            hint = f"{machine} can have CPUs 0 to {possible - 1}"
            if asked is None:
                continue
            if (most := max(asked.cpus)) >= possible:
                yield document.problem(path, f"impossible CPU {most}", hint)
            elif not asked.among(range(possible)):
                yield document.problem(path, f"`{asked}` leaves no CPU", hint)


def _named(document: Document, content: PolicyFile) -> Iterator[_Named]:
    for i, rule in enumerate(content.flows):
        if rule.placement is None:
            continue
        at = f"{document.file}:{document.line(('flows', i))}"
        for key in ("cpus", "dedicated"):
            for j, (first, last) in enumerate(getattr(rule.placement, key) or ()):
                path = ("flows", i, "placement", key, j)
                cpus = range(first, last + 1)
                yield _Named(rule.name, at, document, path, cpus, key == "dedicated")
