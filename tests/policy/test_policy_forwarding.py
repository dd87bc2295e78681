# SPDX-License-Identifier: GPL-2.0-or-later
"""The `forwarding` rules of a policy: their values, which one decides, and what is wrong with
them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from atfnd.model import ForwardingRule, Mode, PairPlacement
from atfnd.policy.file.load import load
from atfnd.policy.file.problem import PolicyError
from atfnd.policy.match.match import forwarding_rules

__all__: list[str] = []

RULE = ForwardingRule(
    "a", "test:1", ("wan*",), ("lan*", "!lan0"), False, PairPlacement.CORE, Mode.STRICT
)
HEAD = "version: 1\nforwarding:\n"


def written(folder: Path, text: str) -> tuple[ForwardingRule, ...]:
    path = folder / "atfnd.yaml"
    path.write_text(text)
    return load(path).forwarding


def test_a_rule_has_what_is_written_and_defaults(tmp_path: Path) -> None:
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
    a, b = written(tmp_path, HEAD + text)
    assert replace(a, source="test:1") == RULE
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
def test_every_placement(tmp_path: Path, placement: str, expected: PairPlacement) -> None:
    rule = f"  - {{ name: a, match: {{ in: x, out: y }}, placement: {placement} }}\n"
    (found,) = written(tmp_path, HEAD + rule)
    assert found.placement is expected


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("match: ^{in: x}, placement: {pair: core}", "`out` is missing"),
        ("match: {in: ^1, out: y}, placement: {pair: core}", "expected an interface name"),
        ("match: {^inn: x, in: x, out: y}, placement: {pair: core}", "unknown key `inn`"),
        ("match: {in: x, out: y}, placement: {pair: ^far}", "expected core, llc, node or leave"),
        ("match: {in: x, out: y}, placement: {mode: ^III}", "expected 0, I or II"),
        ("match: {in: x, out: y}, placement: ^{}", "a placement of no place"),
        ("match: {in: x, out: y}, placement: ^{pair: core, mode: I}", "a placement of pair and"),
        ("match: {in: x, out: y}, placement: {pair: core}, order: ^at-once", "expected strict or"),
    ],
)
def test_a_mistake_is_reported_at_its_place(tmp_path: Path, rule: str, message: str) -> None:
    line = f"  - {{name: a, {rule}}}"
    with pytest.raises(PolicyError) as refused:
        written(tmp_path, f"{HEAD}{line.replace('^', '')}\n")
    (problem,) = refused.value.problems
    assert (problem.line, problem.column) == (3, line.index("^") + 1)
    assert problem.message.startswith(message)


def test_a_name_is_given_once(tmp_path: Path) -> None:
    rule = "  - {name: a, match: {in: x, out: y}, placement: {pair: core}}\n"
    with pytest.raises(PolicyError) as refused:
        written(tmp_path, HEAD + rule + rule)
    (problem,) = refused.value.problems
    assert problem.message == "a second forwarding rule named `a`"
    assert str(problem.hint).endswith("atfnd.yaml:3")


def test_the_first_rule_that_matches_two_interfaces_decides() -> None:
    later = replace(RULE, name="b", ingress=("*",), egress=("*",), one_way=True)
    found = forwarding_rules((RULE, later), ("wan0", "lan0", "lan1"))
    assert {pair: rule.name for pair, rule in found.items()} == {
        ("wan0", "lan1"): "a",
        ("lan1", "wan0"): "a",
        ("wan0", "lan0"): "b",
        ("lan0", "wan0"): "b",
        ("lan0", "lan1"): "b",
        ("lan1", "lan0"): "b",
    }
