# SPDX-License-Identifier: GPL-2.0-or-later
"""Files of tests in a guest, and the machine each wants: that of `EVERY_NIC`, or its constant
`GUEST`. Files that want the same machine share one start of it.

`GUEST = ["--cpus", "2x1x2"]`: options of `python -m tests.guest`, read without importing the file.
`SECOND_GUEST`: the same, of another machine that its tests are to pass on, too.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tests.guest.boot import Outcome, run
from tests.guest.machine import Machine

__all__ = ["EVERY_NIC", "Group", "machines_of", "run_tests", "that_failed"]
__all__ += ["together"]

EVERY_NIC = ["--nic", "every"]
AT_ONCE = 8  # files: a start takes half a minute, and two guests run beside each other

# Start-up is what costs under TCG: nothing is loaded or written that the tests do not need.
PYTEST = (
    *("--durations=10", "-p", "no:cacheprovider", "-p", "pytest_timeout"),
    *("-o", "timeout=600", "-o", "console_output_style=classic"),
)
ENVIRONMENT = ("PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", "PYTHONDONTWRITEBYTECODE=1")


class Group(NamedTuple):
    """Files that share a start of a machine."""

    machine: Machine
    files: tuple[Path, ...]


def machines_of(file: Path) -> list[Machine]:
    """What GUEST says, and SECOND_GUEST if there is one. OperatorError: their options are wrong."""
    words = {"GUEST": EVERY_NIC}
    for node in ast.parse(file.read_text()).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="GUEST" | "SECOND_GUEST" as name)], value=value):
                words[name] = ast.literal_eval(value)
    parser = argparse.ArgumentParser(prog=file.name)
    Machine.add_arguments(parser)
    return [Machine.of(parser.parse_args(each)) for each in words.values()]


def together(wanted: Iterable[tuple[Machine, Path]]) -> list[Group]:
    """Files that want the same machine, AT_ONCE at most; those of a machine that many want come
    last."""
    wanting: dict[Machine, list[Path]] = {}
    for machine, file in wanted:
        wanting.setdefault(machine, []).append(file)
    groups = []
    for machine, files in sorted(wanting.items(), key=lambda each: len(each[1])):
        starts = -(-len(files) // AT_ONCE)
        groups += [Group(machine, tuple(files[first::starts])) for first in range(starts)]
    return groups


def that_failed(group: Group, report: str) -> Group:
    """The tests of which pytest's summary says so, in place of their files."""
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", report, re.MULTILINE)
    return group._replace(files=tuple(map(Path, failed)))


def run_tests(group: Group, report: BinaryIO, timeout_s: float) -> Outcome:
    """pytest's report goes to `report`; it ran when the exit code is 0 or 1."""
    command = ["env", *ENVIRONMENT, sys.executable, "-m", "pytest", *PYTEST]
    return run([*command, *map(str, group.files)], group.machine, timeout_s, report, report)
