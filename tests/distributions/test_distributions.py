# SPDX-License-Identifier: GPL-2.0-or-later
"""What `make test-distributions` decides. It needs no root tree: the steps are made up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atfnd.errors import OperatorError
from tests.distributions.__main__ import Tried, chosen, tried
from tests.distributions.tree import DISTRIBUTIONS, RELEASER, TIMED_OUT, Distribution, logged
from tests.wait import until

OTHER = DISTRIBUTIONS[-1]


def results(distribution: Distribution, released: int | None, **codes: int) -> list[Tried]:
    """What is tried if each step ends with its code of `codes`, or well."""

    def run(name: str) -> Tried:
        return Tried(distribution.name, name, codes.get(name, 0), 2.0, Path(f"{name}.log"))

    return list(tried(distribution, run, released))


def codes(done: list[Tried]) -> dict[str, int | None]:
    return {each.step: each.code for each in done}


def test_a_step_that_failed_ends_what_needs_it_and_nothing_else() -> None:
    """RELEASER builds the wheel, and the others install it."""
    releaser = {"tree": 0, "build": 0, "package": 0, "release": 0, "wheel": 0, "kit": 0}
    other = {"tree": 0, "build": 0, "package": 0, "wheel": 0, "kit": 0}
    assert codes(results(RELEASER, None)) == releaser
    assert codes(results(OTHER, 0)) == other
    failed = {"build": 2, "package": None}
    left = releaser | failed | {"release": None, "wheel": None}
    assert codes(results(RELEASER, None, build=2)) == left
    assert codes(results(OTHER, 0, build=2)) == other | failed
    assert codes(results(OTHER, 1)) == other | {"wheel": None}
    assert set(codes(results(OTHER, 0, tree=1)).values()) == {1, None}


def test_those_named_are_tried_and_always_the_releaser() -> None:
    assert chosen([]) == DISTRIBUTIONS
    assert chosen([OTHER.name]) == (RELEASER, OTHER)
    with pytest.raises(OperatorError, match="debian-9: not a distribution"):
        chosen(["debian-9"])


@pytest.mark.parametrize(("last", "code"), [("tail -f /dev/null", TIMED_OUT), ("exit 3", 3)])
def test_a_command_leaves_no_process_behind(tmp_path: Path, last: str, code: int) -> None:
    left, log = tmp_path / "pid", tmp_path / "log"
    script = f"tail -f /dev/null & echo $! >{left}; echo said; {last}"
    limit_s = 1.0 if code == TIMED_OUT else 60.0
    assert logged(["bash", "-c", script], os.environ, log, limit_s) == code
    assert log.read_text() == "said\n"
    status = Path("/proc", left.read_text().strip(), "status")
    until(lambda: not status.exists() or "\nState:\tZ" in status.read_text(), "it is gone")
