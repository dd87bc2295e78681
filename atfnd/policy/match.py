# SPDX-License-Identifier: GPL-2.0-or-later
"""Which rule of the policy a flow or an interface falls under. Pure; the first match wins.

A port of a rule is compared with the flow's local and its remote port, so that one rule covers a
service and its clients. An address of a flow that is not bound (all zero) is in no network. A
process that the kernel did not name matches no rule that steers, but it may be the one that a
`leave` rule protects: there it matches.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from dataclasses import replace

from atfnd.model import FlowKey, FlowRule, InterfaceRule, Network, Placement, Policy

__all__ = ["Matcher", "armed", "interface_rule", "qualify", "rule_budget"]

NEVER = 2**63 - 1

Test = Callable[[FlowKey, str | None], bool]


class Matcher:
    """The flow rules of a policy, compiled once for many flows."""

    def __init__(self, policy: Policy) -> None:
        self._rules = [(rule, _tests(rule)) for rule in policy.flows]
        # What a listener can say of its connections: not who connects, nor what they will carry.
        anyone = [replace(rule, remote=None) for rule in policy.flows]
        anywhere = [replace(rule, remote=None, local=None) for rule in policy.flows]
        self._ports = {True: [*map(_tests, anyone)], False: [*map(_tests, anywhere)]}

    def first_match(
        self, key: FlowKey, comm: str | None, bytes: int, age_ns: int
    ) -> FlowRule | None:
        """The rule for a flow that has carried `bytes` in `age_ns`, used by thread `comm`; None
        when no rule matches, which means to leave it."""
        for rule, tests in self._rules:
            if bytes < rule.min_bytes or age_ns < rule.min_age_ns:
                continue
            if all(test(key, comm) for test in tests):
                return rule
        return None

    def of_port(self, key: FlowKey, comm: str | None) -> FlowRule | None:
        """The one rule for every connection to the port of a listener (`key` is open to any
        remote), from its first byte on; None: there is none, or some may fall under a rule that
        treats them otherwise. Ports are compared with the local one."""
        bound, some = any(key.local), []
        for (rule, _), tests in zip(self._rules, self._ports[bound], strict=True):
            if not all(test(key, comm) for test in tests):
                continue
            some.append(rule)
            if rule.remote or rule.min_bytes or rule.min_age_ns or (rule.local and not bound):
                continue
            alike = {(each.placement, each.order) for each in some}
            return rule if len(alike) == 1 else None
        return None


def qualify(policy: Policy) -> tuple[int, int, int]:
    """(dwell_ns, min_bytes, min_age_ns): the loosest of all rules that steer. They are compiled
    into BPF: a flow below them cannot be steered by any rule. When no rule steers, nothing is ever
    above them."""
    steering = [rule for rule in policy.flows if rule.placement is not Placement.LEAVE]
    return (
        min((rule.dwell_ns for rule in steering), default=NEVER),
        min((rule.min_bytes for rule in steering), default=NEVER),
        min((rule.min_age_ns for rule in steering), default=NEVER),
    )


def interface_rule(policy: Policy, ifname: str) -> InterfaceRule:
    """The rule for an interface; the built-in last one matches any."""
    return next(r for r in policy.interfaces if fnmatch.fnmatchcase(ifname, r.name))


def armed(policy: Policy, ifname: str) -> bool:
    """Whether the policy lets us write to this interface; if not, we only watch."""
    return interface_rule(policy, ifname).armed


def rule_budget(policy: Policy, ifname: str, slots: int | None) -> int | None:
    """How many of the NIC's `slots` may hold rules of ours; None when nothing sets a bound."""
    rule = interface_rule(policy, ifname)
    bounds = [] if rule.rules_max is None else [rule.rules_max]
    if slots is not None:
        bounds.append(max(0, slots - rule.rules_reserve))
    return min(bounds, default=None)


def _tests(rule: FlowRule) -> list[Test]:
    """Only what the rule asks for, cheapest first."""
    tests: list[Test] = []
    if (protocols := rule.protocols) is not None:
        tests.append(lambda key, comm: key.protocol in protocols)
    if (ports := rule.ports) is not None:
        tests.append(
            lambda key, comm: any(
                low <= key.local_port <= high or low <= key.remote_port <= high
                for low, high in ports
            )
        )
    if rule.local is not None:
        local = _inside(rule.local)
        tests.append(lambda key, comm: local(key.local))
    if rule.remote is not None:
        remote = _inside(rule.remote)
        tests.append(lambda key, comm: remote(key.remote))
    if rule.processes is not None:
        named = re.compile("|".join(map(fnmatch.translate, rule.processes))).match
        unknown = rule.placement is Placement.LEAVE
        tests.append(lambda key, comm: unknown if comm is None else named(comm) is not None)
    return tests


def _inside(networks: tuple[Network, ...]) -> Callable[[bytes], bool]:
    """Whether a packed address is set and in one of the networks."""
    wanted = [
        (len(n.address), shift, int.from_bytes(n.address) >> shift)
        for n in networks
        for shift in [len(n.address) * 8 - n.prefix]
    ]

    def inside(address: bytes) -> bool:
        value = int.from_bytes(address)
        return value != 0 and any(
            len(address) == size and value >> shift == prefix for size, shift, prefix in wanted
        )

    return inside
