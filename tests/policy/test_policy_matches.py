# SPDX-License-Identifier: GPL-2.0-or-later
"""What a rule asks of a flow beyond its key: its process, its NIC, its direction, its rate; and
that sizes, times and rates are what is written, to the last bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.model import (
    Direction,
    Facts,
    FlowRule,
    Placement,
    Policy,
    Process,
    Protocol,
)
from atfnd.policy.file.problem import Mistake
from atfnd.policy.file.units import MAX, RATES, SIZES, TIMES, rate_bit_s, size_bytes, time_ns
from atfnd.policy.match.match import Matcher, meets
from atfnd.policy.match.systemd import units_in
from tests.values import RULE, key

LEAVE = replace(RULE, name="leave", placement=Placement.LEAVE)
NGINX = Facts(
    key(1),
    "nginx",
    Process("nginx: worker process", 33, "/system.slice/nginx.service"),
    "eth0",
    Direction.ACCEPTED,
)


def matches(facts: Facts, **asked: Any) -> bool:
    return first(facts, replace(RULE, **asked)) is not None


def first(facts: Facts, *rules: FlowRule) -> FlowRule | None:
    return Matcher(Policy((), rules, "auto", 1, 0, ())).first_match(facts)


@pytest.mark.parametrize(
    ("asked", "is_so"),
    [
        ({"commands": ("nginx: *",)}, True),
        ({"commands": ("nginx",)}, False),  # a glob is on the whole of it
        ({"commands": ("a", "*worker*")}, True),
        ({"users": frozenset({33})}, True),
        ({"cgroups": ("/system.slice/*",)}, True),
        ({"cgroups": ("/system.slice",)}, False),
        ({"units": ("nginx.service",)}, True),
        ({"units": ("ngin*",)}, True),
        ({"processes": ("a", "ngin?")}, True),
        ({"processes": ("ngin?", "!nginx")}, False),
        ({"cgroups": ("/system.slice/*", "!*/a.service")}, True),
        ({"units": ("!nginx.service",)}, False),  # it is in system.slice, too
        ({"units": ("!a.service", "!user.slice")}, True),
        ({"units": ("user.slice", "!a.service")}, False),
        ({"interfaces": ("eth*", "!eth0")}, False),
        ({"direction": Direction.ACCEPTED}, True),
        ({"direction": Direction.CONNECTED}, False),
        ({"commands": ("nginx: *",), "users": frozenset({0})}, False),  # all of them
    ],
    ids=str,
)
def test_a_flow_must_meet_what_is_asked(asked: dict[str, Any], is_so: bool) -> None:
    assert matches(NGINX, **asked) == is_so
    unknown = Facts(NGINX.key)
    assert not matches(unknown, **asked)
    assert matches(unknown, **asked, placement=Placement.LEAVE)
    assert matches(NGINX, **asked, placement=Placement.LEAVE) == is_so


def test_a_process_in_no_unit_is_known_to_be_in_none() -> None:
    alone = Facts(key(1), process=Process(cgroup="/"))
    assert first(alone, replace(LEAVE, units=("*",))) is None
    assert first(alone, replace(LEAVE, cgroups=("/",))) is not None
    assert first(alone, replace(LEAVE, units=("!a.service",))) is not None
    assert first(alone, replace(LEAVE, units=("*.service", "!a.service"))) is None


def test_udp_has_no_direction() -> None:
    facts = Facts(key(1)._replace(protocol=Protocol.UDP))
    for direction in Direction:
        for placement in (Placement.LEAVE, Placement.CORE):
            assert not matches(facts, direction=direction, placement=placement)


def test_the_units_of_a_path() -> None:
    user = "/user.slice/user-0.slice/user@0.service/app.slice/a.scope"
    assert units_in(user) == tuple(user.split("/")[1:])
    assert units_in("/system.slice/a.service/worker") == ("system.slice", "a.service")
    assert units_in("/system.slice/_cpu.service") == ("system.slice", "cpu.service")
    assert units_in("/") == units_in("/kubepods/pod1") == units_in("/.slice") == ()


FEW = st.integers(0, 3)


@given(st.lists(st.tuples(FEW, FEW, FEW), max_size=4), FEW, FEW, FEW)
def test_more_never_leads_to_a_later_rule(
    asked: list[tuple[int, int, int]], bytes: int, age_ns: int, rate: int
) -> None:
    rules = [
        replace(RULE, name=str(i), min_bytes=b, min_age_ns=a, min_rate_bit_s=r)
        for i, (b, a, r) in enumerate(asked)
    ]
    matcher = Matcher(Policy((), tuple(rules), "auto", 1, 0, ()))
    rule, others = matcher.look(Facts(key(1), bytes=bytes, age_ns=age_ns, rate_bit_s=rate))
    at = len(rules) if rule is None else rules.index(rule)
    assert list(others) == rules[:at]
    assert not any(meets(each, bytes, age_ns, rate) for each in others)
    for more in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        grown = Facts(
            key(1), bytes=bytes + more[0], age_ns=age_ns + more[1], rate_bit_s=rate + more[2]
        )
        later = matcher.first_match(grown)
        assert (len(rules) if later is None else rules.index(later)) <= at


# Sizes, times and rates


Kind = tuple[Callable[[object], int], Mapping[str, int]]
KINDS: list[Kind] = [(size_bytes, SIZES), (time_ns, TIMES), (rate_bit_s, RATES)]


@given(st.sampled_from(KINDS), st.data())
def test_units_multiply_exactly(kind: Kind, data: st.DataObject) -> None:
    parse, units = kind
    unit = data.draw(st.sampled_from(list(units)))
    number = data.draw(st.from_regex(r"[0-9]{1,20}(\.[0-9]{1,4})?", fullmatch=True))
    amount = Fraction(number) * units[unit]
    if amount.denominator == 1 and amount <= MAX:
        assert parse(number + unit) == amount
        assert parse(f"{number} {unit}") == amount
    else:
        with pytest.raises(Mistake):
            parse(number + unit)


def test_a_rate_may_say_that_it_is_one() -> None:
    assert rate_bit_s("500Mbit") == rate_bit_s("500 Mbit/s") == 500_000_000
    assert rate_bit_s("10MiB/s") == 10 * 2**20 * 8


@pytest.mark.parametrize(
    ("written", "message", "hint"),
    [
        ("1.5G", "unknown unit `G`", "did you mean 1.5Gbit?"),
        ("500mbit", "unknown unit `mbit`", "did you mean 500Mbit?"),
        ("500Mbps", "unknown unit `Mbps`", "did you mean 500Mbit?"),
        ("10MB/s", "unknown unit `MB/s`", "did you mean 10MiB/s?"),
        ("500Mbit/h", "unknown unit `Mbit/h`", "units: bit"),
        (None, "expected a rate such as 500Mbit, got nothing", "units: bit"),
    ],
)
def test_no_rate(written: object, message: str, hint: str | None) -> None:
    with pytest.raises(Mistake) as caught:
        rate_bit_s(written)
    assert caught.value.message.startswith(message)
    assert (caught.value.hint or "").startswith(hint or "")
    assert (caught.value.hint is None) == (hint is None)
