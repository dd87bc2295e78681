# SPDX-License-Identifier: GPL-2.0-or-later
"""Files of tests in a guest, and the machine each wants: its constant `GUEST`.

`GUEST = ["--nic", "igb:2"]`: options of `python -m tests.guest`, read without importing the file.
`SECOND_GUEST`: the same, of another machine that its tests are to pass on, too.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tests.guest.boot import Outcome, run
from tests.guest.machine import Machine

__all__ = ["Group", "machines_of", "run_tests", "together"]

# Start-up is what costs under TCG: nothing is loaded or written that the tests do not need.
PYTEST = (
    *("-q", "--durations=10", "-p", "no:cacheprovider", "-p", "pytest_timeout"),
    *("-o", "timeout=600"),
)
TOGETHER = (
    9  # files in one guest: a start is half a minute, but with a guest that dies all are lost
)
ENVIRONMENT = ("PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", "PYTHONDONTWRITEBYTECODE=1")


class Group(NamedTuple):
    """Files that share one start of a machine."""

    machine: Machine
    files: tuple[Path, ...]


def machines_of(file: Path) -> list[Machine]:
    """What GUEST says, and SECOND_GUEST if there is one. OperatorError: their options are wrong."""
    words: dict[str, list[str]] = {"GUEST": []}
    for node in ast.parse(file.read_text()).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="GUEST" | "SECOND_GUEST" as name)], value=value):
                words[name] = ast.literal_eval(value)
    parser = argparse.ArgumentParser(prog=file.name)
    Machine.add_arguments(parser)
    return [Machine.of(parser.parse_args(each)) for each in words.values()]


def together(wanted: Iterable[tuple[Machine, Path]]) -> list[Group]:
    """Files that want the same machine, some at a time."""
    wanting: dict[Machine, list[Path]] = {}
    for machine, file in wanted:
        wanting.setdefault(machine, []).append(file)
    return [
        Group(machine, tuple(same[first : first + TOGETHER]))
        for machine, same in wanting.items()
        for first in range(0, len(same), TOGETHER)
    ]


def run_tests(group: Group, report: BinaryIO, timeout_s: float) -> Outcome:
    """pytest's report goes to `report`; it ran when the exit code is 0 or 1."""
    command = ["env", *ENVIRONMENT, sys.executable, "-m", "pytest", *PYTEST]
    return run([*command, *map(str, group.files)], group.machine, timeout_s, report, report)
