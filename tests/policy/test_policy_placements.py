# SPDX-License-Identifier: GPL-2.0-or-later
"""Placements as an operator writes them: what they come to, and what is wrong with them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atfnd.model import Placement, PlacementKind
from atfnd.policy.file.decode import decode
from atfnd.policy.file.document import Document
from atfnd.policy.file.load import check, load
from atfnd.policy.file.placement import wrong_cpus
from atfnd.policy.file.problem import PolicyError

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
        (
            "{near: llc, avoid: smt}",
            Placement(PlacementKind.LLC, avoid_smt=True),
            "near llc, avoid smt",
        ),
        (
            "{avoid: smt, near: node}",
            Placement(PlacementKind.NODE, avoid_smt=True),
            "near node, avoid smt",
        ),
        ("{cpus: 0}", Placement(PlacementKind.CPUS, frozenset({0})), "cpus 0"),
        ("{dedicated: [0]}", Placement(PlacementKind.DEDICATED, frozenset({0})), "dedicated 0"),
    ],
)
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


def test_a_list_of_cpus_has_numbers_and_ranges() -> None:
    document = Document("f", policy("{cpus: [2, 4-6]}").encode())
    content, _ = decode(document)
    assert content is not None
    placement = content.flows[0].placement
    assert placement is not None
    assert placement.cpus == ((2, 2), (4, 6))


@pytest.mark.parametrize(
    ("written", "what"),
    [
        ("{near: core, cpus: 1}", "a placement of near and cpus [say one of near, cpus, "),
        ("{avoid: smt}", "a placement of no place [say one of near, cpus, dedicated]"),
        ("{near: core, avoid: smt}", "avoid: smt goes with near: llc or near: node"),
        ("{near: smt, avoid: smt}", "avoid: smt goes with near: llc or near: node"),
        ("{cpus: 1, avoid: smt}", "avoid: smt goes with near: llc or near: node"),
        ("{near: numa}", "expected core, smt, llc or node, got `numa`"),
        ("{near: lcc}", "expected core, smt, llc or node, got `lcc` [did you mean llc?]"),
        ("{near: }", "expected a word, got nothing"),
        ("{near: llc, avoid: own}", "expected smt, got `own`"),
        ("{cpus: []}", "`cpus` is empty"),
        ("{cpus: }", "expected a CPU or a range such as 4-6, got nothing"),
        ("{cpus: all}", "expected a CPU or a range such as 4-6, got `all`"),
        ("{cpus: [6-4]}", "`6-4` is an empty range [did you mean 4-6?]"),
        ("{cpus: -1}", "expected a CPU or a range such as 4-6, got `-1`"),
        ("{dedicated: 1.5}", "expected a CPU or a range such as 4-6, got `1.5`"),
        ("llc", "expected leave, auto or {near: core}, got `llc` [did you mean {near: llc}?]"),
        ("{nearly: core}", "unknown key `nearly` [did you mean near?]"),
    ],
)
def test_what_cannot_be_meant_is_a_mistake(written: str, what: str) -> None:
    (problem,) = wrong(policy(written))
    line, column, reported = problem.split(":", 2)
    assert line == "3"
    assert int(column) >= policy(written).splitlines()[2].index(written) + 1
    assert reported.strip().startswith(what)


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
