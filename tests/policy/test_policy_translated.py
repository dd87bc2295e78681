# SPDX-License-Identifier: GPL-2.0-or-later
"""Filters for translated flows, as an operator writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from atfnd.model import ForwardingRule, Mode, PairPlacement
from atfnd.policy.file.load import load
from atfnd.policy.file.problem import PolicyError
from atfnd.policy.match.match import forwarding_rule

__all__: list[str] = []

RULE = """\
version: 1
forwarding:
  - name: gateway
    match: {{ in: "wan*", out: "lan*" }}
    placement: {{ pair: leave }}
    {}
"""


def loaded(folder: Path, line: str) -> ForwardingRule:
    file = folder / "atfnd.yaml"
    file.write_text(RULE.format(line))
    policy = load(file)
    (rule,) = policy.forwarding
    assert policy.translates() == (rule.translated_max is not None)
    return rule


def test_a_rule_has_none_unless_it_says_how_many(tmp_path: Path) -> None:
    assert loaded(tmp_path, "order: bounded").translated_max is None
    rule = loaded(tmp_path, "translated: { filters: 64 }")
    assert (rule.translated_max, rule.of_flows) == (64, "forwarding gateway")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("translated: { filters: 0 }", "filters"),
        ("translated: {}", "filters"),
        ("translated: 64", "a mapping"),
        ("translated: { filters: 1, most: 2 }", "most"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        loaded(tmp_path, line)


def test_the_first_rule_decides_about_both_ways() -> None:
    def rule(name: str, ingress: str, egress: str, one_way: bool = False) -> ForwardingRule:
        leave, order = PairPlacement.LEAVE, Mode.STRICT
        return ForwardingRule(name, "", (ingress,), (egress,), one_way, leave, order)

    rules = (
        rule("there", "wan*", "lan0", one_way=True),
        rule("both", "wan*", "lan*"),
        rule("stick", "dmz", "dmz"),
    )

    def name(ingress: str, egress: str) -> str | None:
        found = forwarding_rule(rules, ingress, egress)
        return None if found is None else found.name

    assert name("wan1", "lan0") == "there"
    assert name("lan0", "wan1") == "both"
    assert name("dmz", "dmz") == "stick"
    assert name("lan0", "lan1") is None
