# SPDX-License-Identifier: GPL-2.0-or-later
"""The `host` settings of a policy: their values, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from atfnd.model import SoftirqBudget
from atfnd.policy.file.load import load
from atfnd.policy.file.problem import PolicyError
from tests.daemons import ATFND
from tests.serve.asking import forked

__all__: list[str] = []

HEAD = "version: 1\nhost: "


def written(folder: Path, text: str) -> SoftirqBudget:
    path = folder / "atfnd.yaml"
    path.write_text(text)
    return load(path).softirq_budget


@pytest.mark.parametrize(
    ("host", "packets", "time_us"),
    [
        ("{softirq_budget: {packets: 2, time: 20ms}}", 2, 20_000),
        ("{softirq_budget: {packets: 2147483647}}", 2**31 - 1, None),
        ("{softirq_budget: {time: 1s}}", None, 1_000_000),
        ("{softirq_budget: {time: 1us}}", None, 1),
        ("{}", None, None),
    ],
)
def test_a_budget_has_what_is_written(
    tmp_path: Path, host: str, packets: int | None, time_us: int | None
) -> None:
    found = written(tmp_path, HEAD + host)
    assert (found.packets, found.time_us) == (packets, time_us)
    assert found.source == (f"{tmp_path / 'atfnd.yaml'}:2" if found.values else None)


def test_without_one_nothing_is_asked_for(tmp_path: Path) -> None:
    assert written(tmp_path, "version: 1\n") == SoftirqBudget()
    assert SoftirqBudget().values == {}


@pytest.mark.parametrize(
    ("host", "message", "hint"),
    [
        ("{softirq_budget: {packets: ^0}}", "must be 1 or more", ""),
        ("{softirq_budget: {packets: ^2147483648}}", "must be 2147483647 or less", ""),
        ("{softirq_budget: {packets: ^2.5}}", "expected a number, got `2.5`", "plain decimal"),
        ("{softirq_budget: {time: ^2}}", "`2` has no unit", "units: ns, us"),
        ("{softirq_budget: {time: ^2s}}", "must be 1000000000 or less", ""),
        ("{softirq_budget: {time: ^1500ns}}", "the kernel counts whole micro", "did you mean 2us?"),
        ("{softirq_budget: ^{}}", "an empty softirq_budget", "say packets, time or both"),
        ("{softirq_budget: {^packet: 2}}", "unknown key `packet`", "did you mean packets?"),
        ("{^budget: {packets: 2}}", "unknown key `budget`", ""),
    ],
)
def test_what_cannot_be_meant_is_said_at_its_place(
    tmp_path: Path, host: str, message: str, hint: str
) -> None:
    column = len("host: ") + host.index("^") + 1
    with pytest.raises(PolicyError) as caught:
        written(tmp_path, HEAD + host.replace("^", ""))
    (problem,) = caught.value.problems
    assert str(problem).startswith(f"{tmp_path / 'atfnd.yaml'}:2:{column}: {message}")
    assert hint in (problem.hint or "")


def test_check_says_what_is_asked_for_of_the_machine(tmp_path: Path) -> None:
    file = tmp_path / "atfnd.yaml"
    file.write_text(HEAD + "{softirq_budget: {packets: 2, time: 20ms}}\n")
    done = forked([ATFND, "check", str(file)])
    assert f"host: netdev-budget 2, netdev-budget-usecs 20000 ({file}:2)\n" in done.stdout


def test_two_files_that_ask_are_an_operators_error(tmp_path: Path) -> None:
    files = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for file in files:
        file.write_text(HEAD + f"{{softirq_budget: {{packets: {len(file.name)}}}}}\n")
    done = forked([ATFND, "check", *map(str, files)])
    assert done.returncode == 2
    assert f"{files[1]}:2:1: a second `host`" in done.stderr
    assert f"hint: they are in {files[0]}: keep them in one file" in done.stderr
