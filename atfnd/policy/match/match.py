# SPDX-License-Identifier: GPL-2.0-or-later
"""Which rule of the policy a flow or an interface falls under. Pure; the first match wins.

Each requirement of a rule is one condition (`CONDITIONS`). It holds, does not hold, or is open
(None): the fact is not known, or the key is a port's and the condition holds for some of its
connections. A flow falls under a rule that steers if every condition holds, and under a rule that
leaves also if some are open: a flow that may be protected is left alone.

A port of a rule is compared with the flow's local and its remote port, so that one rule covers a
service and its clients. An address of a flow that is not bound (all zero) is in no network. UDP has
no direction: no rule that asks for one matches it.

A port's key (`FlowKey.listens`) leaves the remote end open, and may leave the local address. The
open remote port counts as belonging to no service. What BPF judges by itself is compiled from the
same rules: `compile.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeVar

from atfnd.model import (
    ANY_CPU,
    Direction,
    Facts,
    FlowKey,
    FlowRule,
    ForwardingRule,
    InterfaceRule,
    Network,
    NicFacts,
    NicView,
    Placement,
    Policy,
    Process,
    Protocol,
    Reception,
)
from atfnd.policy.match.globs import listed, meets_all, meets_one
from atfnd.policy.match.systemd import units_in

__all__ = [
    "CONDITIONS",
    "Matcher",
    "armed",
    "asks_direction",
    "filter_budget",
    "forwarding_rules",
    "guarded",
    "has_threshold",
    "in_groups",
    "interface_rule",
    "is_named",
    "may_borrow",
    "meets",
    "of_key",
    "of_process",
    "qualify",
    "under_policy",
]

NEVER = 2**63 - 1
_NO_FLOW = FlowKey(Protocol.TCP, bytes(4), 0, bytes(4), 0)
_OF_KEY = "protocols", "ports", "local", "remote"
_OF_GROUP = "cgroups", "units"
_OF_PROCESS = "users", "commands", *_OF_GROUP

T = TypeVar("T")
Holds = bool | None  # None: not known, or true for some connections of a port
Condition = Callable[[Facts], Holds]
Conditions = Mapping[str, Callable[[Any], Condition]]  # by field of a rule, from its requirement


class Matcher:
    """The flow rules of a policy, compiled once for many flows."""

    def __init__(self, policy: Policy) -> None:
        self._rules = [(rule, _asked(rule, CONDITIONS)) for rule in policy.flows]
        self._of_port = [(rule, _asked(rule, _CONDITIONS_OF_PORT)) for rule in policy.flows]

    def first_match(self, facts: Facts) -> FlowRule | None:
        """The rule for a flow; None when no rule matches, which means to leave it."""
        return self.look(facts)[0]

    def look(self, facts: Facts) -> tuple[FlowRule | None, tuple[FlowRule, ...]]:
        """The rule for a flow, and the rules that it will fall under when it is old or fast enough,
        or has carried enough (`meets`)."""
        others: list[FlowRule] = []
        for rule, asked in self._rules:
            holds = _all(asked, facts)
            if holds or (holds is None and rule.placement is Placement.LEAVE):
                if meets(rule, facts.bytes, facts.age_ns, facts.rate_bit_s):
                    return rule, tuple(others)
                others.append(rule)
        return None, tuple(others)

    def of_port(self, facts: Facts) -> FlowRule | None:
        """The rule for every connection to the port of a listener (the key is open to any remote),
        from its first byte on; None: there is none, or some may fall under a rule that treats them
        differently."""
        treated = set()
        for rule, asked in self._of_port:
            holds = _all(asked, facts)
            if holds is False:
                continue
            treated.add((rule.placement, rule.order))
            if holds and not has_threshold(rule):
                return rule if len(treated) == 1 else None
        return None


def meets(rule: FlowRule, bytes: int, age_ns: int, rate_bit_s: int) -> bool:
    """A flow like this reaches the thresholds of the rule."""
    return (
        bytes >= rule.min_bytes and age_ns >= rule.min_age_ns and rate_bit_s >= rule.min_rate_bit_s
    )


def of_key(rule: FlowRule) -> bool:
    """The rule only asks about a flow's ends, and how much it has carried."""
    return not _asks(rule, CONDITIONS.keys() - _OF_KEY)


def of_process(rule: FlowRule) -> bool:
    """The rule asks more about a process than the name of a thread."""
    return _asks(rule, _OF_PROCESS)


def asks_direction(policy: Policy) -> bool:
    """Some rule asks which end opened the connection."""
    return any(rule.direction is not None for rule in policy.flows)


def in_groups(rule: FlowRule) -> Callable[[str], bool]:
    """Whether the rule asks for a control group, by its path."""
    asked = _asked(rule, {key: CONDITIONS[key] for key in _OF_GROUP})
    return lambda path: bool(_all(asked, Facts(_NO_FLOW, process=Process(cgroup=path))))


def has_threshold(rule: FlowRule) -> bool:
    """It asks for bytes, an age or a rate: no flow meets it at its first byte."""
    return bool(rule.min_bytes or rule.min_age_ns or rule.min_rate_bit_s)


def qualify(policy: Policy) -> tuple[int, int, int]:
    """(dwell_ns, min_bytes, min_age_ns): the loosest of all rules that steer. They are compiled
    into BPF: a flow below them cannot be steered by any rule. When no rule steers, no flow is ever
    above them. Rates are left out: they are known only later."""
    steering = [rule for rule in policy.flows if rule.placement is not Placement.LEAVE]
    return (
        min((rule.dwell_ns for rule in steering), default=NEVER),
        min((rule.min_bytes for rule in steering), default=NEVER),
        min((rule.min_age_ns for rule in steering), default=NEVER),
    )


def interface_rule(rules: Iterable[InterfaceRule], nic: NicFacts) -> InterfaceRule | None:
    """The rule for an interface. Of a policy that was loaded, the built-in last one matches any."""
    return next((rule for rule in rules if _is_for(rule, nic.name, nic.device.driver)), None)


def is_named(rule: InterfaceRule, ifname: str) -> bool:
    """The rule is for interfaces of this name, if their driver is the right one, too."""
    return bool(meets_one(listed(rule.name))(ifname))


def _is_for(rule: InterfaceRule, ifname: str, driver: str | None) -> bool:
    """An interface whose driver is not known may be one that the rule protects, and is under no
    rule that arms what has a certain driver."""
    if not is_named(rule, ifname):
        return False
    if rule.driver is None:
        return True
    return not rule.armed if driver is None else bool(meets_one(listed(rule.driver))(driver))


def armed(policy: Policy, nic: NicFacts) -> bool:
    """Whether the policy lets us write to this interface; if not, we only watch."""
    rule = interface_rule(policy.interfaces, nic)
    return rule is not None and rule.armed


def guarded(policy: Policy, nic: NicFacts) -> bool:
    """Whether steering this interface is to be stopped where it costs more than it saves."""
    rule = interface_rule(policy.interfaces, nic)
    return rule is None or rule.guard


def filter_budget(rules: Iterable[InterfaceRule], nic: NicFacts) -> int | None:
    """How many of the NIC's slots may hold filters of ours; None when nothing sets a bound."""
    if (rule := interface_rule(rules, nic)) is None:
        return None
    slots, bounds = nic.caps.filter_slots, [] if rule.filters_max is None else [rule.filters_max]
    if slots is not None:
        bounds.append(max(0, slots - rule.filters_reserve))
    return min(bounds, default=None)


def may_borrow(rules: Iterable[InterfaceRule], nic: NicFacts) -> bool:
    """Its queues may have NAPI threads for moves."""
    rule = interface_rule(rules, nic)
    return rule is None or rule.napi_threads == "borrow"


def forwarding_rules(
    rules: Iterable[ForwardingRule], nics: Iterable[str]
) -> dict[tuple[str, str], ForwardingRule]:
    """The rule that decides about what is forwarded from one interface to another."""
    names, found = sorted(nics), dict[tuple[str, str], ForwardingRule]()
    for rule in rules:
        comes, goes = meets_one(rule.ingress), meets_one(rule.egress)
        for one in filter(comes, names):
            for other in filter(goes, names):
                if one != other:
                    found.setdefault((one, other), rule)
                    if not rule.one_way:
                        found.setdefault((other, one), rule)
    return found


def under_policy(
    nic: NicView, interfaces: Iterable[InterfaceRule], flows: Iterable[FlowRule]
) -> NicView:
    """What a policy of these rules says of a NIC: how many filters of ours it may hold, whether its
    queues may borrow NAPI threads, whether those that nobody owns are to have RFS or keep what they
    have, how its queues are received, on which CPUs, whether its hash is to be symmetric, and which
    orders the rules have that steer."""
    rules = tuple(interfaces)
    rule = interface_rule(rules, nic)
    steering = (each for each in flows if each.placement is not Placement.LEAVE)
    return replace(
        nic,
        budget=filter_budget(rules, nic),
        borrows=may_borrow(rules, nic),
        unowned_rfs=rule is not None and rule.unowned == "rfs",
        keeps_rfs=rule is None or rule.unowned == "keep",
        orders=frozenset(each.order for each in steering),
        reception=Reception() if rule is None else rule.reception,
        symmetric_hash=rule is not None and rule.rss_hash == "symmetric",
        serve_on=ANY_CPU if rule is None else rule.serve_on,
    )


def _asked(rule: FlowRule, of: Conditions) -> list[Condition]:
    """Only the conditions that the rule has."""
    return [of[key](asked) for key in of if (asked := getattr(rule, key)) is not None]


def _asks(rule: FlowRule, keys: Iterable[str]) -> bool:
    return any(getattr(rule, key) is not None for key in keys)


def _all(conditions: Sequence[Condition], facts: Facts) -> Holds:
    """Whether all conditions hold. One that does not hold outweighs those that are open."""
    every: Holds = True
    for condition in conditions:
        holds = condition(facts)
        if holds is False:
            return False
        if holds is None:
            every = None
    return every


def _known(fact: Callable[[Facts], T | None], test: Callable[[T], object]) -> Condition:
    """A condition on a fact that may not be known."""

    def holds(facts: Facts) -> Holds:
        value = fact(facts)
        return None if value is None else bool(test(value))

    return holds


def _units(asked: Sequence[str]) -> Condition:
    met = meets_all(asked)
    return _known(lambda facts: facts.process.cgroup, lambda path: met(units_in(path)))


def _ports(asked: Sequence[tuple[int, int]]) -> Condition:
    def holds(facts: Facts) -> Holds:
        local, remote = facts.key.local_port, facts.key.remote_port
        return any(low <= local <= high or low <= remote <= high for low, high in asked)

    return holds


def _direction(asked: Direction) -> Condition:
    known = _known(lambda facts: facts.direction, lambda direction: direction is asked)
    return lambda facts: facts.key.protocol != Protocol.UDP and known(facts)


def _inside(networks: Sequence[Network]) -> Callable[[bytes], Holds]:
    """Whether a packed address is in the networks; of one that is open (all zero), whether every
    address of its family is."""
    wanted = [(len(n.address), n.prefix, int.from_bytes(n.address)) for n in networks]

    def inside(address: bytes) -> Holds:
        size, value, some = len(address), int.from_bytes(address), False
        bits = size * 8 if value else 0
        for length, prefix, network in wanted:
            shift = size * 8 - min(bits, prefix)
            if length == size and value >> shift == network >> shift:
                if prefix <= bits:
                    return True
                some = True
        return None if some else False

    return inside


def _address(end: str) -> Callable[[Sequence[Network]], Condition]:
    def condition(asked: Sequence[Network]) -> Condition:
        address_of, inside = attrgetter(end), _inside(asked)

        def holds(facts: Facts) -> Holds:
            address = address_of(facts.key)
            return any(address) and inside(address)

        return holds

    return condition


def _address_of_port(end: str) -> Callable[[Sequence[Network]], Condition]:
    def condition(asked: Sequence[Network]) -> Condition:
        address_of, inside = attrgetter(end), _inside(asked)

        def holds(facts: Facts) -> Holds:
            return None if _both_families(facts.key) else inside(address_of(facts.key))

        return holds

    return condition


def _both_families(key: FlowKey) -> bool:
    """A listener of any IPv6 address takes connections of IPv4 too."""
    return key.listens and key.family == 6 and not any(key.local)


# Cheapest first.
CONDITIONS: Conditions = {
    "protocols": lambda asked: lambda facts: facts.key.protocol in asked,
    "ports": _ports,
    "direction": _direction,
    "local": _address("local"),
    "remote": _address("remote"),
    "users": lambda asked: _known(lambda facts: facts.process.uid, asked.__contains__),
    "interfaces": lambda asked: _known(lambda facts: facts.interface, meets_one(asked)),
    "processes": lambda asked: _known(lambda facts: facts.comm, meets_one(asked)),
    "cgroups": lambda asked: _known(lambda facts: facts.process.cgroup, meets_one(asked)),
    "units": _units,
    "commands": lambda asked: _known(lambda facts: facts.process.command, meets_one(asked)),
}
_CONDITIONS_OF_PORT: Conditions = {
    **CONDITIONS,
    "local": _address_of_port("local"),
    "remote": _address_of_port("remote"),
}
