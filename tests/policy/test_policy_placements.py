# SPDX-License-Identifier: GPL-2.0-or-later
"""Placements of flows and of what is forwarded, and the softirq budget: what they come to, and what
they cannot be together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from atfnd.model import ForwardingRule, Mode, PairPlacement, Placement, PlacementKind
from atfnd.policy.file.decode import decode
from atfnd.policy.file.document import Document
from atfnd.policy.file.load import check, load
from atfnd.policy.file.placement import wrong_cpus
from atfnd.policy.match.match import forwarding_rules
from tests.policy.test_policy import policy_of

RULE = "  - {{ name: {}, match: {{ ports: {} }}, placement: {} }}\n"


def policy(*placements: str) -> str:
    rules = (RULE.format(f"r{i}", i, each) for i, each in enumerate(placements, 1))
    return "version: 1\nflows:\n" + "".join(rules)


def wrong(text: str) -> list[str]:
    """Each problem of a file in one line, without the file's name. The machine has 8 CPUs."""
    document = Document("f", text.encode())
    content, problems = decode(document)
    if content is not None:
        problems = wrong_cpus([(document, content)], 8)
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


OWNED = "overlapping ownership: CPU 2 is dedicated to"
MACHINE = "[this machine can have CPUs 0 to 7]"


@pytest.mark.parametrize(
    ("placements", "said"),
    [
        (["{dedicated: [0-3]}", "{dedicated: [5, 2-4]}"],
         f"4:65: {OWNED} `r1` [by f:3: a dedicated CPU serves no other rule]"),
        (["{dedicated: [2, 3]}", "{cpus: [1-2]}"], f"4:57: {OWNED} `r1`"),
        (["{cpus: [1-2]}", "{dedicated: [2, 3]}"], f"3:57: {OWNED} `r2`"),
        (["{cpus: [0-3]}", "{cpus: [2]}", "{dedicated: 4}", "{near: llc}"], None),
        (["{cpus: [0, 7-8]}"], f"3:60: impossible CPU 8 {MACHINE}"),
        (["{dedicated: [0, 7-8]}"], f"3:65: impossible CPU 8 {MACHINE}"),
        (["{dedicated: [0, 7]}"], None),
    ],
)  # fmt: skip
def test_which_cpus_rules_may_have(placements: list[str], said: str | None) -> None:
    found = wrong(policy(*placements))
    assert len(found) == (said is not None)
    assert said is None or found[0].startswith(said)


@pytest.mark.parametrize(("serve_on", "said"), [
    ('"0-8"', "impossible CPU 8"),
    ('"!0-7"', "`!0-7` leaves no CPU"),
    ('"!1-7"', None),
])  # fmt: skip
def test_the_cpus_of_queues_must_exist(serve_on: str, said: str | None) -> None:
    found = wrong(f"version: 1\ninterfaces: [{{match: {{name: x}}, serve_on: {serve_on}}}]\n")
    assert found == ([f"2:43: {said} {MACHINE}"] if said else [])


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


def test_every_placement_of_a_pair(tmp_path: Path) -> None:
    written = {
        "{ pair: llc }": PairPlacement.LLC, "{ pair: node }": PairPlacement.NODE,
        "{ pair: leave }": PairPlacement.LEAVE, "{ mode: 0 }": PairPlacement.MODE_0,
        "{ mode: I }": PairPlacement.MODE_I,
    }  # fmt: skip
    rule = "  - {{ name: r{}, match: {{ in: x, out: y }}, placement: {} }}\n"
    rules = "".join(rule.format(number, each) for number, each in enumerate(written))
    found = policy_of(tmp_path, HEAD + rules).forwarding
    assert [each.placement for each in found] == list(written.values())


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
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    host: str,
    packets: int | None,
    time_us: int | None,
) -> None:
    found = policy_of(tmp_path, f"{HOST}{host}").softirq_budget
    assert (found.packets, found.time_us) == (packets, time_us)
    assert found.source == (f"{tmp_path / 'atfnd.yaml'}:2" if found.values else None)
    check(tmp_path / "atfnd.yaml")
    wanted = "host: netdev-budget 2, netdev-budget-usecs 20000 ("
    assert (wanted in capsys.readouterr().out) == (packets == 2)
