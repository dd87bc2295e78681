# SPDX-License-Identifier: GPL-2.0-or-later
"""The examples: what each is for, and any of them put into one folder. And the page on policies:
its example is a policy, and its reference is that of the schema."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations, permutations
from pathlib import Path

import pytest
import yaml

from atfnd.policy.file.decode import decode
from atfnd.policy.file.document import Document
from atfnd.policy.file.load import check, load
from atfnd.policy.match.match import is_named
from docs.reference import with_reference

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/policies.md"
EXAMPLES = sorted(ROOT.glob("policies/*.yaml"))
SAYS = {example: yaml.safe_load(example.read_text()) for example in EXAMPLES}
LAST = [example for example in EXAMPLES if "it goes last" in SAYS[example]["about"]]
ORDERED = [*(example for example in EXAMPLES if example not in LAST), *LAST]


def installed(folder: Path, examples: Sequence[Path]) -> Path:
    """The main file beside a policies.d that has these, read in this order."""
    parts = folder / "policies.d"
    parts.mkdir(parents=True)
    for i, example in enumerate(examples):
        (parts / f"{i}-{example.name}").write_bytes(example.read_bytes())
    main = folder / "atfnd.yaml"
    main.write_text("version: 1\n")
    return main


def test_any_two_and_all_of_them_are_one_policy_in_any_order(tmp_path: Path) -> None:
    for i, some in enumerate([*permutations(EXAMPLES, 2), EXAMPLES, EXAMPLES[::-1]]):
        policy = load(installed(tmp_path / str(i), some))
        named = {rule["name"] for each in some for rule in SAYS[each]["flows"]}
        assert {rule.name for rule in policy.flows} == {"control", *named, "rest"}


def test_in_the_order_that_they_ask_for_every_rule_for_flows_decides(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for some in [*combinations(ORDERED, 1), *combinations(ORDERED, 2), ORDERED]:
        check(files=some)
        said = capsys.readouterr()
        assert said.out.startswith("policy OK: ")
        assert "no flow falls under" not in said.err


def test_what_matches_every_interface_says_that_it_goes_last(tmp_path: Path) -> None:
    every = [
        example
        for example in EXAMPLES
        if any(rule["match"]["name"] == "*" for rule in SAYS[example]["interfaces"])
    ]
    assert every == LAST
    for i, last in enumerate(LAST):
        other = ORDERED[0]
        assert load(installed(tmp_path / f"{i}-last", [other, last])).interfaces[0].name != "*"
        assert load(installed(tmp_path / f"{i}-first", [last, other])).interfaces[0].name == "*"


@pytest.mark.parametrize("name", ["enp1s0", "eno1", "eth0"])
def test_each_knows_names_of_today_and_arms_none(name: str) -> None:
    for example in EXAMPLES:
        rule = next(each for each in load(example).interfaces if is_named(each, name))
        assert rule.source.startswith(str(example))
        assert not rule.armed


def test_the_reference_is_that_of_the_schema() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == with_reference(text), "`make docs` writes it"


def test_its_example_is_read() -> None:
    [example] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    here = example.replace("user: globus", "user: root")  # a user of this machine
    assert decode(Document("f", here.encode()))[1] == []
