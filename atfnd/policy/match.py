# SPDX-License-Identifier: GPL-2.0-or-later
"""Which rule of the policy a flow or an interface falls under. Pure; the first match wins.

A port of a rule is compared with the flow's local and its remote port, so that one rule covers a
service and its clients. An address of a flow that is not bound (all zero) is in no network. What is
not known of a flow (its process, say) matches no rule that steers, but it may be what a `leave`
rule protects: there it matches. UDP has no direction: no rule that asks for one matches it.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from atfnd.model import (
    Facts,
    FlowKey,
    FlowRule,
    InterfaceRule,
    Network,
    Placement,
    Policy,
    Process,
    Protocol,
)
from atfnd.policy.systemd import units_in

__all__ = [
    "Matcher",
    "armed",
    "asks_direction",
    "has_threshold",
    "interface_rule",
    "meets",
    "names",
    "of_key",
    "of_process",
    "qualify",
    "rule_budget",
]

NEVER = 2**63 - 1
_NO_FLOW = FlowKey(Protocol.TCP, bytes(4), 0, bytes(4), 0)

T = TypeVar("T")
Test = Callable[[Facts], bool]


class Matcher:
    """The flow rules of a policy, compiled once for many flows."""

    def __init__(self, policy: Policy) -> None:
        self._rules = [(rule, _tests(rule)) for rule in policy.flows]
        # What a listener can say of its connections: not who connects, nor what they will carry.
        anyone = [replace(rule, remote=None) for rule in policy.flows]
        anywhere = [replace(rule, remote=None, local=None) for rule in policy.flows]
        self._ports = {True: [*map(_tests, anyone)], False: [*map(_tests, anywhere)]}

    def first_match(self, facts: Facts) -> FlowRule | None:
        """The rule for a flow; None when no rule matches, which means to leave it."""
        return self.look(facts)[0]

    def look(self, facts: Facts) -> tuple[FlowRule | None, tuple[FlowRule, ...]]:
        """The rule for a flow, and those that it will fall under instead when it is old or fast
        enough or has carried enough for them (`meets`)."""
        others: list[FlowRule] = []
        for rule, tests in self._rules:
            if all(test(facts) for test in tests):
                if meets(rule, facts.bytes, facts.age_ns, facts.rate_bit_s):
                    return rule, tuple(others)
                others.append(rule)
        return None, tuple(others)

    def of_port(self, facts: Facts) -> FlowRule | None:
        """The one rule for every connection to the port of a listener (the key is open to any
        remote), from its first byte on; None: there is none, or some may fall under a rule that
        treats them otherwise. Ports are compared with the local one."""
        bound, some = any(facts.key.local), []
        for (rule, _), tests in zip(self._rules, self._ports[bound], strict=True):
            if not all(test(facts) for test in tests):
                continue
            some.append(rule)
            if rule.remote or has_threshold(rule) or (rule.local and not bound):
                continue
            alike = {(each.placement, each.order) for each in some}
            return rule if len(alike) == 1 else None
        return None


def meets(rule: FlowRule, bytes: int, age_ns: int, rate_bit_s: int) -> bool:
    """A flow like this is not below what the rule asks."""
    return (
        bytes >= rule.min_bytes and age_ns >= rule.min_age_ns and rate_bit_s >= rule.min_rate_bit_s
    )


def of_key(rule: FlowRule) -> bool:
    """It asks for nothing but a flow's ends, and what it has carried."""
    asked = (rule.processes, rule.interfaces, rule.direction)
    return all(each is None for each in asked) and not of_process(rule)


def asks_direction(policy: Policy) -> bool:
    """Some rule asks which end opened a connection."""
    return any(rule.direction is not None for rule in policy.flows)


def names(rule: FlowRule) -> Callable[[str, Process], bool]:
    """Whether a process (its main thread's name, and what it is) is the rule's, by what that asks
    of processes; whatever its flows are. No process is, of a rule that asks nothing of them."""
    if rule.processes is None and not of_process(rule):
        return lambda comm, process: False
    tests = _tests(
        replace(
            rule, protocols=None, ports=None, local=None, remote=None, direction=None,
            interfaces=None,
        )
    )  # fmt: skip
    return lambda comm, process: all(test(Facts(_NO_FLOW, comm, process)) for test in tests)


def of_process(rule: FlowRule) -> bool:
    """It asks for more of a process than the name of a thread."""
    return any(asked is not None for asked in (rule.commands, rule.users, rule.cgroups, rule.units))


def has_threshold(rule: FlowRule) -> bool:
    """It asks for bytes, an age or a rate: no flow meets it from its first byte on."""
    return bool(rule.min_bytes or rule.min_age_ns or rule.min_rate_bit_s)


def qualify(policy: Policy) -> tuple[int, int, int]:
    """(dwell_ns, min_bytes, min_age_ns): the loosest of all rules that steer. They are compiled
    into BPF: a flow below them cannot be steered by any rule. When no rule steers, nothing is ever
    above them. A rate is not asked there: it is known only later."""
    steering = [rule for rule in policy.flows if rule.placement is not Placement.LEAVE]
    return (
        min((rule.dwell_ns for rule in steering), default=NEVER),
        min((rule.min_bytes for rule in steering), default=NEVER),
        min((rule.min_age_ns for rule in steering), default=NEVER),
    )


def interface_rule(policy: Policy, ifname: str) -> InterfaceRule:
    """The rule for an interface; the built-in last one matches any."""
    return next(rule for rule in policy.interfaces if _named(rule.name, ifname))


def _named(globs: str, ifname: str) -> bool:
    return any(fnmatch.fnmatchcase(ifname, glob.strip()) for glob in globs.split("|"))


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
    unknown = rule.placement is Placement.LEAVE

    def ask(fact: Callable[[Facts], T | None], holds: Callable[[T], object]) -> None:
        def test(facts: Facts) -> bool:
            value = fact(facts)
            return unknown if value is None else bool(holds(value))

        tests.append(test)

    if (protocols := rule.protocols) is not None:
        tests.append(lambda facts: facts.key.protocol in protocols)
    if (ports := rule.ports) is not None:
        tests.append(
            lambda facts: any(
                low <= facts.key.local_port <= high or low <= facts.key.remote_port <= high
                for low, high in ports
            )
        )
    if (direction := rule.direction) is not None:
        tests.append(lambda facts: facts.key.protocol != Protocol.UDP)
        ask(lambda facts: facts.direction, lambda known: known is direction)
    if rule.local is not None:
        local = _inside(rule.local)
        tests.append(lambda facts: local(facts.key.local))
    if rule.remote is not None:
        remote = _inside(rule.remote)
        tests.append(lambda facts: remote(facts.key.remote))
    if (users := rule.users) is not None:
        ask(lambda facts: facts.process.uid, lambda uid: uid in users)
    if rule.interfaces is not None:
        ask(lambda facts: facts.interface, _any_of(rule.interfaces))
    if rule.processes is not None:
        ask(lambda facts: facts.comm, _any_of(rule.processes))
    if rule.cgroups is not None:
        ask(lambda facts: facts.process.cgroup, _any_of(rule.cgroups))
    if rule.units is not None:
        named = _any_of(rule.units)
        ask(lambda facts: facts.process.cgroup, lambda path: any(map(named, units_in(path))))
    if rule.commands is not None:
        ask(lambda facts: facts.process.command, _any_of(rule.commands))
    return tests


def _any_of(globs: tuple[str, ...]) -> Callable[[str], object]:
    return re.compile("|".join(map(fnmatch.translate, globs))).match


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
