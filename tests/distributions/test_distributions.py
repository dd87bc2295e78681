# SPDX-License-Identifier: GPL-2.0-or-later
"""What `make test-distributions` decides and says. It needs no root tree: the steps are made up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rich.console import Console

from atfnd.errors import OperatorError
from tests.distributions.__main__ import chosen, shown
from tests.distributions.distribution import DISTRIBUTIONS, RELEASER, Distribution
from tests.distributions.tree import TIMED_OUT, logged
from tests.distributions.trial import INSIDE, STEPS, Tried, tried
from tests.wait import until

__all__: list[str] = []

OTHER = DISTRIBUTIONS[-1]


def results(distribution: Distribution, released: int | None, **codes: int) -> list[Tried]:
    """What is tried if each step ends with its code of `codes`, or well."""

    def run(name: str) -> Tried:
        return Tried(distribution.name, name, codes.get(name, 0), 2.0, Path(f"{name}.log"))

    return list(tried(distribution, run, released))


def codes(done: list[Tried]) -> dict[str, int | None]:
    return {each.step: each.code for each in done}


def test_the_releaser_builds_the_wheel_and_the_others_install_it() -> None:
    everything = {"tree": 0, "build": 0, "package": 0, "release": 0, "wheel": 0, "kit": 0}
    assert codes(results(RELEASER, None)) == everything
    del everything["release"]
    assert codes(results(OTHER, 0)) == everything


def test_a_step_that_failed_ends_what_needs_it_and_nothing_else() -> None:
    left = {"tree": 0, "build": 2, "package": None, "release": None, "wheel": None, "kit": 0}
    assert codes(results(RELEASER, None, build=2)) == left
    of_other = {"tree": 0, "build": 0, "package": 0, "wheel": 0, "kit": 0}
    failed = of_other | {"build": 2, "package": None}
    assert codes(results(OTHER, 0, build=2)) == failed
    assert codes(results(OTHER, 1)) == of_other | {"wheel": None}
    assert codes(results(OTHER, 0, package=1))["wheel"] == 0
    assert set(codes(results(OTHER, 0, tree=1)).values()) == {1, None}


def test_the_table_says_of_each_what_was_tried() -> None:
    done = [*results(RELEASER, None, package=1), *results(OTHER, 0, wheel=TIMED_OUT)]
    console = Console(width=200)
    with console.capture() as said:
        console.print(shown(done, (RELEASER, OTHER)))
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in said.get().splitlines()
        if line.startswith("│")
    ]
    assert rows == [
        [RELEASER.title, RELEASER.python, "yes, 2 s", "no", *["yes, 2 s"] * 3],
        [OTHER.title, OTHER.python, "yes, 2 s", "yes, 2 s", "-", "no, not within 2 s", "yes, 2 s"],
    ]


def test_those_named_are_tried_and_always_the_releaser() -> None:
    assert chosen([]) == DISTRIBUTIONS
    assert chosen([OTHER.name]) == (RELEASER, OTHER)
    with pytest.raises(OperatorError, match="debian-9: not a distribution"):
        chosen(["debian-9"])


def test_each_step_has_its_script() -> None:
    scripts = {f"{step.name}.sh" for step in STEPS}
    assert {file.name for file in INSIDE.iterdir()} == scripts | {"atfnd.yaml", "use.sh"}


@pytest.mark.parametrize(("last", "code"), [("tail -f /dev/null", TIMED_OUT), ("exit 3", 3)])
def test_a_command_leaves_no_process_behind(tmp_path: Path, last: str, code: int) -> None:
    left, log = tmp_path / "pid", tmp_path / "log"
    script = f"tail -f /dev/null & echo $! >{left}; echo said; {last}"
    limit_s = 1.0 if code == TIMED_OUT else 60.0
    assert logged(["bash", "-c", script], os.environ, log, limit_s) == code
    assert log.read_text() == "said\n"
    status = Path("/proc", left.read_text().strip(), "status")
    until(lambda: not status.exists() or "\nState:\tZ" in status.read_text(), "it is gone")


def test_a_program_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="no-such-program: not installed"):
        logged(["no-such-program"], os.environ, tmp_path / "log", 1.0)
