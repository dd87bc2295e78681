# SPDX-License-Identifier: GPL-2.0-or-later
"""Flow rules as clauses, judged by the code that judges them in the kernel: it may be silent of
flows that no rule can steer, and of no other."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from atfnd.bpf.layout import layout
from atfnd.model import (
    Clause,
    Direction,
    Facts,
    FlowKey,
    FlowRule,
    Network,
    Placement,
    Policy,
    Process,
    Protocol,
)
from atfnd.observe.sockets.clauses import encoded
from atfnd.policy.file.load import load
from atfnd.policy.match import compile as compiling
from atfnd.policy.match.compile import Compiled, compiled
from atfnd.policy.match.match import Matcher
from bench.extension import _bench
from tests.kernel.netns import packed
from tests.values import RULE, key

NEVER = 2**64 - 1
FACTS = layout("observer", "clause_facts")
PROTOCOLS = {Protocol.TCP: 1, Protocol.UDP: 2, Protocol.SCTP: 4}  # enum clause_protocol
DIRECTIONS = {None: 0, Direction.ACCEPTED: 4, Direction.CONNECTED: 8}  # enum observer_flag
LEAVE = replace(RULE, name="leave", placement=Placement.LEAVE)

ADDRESSES = {4: ["0.0.0.0", "10.0.0.1", "10.1.0.1"], 6: ["::", "fd00::1", "fd00:0:0:1::1"]}
CGROUPS = "/system.slice/a.service", "/system.slice/b.service", "/user.slice"
GLOBS = (
    "*", "/system.slice/*", "*.slice", "a.service", "!*.slice", "!a.service", "!/system.slice/*",
)  # fmt: skip
FEW = st.integers(0, 2)


def some(choices: st.SearchStrategy[Any], *, as_set: bool = False) -> st.SearchStrategy[Any]:
    """What a rule asks for: alternatives, or nothing."""
    several = st.lists(choices, min_size=1, max_size=3, unique=True)
    return st.none() | several.map(frozenset if as_set else tuple)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    family = draw(st.sampled_from([4, 6]))
    address = packed(draw(st.sampled_from(ADDRESSES[family])))
    bits = len(address) * 8
    prefix = draw(st.sampled_from([0, 8, 15, 16, 32, 33, 60, 64, 127, 128]).filter(bits.__ge__))
    value = int.from_bytes(address) >> bits - prefix << bits - prefix
    return Network(family, value.to_bytes(len(address)), prefix)


PORTS = st.tuples(FEW, FEW).map(sorted).map(tuple)
NAMES = some(st.sampled_from(GLOBS))
SEEN = {
    "protocols": some(st.sampled_from(Protocol), as_set=True),
    "ports": some(PORTS),
    "local": some(networks()),
    "remote": some(networks()),
    "direction": st.none() | st.sampled_from(Direction),
    "cgroups": NAMES,
    "units": NAMES,
}
MUCH: dict[str, Any] = dict.fromkeys(("bytes", "age_ns", "rate_bit_s"), sys.maxsize)
THRESHOLDS = {"min_bytes": FEW, "min_age_ns": FEW, "min_rate_bit_s": FEW}
UNSEEN = {
    "interfaces": NAMES, "processes": NAMES, "commands": NAMES, "users": some(FEW, as_set=True),
}  # fmt: skip


def rules(placement: Placement, **asked: st.SearchStrategy[Any]) -> st.SearchStrategy[FlowRule]:
    return st.fixed_dictionaries({}, optional=asked).map(
        lambda fields: replace(RULE, placement=placement, **fields)
    )


LEAVES = rules(Placement.LEAVE, **SEEN)
STEERS = rules(Placement.CORE, **SEEN, **THRESHOLDS)
ANY_RULES = st.lists(
    rules(Placement.LEAVE, **SEEN, **THRESHOLDS, **UNSEEN)
    | LEAVES
    | rules(Placement.CORE, **SEEN, **THRESHOLDS, **UNSEEN),
    max_size=6,
)


@st.composite
def flows(draw: st.DrawFn) -> Facts:
    """With what user space may know of them."""
    ends = ADDRESSES[draw(st.sampled_from([4, 6]))]
    local, remote = (packed(draw(st.sampled_from(ends))) for _ in "ab")
    protocol = draw(st.sampled_from(Protocol))
    name = st.none() | st.sampled_from(GLOBS)
    return Facts(
        FlowKey(protocol, local, draw(FEW), remote, draw(FEW)),
        draw(name),
        Process(draw(name), draw(st.none() | FEW), draw(st.none() | st.sampled_from(CGROUPS))),
        draw(name),
        None if protocol == Protocol.UDP else draw(st.none() | st.sampled_from(Direction)),
        draw(FEW),
        draw(FEW),
        draw(FEW),
    )


def policy(rules: Sequence[FlowRule]) -> Policy:
    numbered = (replace(rule, name=str(at)) for at, rule in enumerate(rules))
    return Policy((), tuple(numbered), "auto", 1, 0, ())


def judged(made: Compiled, facts: Facts, *, direction: bool, group: bool) -> tuple[int, int]:
    """(bytes, age) from which on a flow is reported, by what the kernel knows of it: its direction
    and its group, or not."""
    flow, cgroup = facts.key, facts.process.cgroup if group else None
    values = {
        "groups": 0 if cgroup is None else made.groups_of(cgroup),
        "local": flow.local,
        "remote": flow.remote,
        "local_port": flow.local_port,
        "remote_port": flow.remote_port,
        "family": flow.family,
        "protocol": PROTOCOLS[Protocol(flow.protocol)],
        "direction": DIRECTIONS[facts.direction if direction else None],
        "groups_known": cgroup is not None,
    }
    packed_facts = FACTS.codec.pack(*(values[field] for field in FACTS.fields))
    return _bench.clauses_judge(b"".join(map(encoded, made.clauses)), packed_facts)


def steered(matcher: Matcher, facts: Facts) -> bool:
    rule = matcher.first_match(facts)
    return rule is not None and rule.placement is not Placement.LEAVE


def silent(rules: Sequence[FlowRule], facts: Facts) -> bool:
    return judged(compiled(policy(rules)), facts, direction=True, group=True)[0] == NEVER


@given(ANY_RULES, flows(), st.booleans(), st.booleans(), st.sampled_from([3, 5, 8, 256]))
@example([LEAVE, RULE], Facts(key(1)), False, False, 3)
def test_a_flow_that_the_policy_steers_is_reported(
    rules: list[FlowRule], facts: Facts, direction: bool, group: bool, room: int
) -> None:
    """Whatever else user space knows, and however little finds room in the kernel."""
    made = policy(rules)
    matcher = Matcher(made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "CLAUSES", room)
        patch.setattr(compiling, "GROUPS", 2)
        clauses = compiled(made)
    assert len(clauses.clauses) <= room
    min_bytes, min_age_ns = judged(clauses, facts, direction=direction, group=group)
    if steered(matcher, facts):
        assert min_bytes <= facts.bytes
        assert min_age_ns <= facts.age_ns
    if min_bytes == NEVER:
        assert not steered(matcher, facts._replace(**MUCH))


@given(st.lists(LEAVES | STEERS, max_size=6), flows())
def test_one_that_it_leaves_is_not_where_the_kernel_sees_all_that_is_asked(
    rules: list[FlowRule], facts: Facts
) -> None:
    known = facts._replace(process=Process(cgroup=facts.process.cgroup or CGROUPS[0]))
    if known.key.protocol != Protocol.UDP:
        known = known._replace(direction=facts.direction or Direction.ACCEPTED)
    assert silent(rules, known) != steered(Matcher(policy(rules)), known._replace(**MUCH))


def test_the_loosest_that_a_flow_may_fall_under() -> None:
    web = replace(RULE, ports=((443, 443),), min_bytes=1000, min_age_ns=5)
    fast = replace(RULE, processes=("nginx",), min_bytes=10, min_age_ns=50)
    other = replace(RULE, ports=((80, 80),))
    made = compiled(policy([web, other, fast, LEAVE, RULE]))
    assert judged(made, Facts(key(1)), direction=True, group=True) == (10, 5)


def test_what_is_built_in_is_silent_of_ssh_and_judges_the_rest(tmp_path: Path) -> None:
    (tmp_path / "none.yaml").write_text("version: 1\n")
    made = compiled(load(tmp_path / "none.yaml"))
    assert made.clauses[-1] == Clause(True)
    ssh = key(1)._replace(local_port=22)
    assert judged(made, Facts(ssh), direction=True, group=True) == (NEVER, NEVER)
    assert judged(made, Facts(key(1)), direction=True, group=True) == (64 * 1024, 200_000_000)


def test_no_more_groups_than_there_are_bits() -> None:
    grouped = [replace(RULE, cgroups=(f"/{number}",)) for number in range(compiling.GROUPS + 1)]
    made = compiled(policy(grouped))
    assert len(made.groups) == compiling.GROUPS
    assert [each.group for each in made.clauses[-3:]] == [compiling.GROUPS - 1, None, None]
