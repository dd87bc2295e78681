# SPDX-License-Identifier: GPL-2.0-or-later
"""Placements of flows and of what is forwarded, and the softirq budget: what they come to, and what
they cannot be together."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from atfnd.model import ForwardingRule, Mode, PairPlacement, Placement, PlacementKind
from atfnd.policy.file.decode import decode
from atfnd.policy.file.document import Document
from atfnd.policy.file.load import check, load
from atfnd.policy.file.placement import wrong_cpus
from atfnd.policy.file.problem import PolicyError
from atfnd.policy.match.match import forwarding_rules
from tests.daemons import ATFND
from tests.policy.test_policy import policy_of
from tests.serve.asking import forked

__all__: list[str] = []

POSSIBLE = os.sysconf("SC_NPROCESSORS_CONF")
RULE = "  - {{ name: {}, match: {{ ports: {} }}, placement: {} }}\n"


def policy(*placements: str) -> str:
    rules = (RULE.format(f"r{i}", i, each) for i, each in enumerate(placements, 1))
    return "version: 1\nflows:\n" + "".join(rules)


def wrong(text: str, possible: int = 8) -> list[str]:
    """Each problem of a file in one line, without the file's name."""
    document = Document("f", text.encode())
    content, problems = decode(document)
    if content is not None:
        problems = wrong_cpus([(document, content)], possible)
    return [
        f"{each.line}:{each.column}: {each.message}" + (f" [{each.hint}]" if each.hint else "")
        for each in problems
    ]


@pytest.mark.parametrize(
    ("written", "meant", "reported"),
    [
        ("leave", Placement.LEAVE, "leave"),
        ("auto", Placement.AUTO, "auto"),
        ("{near: core}", Placement.CORE, "near core"),
        ("{near: smt}", Placement(PlacementKind.SMT), "near smt"),
        ("{near: llc}", Placement(PlacementKind.LLC), "near llc"),
        ("{avoid: smt, near: node}", Placement(PlacementKind.NODE, avoid_smt=True),
         "near node, avoid smt"),
        ("{cpus: [0, 0-0]}", Placement(PlacementKind.CPUS, frozenset({0})), "cpus 0"),
        ("{dedicated: [0]}", Placement(PlacementKind.DEDICATED, frozenset({0})), "dedicated 0"),
    ],
)  # fmt: skip
def test_what_is_written_is_what_is_meant(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    written: str,
    meant: Placement,
    reported: str,
) -> None:
    file = tmp_path / "atfnd.yaml"
    file.write_text(policy(written))
    rule = next(rule for rule in load(file).flows if rule.name == "r1")
    assert rule.placement == meant
    assert (rule.placement is Placement.CORE) == (meant == Placement.CORE)
    check(file)
    assert f"r1: {reported}" in capsys.readouterr().out


def test_two_rules_cannot_dedicate_one_cpu() -> None:
    text = policy("{dedicated: [0-3]}", "{dedicated: [5, 2-4]}")
    column = text.splitlines()[3].index("2-4") + 1
    assert wrong(text) == [
        f"4:{column}: overlapping ownership: CPU 2 is dedicated to `r1` "
        "[by f:3: a dedicated CPU serves no other rule]"
    ]


@pytest.mark.parametrize("dedicated_first", [True, False])
def test_a_dedicated_cpu_is_named_by_no_other_rule(dedicated_first: bool) -> None:
    both = ["{dedicated: [2, 3]}", "{cpus: [1-2]}"]
    text = policy(*(both if dedicated_first else reversed(both)))
    owner, other = ("r1", 4) if dedicated_first else ("r2", 3)
    (problem,) = wrong(text)
    assert problem.startswith(f"{other}:")
    assert f"overlapping ownership: CPU 2 is dedicated to `{owner}`" in problem


def test_rules_may_share_cpus_that_nobody_dedicates() -> None:
    assert wrong(policy("{cpus: [0-3]}", "{cpus: [2]}", "{dedicated: 4}", "{near: llc}")) == []


@pytest.mark.parametrize("key", ["cpus", "dedicated"])
def test_a_cpu_that_cannot_exist_is_impossible(key: str) -> None:
    (problem,) = wrong(policy(f"{{{key}: [0, 7-8]}}"))
    assert problem.endswith("impossible CPU 8 [this machine can have CPUs 0 to 7]")
    assert wrong(policy(f"{{{key}: [0, 7]}}")) == []


@pytest.mark.parametrize(("serve_on", "said"), [
    ('"0-8"', "impossible CPU 8"),
    ('"!8"', "impossible CPU 8"),
    ('"!0-7"', "`!0-7` leaves no CPU"),
    ('"0-7"', None),
    ('"!1-7"', None),
])  # fmt: skip
def test_the_cpus_of_queues_must_exist(serve_on: str, said: str | None) -> None:
    found = wrong(f"version: 1\ninterfaces: [{{match: {{name: x}}, serve_on: {serve_on}}}]\n")
    assert found == ([f"2:43: {said} [this machine can have CPUs 0 to 7]"] if said else [])


def test_this_machines_cpus_are_known_to_check(tmp_path: Path) -> None:
    file = tmp_path / "atfnd.yaml"
    file.write_text(policy(f"{{cpus: {POSSIBLE}}}"))
    with pytest.raises(PolicyError, match=f"atfnd.yaml:3:.*: impossible CPU {POSSIBLE}"):
        check(file)


# What is forwarded

GATEWAY = ForwardingRule(
    "a", "test:1", ("wan*",), ("lan*", "!lan0"), False, PairPlacement.CORE, Mode.STRICT
)
HEAD = "version: 1\nforwarding:\n"


def test_a_forwarding_rule_has_what_is_written_and_defaults(tmp_path: Path) -> None:
    text = """\
  - name: a
    match: { in: "wan*", out: "lan*|!lan0" }
    placement: { pair: core }
  - name: b
    match: { in: eth0, out: eth1 }
    one_way: true
    placement: { mode: II }
    order: bounded
"""
    a, b = policy_of(tmp_path, HEAD + text).forwarding
    assert replace(a, source="test:1") == GATEWAY
    assert a.source.endswith("atfnd.yaml:3")
    assert (b.one_way, b.placement, b.order) == (True, PairPlacement.MODE_II, Mode.BOUNDED)


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        ("{ pair: llc }", PairPlacement.LLC),
        ("{ pair: node }", PairPlacement.NODE),
        ("{ pair: leave }", PairPlacement.LEAVE),
        ("{ mode: 0 }", PairPlacement.MODE_0),
        ("{ mode: I }", PairPlacement.MODE_I),
    ],
)
def test_every_placement_of_a_pair(tmp_path: Path, placement: str, expected: PairPlacement) -> None:
    rule = f"  - {{ name: a, match: {{ in: x, out: y }}, placement: {placement} }}\n"
    (found,) = policy_of(tmp_path, HEAD + rule).forwarding
    assert found.placement is expected


def test_a_forwarding_rule_has_a_name_of_its_own(tmp_path: Path) -> None:
    rule = "  - {name: a, match: {in: x, out: y}, placement: {pair: core}}\n"
    with pytest.raises(PolicyError) as refused:
        policy_of(tmp_path, HEAD + rule + rule)
    (problem,) = refused.value.problems
    assert problem.message == "a second forwarding rule named `a`"
    assert str(problem.hint).endswith("atfnd.yaml:3")


def test_the_first_rule_that_matches_two_interfaces_decides() -> None:
    later = replace(GATEWAY, name="b", ingress=("*",), egress=("*",), one_way=True)
    found = forwarding_rules((GATEWAY, later), ("wan0", "lan0", "lan1"))
    assert {pair: rule.name for pair, rule in found.items()} == {
        ("wan0", "lan1"): "a",
        ("lan1", "wan0"): "a",
        ("wan0", "lan0"): "b",
        ("lan0", "wan0"): "b",
        ("lan0", "lan1"): "b",
        ("lan1", "lan0"): "b",
    }


# The softirq budget of the machine

HOST = "version: 1\nhost: "


@pytest.mark.parametrize(
    ("host", "packets", "time_us"),
    [
        ("{softirq_budget: {packets: 2, time: 20ms}}", 2, 20_000),
        ("{softirq_budget: {packets: 2147483647}}", 2**31 - 1, None),
        ("{softirq_budget: {time: 1s}}", None, 1_000_000),
        ("{}", None, None),
    ],
)
def test_a_budget_has_what_is_written(
    tmp_path: Path, host: str, packets: int | None, time_us: int | None
) -> None:
    found = policy_of(tmp_path, f"{HOST}{host}").softirq_budget
    assert (found.packets, found.time_us) == (packets, time_us)
    assert found.source == (f"{tmp_path / 'atfnd.yaml'}:2" if found.values else None)


def test_check_says_what_is_asked_for_of_the_machine(tmp_path: Path) -> None:
    file = tmp_path / "atfnd.yaml"
    file.write_text(HOST + "{softirq_budget: {packets: 2, time: 20ms}}\n")
    done = forked([ATFND, "check", str(file)])
    assert f"host: netdev-budget 2, netdev-budget-usecs 20000 ({file}:2)\n" in done.stdout
