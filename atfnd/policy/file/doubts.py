# SPDX-License-Identifier: GPL-2.0-or-later
"""What of a policy is no mistake, but probably not meant: `atfnd check` says it. Pure.

A rule that never decides, a name that no NIC or no unit has, and a rule `control` that leaves
less alone than the built-in one. Each is certain, as far as the policy shows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from atfnd.model import FlowRule, Placement, Policy, Protocol
from atfnd.policy.file.document import Document, Path
from atfnd.policy.file.host import HostInterface
from atfnd.policy.file.problem import Problem
from atfnd.policy.file.schema import PolicyFile
from atfnd.policy.match.covers import covers, covers_interfaces, transports
from atfnd.policy.match.globs import listed, meets_one

__all__ = ["doubts"]

_SHOWN = 8  # names in a hint

_Place = tuple[Document, Path]
_Contents = Sequence[tuple[Document, PolicyFile]]


def doubts(
    policy: Policy,
    contents: _Contents,
    protects: FlowRule,
    interfaces: Sequence[HostInterface],
    units: Sequence[str],
    machine: str = "this machine",
) -> list[Problem]:
    """In order of place. `policy` is what the `contents` of its files became, `protects` the
    built-in first rule for flows. `interfaces` and `units` are those of the `machine`; empty: not
    known."""
    found = [
        *_flow_rules(policy, contents, protects),
        *_interface_rules(policy, contents, interfaces, machine),
        *_matches(contents, interfaces, units, machine),
        *_unprotected(policy, contents, protects),
    ]
    at = {document.file: i for i, (document, _) in enumerate(contents)}
    return sorted(found, key=lambda each: (at[each.file], each.line or 0, each.column or 0))


def _flow_rules(policy: Policy, contents: _Contents, protects: FlowRule) -> Iterator[Problem]:
    """Rules for flows that never decide."""
    places: dict[str, _Place] = {
        rule.name: (document, ("flows", i))
        for document, content in reversed(contents)  # of several `rest` the first is in force
        for i, rule in enumerate(content.flows)
    }
    for i, rule in enumerate(policy.flows):
        if rule.name not in places:  # it is built in
            continue
        document, path = places[rule.name]
        none = f"no flow falls under `{rule.name}`"
        if not transports(rule):
            hint = "leave `direction` out, or add tcp to `protocol`"
            at = (*path, "match", "direction")
            yield document.problem(at, f"{none}: UDP has no direction", hint)
            continue
        first = next((each for each in policy.flows[:i] if covers(each, rule)), None)
        if first is not None:
            hint = f"put it before `{first.name}` ({first.source}), or remove it"
            if first.name == protects.name:
                hint = (
                    f"`{first.name}` ({first.source}) always stands first: remove this rule, or "
                    f"write a `{first.name}` that asks for less"
                )
            elif rule is policy.flows[-1]:
                hint = f"`{rule.name}` always stands last: remove it, or let others match less"
            message = f"{none}: `{first.name}` comes first and matches all that it matches"
            yield document.problem((*path, "name"), message, hint)


def _interface_rules(
    policy: Policy, contents: _Contents, interfaces: Sequence[HostInterface], machine: str
) -> Iterator[Problem]:
    """Rules for interfaces that never decide, and armed ones that match none now."""
    places = [
        (document, ("interfaces", i, "match", "name"))
        for document, content in contents
        for i, _ in enumerate(content.interfaces)
    ]
    # The built-in rule is the last one, and has no place.
    for i, (rule, (document, path)) in enumerate(zip(policy.interfaces, places, strict=False)):
        earlier = policy.interfaces[:i]
        first = next((each for each in earlier if covers_interfaces(each, rule)), None)
        if first is not None:
            message = (
                f"this rule decides on no interface: `{first}` comes first and matches all "
                f"that `{rule}` matches"
            )
            hint = f"put it before the rule at {first.source}, or remove it"
            yield document.problem(path, message, hint)
        elif rule.armed and (said := _no_nic(listed(rule.name), interfaces, machine)):
            yield document.problem(path, *said)  # whatever drivers they have


def _matches(
    contents: _Contents, interfaces: Sequence[HostInterface], units: Sequence[str], machine: str
) -> Iterator[Problem]:
    """Rules for flows of interfaces and units that are not there now."""
    for document, content in contents:
        for i, rule in enumerate(content.flows):
            asked = rule.match.interface
            if asked and (said := _no_nic(asked, interfaces, machine)):
                yield document.problem(("flows", i, "match", "interface"), *said)
            asked = rule.match.unit
            if asked and units and not any(map(meets_one(asked), units)):
                message = f"no process of {machine} is in a unit that matches `{'|'.join(asked)}`"
                hint = f"there are: {_some(_alike(asked, units))}; `systemctl status PID` names it"
                yield document.problem(("flows", i, "match", "unit"), message, hint)


def _no_nic(
    globs: Sequence[str], interfaces: Sequence[HostInterface], machine: str
) -> tuple[str, str] | None:
    """What to say of names that no NIC has; None: one has, or it is not known. A name with a colon
    is that of a lab: no interface has one (net/core/dev.c, dev_valid_name())."""
    if not interfaces or any(":" in glob for glob in globs):
        return None
    named = [each for each in interfaces if meets_one(globs)(each.name)]
    if not named:
        message = f"no interface of {machine} matches `{'|'.join(globs)}` now"
        return message, f"there are: {_some([each.name for each in interfaces])}"
    above = [each for each in named if each.lower]
    if above == named or any(each.name in globs for each in above):
        first = next((each for each in above if each.name in globs), above[0])
        message = f"{first.name} stands on {', '.join(first.lower)}: no NIC has this name"
        return message, f"name those below: {'|'.join(first.lower)}"
    return None


def _alike(globs: Sequence[str], units: Sequence[str]) -> Sequence[str]:
    """The units whose names begin as one of these does, as those of templates do; or all."""
    stems = tuple(re.split(r"[@.*?[]", glob)[0] for glob in globs)
    return [unit for unit in units if unit.startswith(tuple(filter(None, stems)))] or units


def _some(every: Sequence[str]) -> str:
    names = sorted(every)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _unprotected(policy: Policy, contents: _Contents, protects: FlowRule) -> Iterator[Problem]:
    """A rule that replaces the built-in first one, although others may then steer what that leaves
    alone."""
    for document, content in contents:
        for i, rule in enumerate(content.flows):
            lost = list(_lost(policy.flows, protects)) if rule.name == protects.name else []
            if lost:
                message = (
                    f"`{rule.name}` leaves less alone than the built-in rule: rules may now steer "
                    + ", ".join(lost)
                )
                hint = f"add to the `match` of `{rule.name}` what is not to be steered"
                path: Path = ("flows", i, "replaces_built_in")
                yield document.problem(path, message, hint)


def _lost(flows: Sequence[FlowRule], protects: FlowRule) -> Iterator[str]:
    """Ports, each with the protocols for which a rule may steer it."""
    for low, high in protects.ports or ():
        for port in range(low, high + 1):
            one = replace(protects, ports=((port, port),))
            some = [each for each in Protocol if not _left(flows, one, port, each)]
            if some:
                which = ", ".join(each.name.lower() for each in some)
                yield f"port {port}" if len(some) == len(Protocol) else f"port {port} ({which})"


def _left(flows: Sequence[FlowRule], one: FlowRule, port: int, protocol: Protocol) -> bool:
    """No rule steers a flow of this port and protocol. One that is for other ports counts as none:
    the other port of a connection is seldom one of these."""
    every = replace(one, protocols=frozenset({protocol}))
    for rule in flows:
        if rule.placement is Placement.LEAVE:
            if covers(rule, every):
                return True
        elif protocol in transports(rule) and _names(rule, port):
            return False
    return True


def _names(rule: FlowRule, port: int) -> bool:
    return rule.ports is None or any(low <= port <= high for low, high in rule.ports)
