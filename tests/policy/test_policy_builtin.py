# SPDX-License-Identifier: GPL-2.0-or-later
"""The rules that hold where no file says otherwise, and how a file says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from atfnd.policy.file.load import load
from atfnd.policy.file.problem import PolicyError
from tests.policy.test_policy import key, policy_of, rule_for

__all__: list[str] = []


def test_a_rule_named_rest_replaces_the_built_in_one_and_stands_after_all_others(
    tmp_path: Path,
) -> None:
    policy = policy_of(
        tmp_path,
        "version: 1\nflows:\n"
        "- {name: rest, match: {protocol: udp}, placement: leave}\n"
        "- {name: web, match: {ports: 443}, placement: {near: core}}\n",
    )
    assert [rule.name for rule in policy.flows] == ["control", "web", "rest"]
    assert rule_for(policy, key()) == "web"
    assert rule_for(policy, key(local="10.0.0.1:9")) is None


REST = "flows:\n- {name: rest, match: {protocol: tcp}, placement: leave}\n"


def test_two_files_may_have_the_same_rest(tmp_path: Path) -> None:
    config, part = tmp_path / "atfnd.yaml", tmp_path / "policies.d" / "a.yaml"
    part.parent.mkdir()
    config.write_text(f"version: 1\n{REST}")
    part.write_text(f"version: 1\nabout: Another file.\n{REST}")
    policy = load(config)
    assert [rule.source for rule in policy.flows[1:]] == [f"{config}:3"]

    part.write_text(f"version: 1\n{REST}".replace("tcp", "udp"))
    with pytest.raises(PolicyError) as caught:
        load(config)
    [problem] = caught.value.problems
    assert (problem.file, problem.line) == (str(part), 3)
    assert problem.message == "a second flow rule named `rest`"
    assert problem.hint == f"the first is at {config}:3 and says something else"


def test_what_replaces_control_stands_before_all_others(tmp_path: Path) -> None:
    policy = policy_of(
        tmp_path,
        "version: 1\nflows:\n"
        "- {name: all, match: {protocol: tcp}, placement: {near: core}}\n"
        "- {name: control, match: {ports: 179}, placement: leave, replaces_built_in: true}\n",
    )
    assert [rule.name for rule in policy.flows] == ["control", "all", "rest"]
    assert rule_for(policy, key(local="10.0.0.1:179")) == "control"
    assert rule_for(policy, key(local="10.0.0.1:22")) == "all"


def test_what_leaves_the_ways_in_alone_may_be_named_control(tmp_path: Path) -> None:
    policy = policy_of(
        tmp_path,
        "version: 1\nflows:\n"
        "- {name: all, match: {protocol: tcp}, placement: {near: core}}\n"
        "- {name: control, match: {ports: [20-23, 179, 6653]}, placement: leave}\n",
    )
    assert [rule.name for rule in policy.flows] == ["control", "all", "rest"]
    assert rule_for(policy, key(local="10.0.0.1:22")) == "control"
    assert rule_for(policy, key(local="10.0.0.1:6653")) == "control"


BUILT_IN = "`control` is the built-in rule that leaves ssh and BGP alone"


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("name: control, match: {ports: 9000}, placement: {near: core}", BUILT_IN),
        ("name: control, match: {ports: 179}, placement: leave", BUILT_IN),
        ("name: control, match: {ports: [22, 179], remote: 10.0.0.0/8}, placement: leave",
         BUILT_IN),
        ("name: mine, match: {ports: 1}, placement: leave, replaces_built_in: true",
         "there is no built-in rule `mine`"),
    ],
)  # fmt: skip
def test_control_is_not_replaced_by_accident(tmp_path: Path, rule: str, said: str) -> None:
    with pytest.raises(PolicyError) as caught:
        policy_of(tmp_path, f"version: 1\nflows:\n- {{{rule}}}\n")
    (problem,) = caught.value.problems
    assert problem.message == said
    assert "replaces_built_in" in str(problem) or "control and rest" in str(problem)
