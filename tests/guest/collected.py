# SPDX-License-Identifier: GPL-2.0-or-later
"""Files of tests in a guest, and the machine each wants: its constant `GUEST`.

`GUEST = ["--nic", "igb:2"]`: options of `python -m tests.guest`, read without importing the file.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from tests.guest.boot import Outcome, run
from tests.guest.machine import Machine

__all__ = ["machine_of", "run_tests", "together"]

# Start-up is what costs under TCG: nothing is loaded or written that the tests do not need.
PYTEST = (
    *("-q", "--durations=10", "-p", "no:cacheprovider", "-p", "pytest_timeout"),
    *("-o", "timeout=600"),
)
TOGETHER = (
    9  # files in one guest: a start is half a minute, but with a guest that dies all are lost
)
ENVIRONMENT = ("PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", "PYTHONDONTWRITEBYTECODE=1")


def machine_of(file: Path) -> Machine:
    """OperatorError: its options are wrong."""
    words: list[str] = []
    for node in ast.parse(file.read_text()).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="GUEST")], value=value):
                words = ast.literal_eval(value)
    parser = argparse.ArgumentParser(prog=file.name)
    Machine.add_arguments(parser)
    return Machine.of(parser.parse_args(words))


def together(files: Iterable[Path]) -> list[tuple[Path, ...]]:
    """Files that want the same machine, some at a time."""
    wanting: dict[Machine, list[Path]] = {}
    for file in files:
        wanting.setdefault(machine_of(file), []).append(file)
    return [
        tuple(same[first : first + TOGETHER])
        for same in wanting.values()
        for first in range(0, len(same), TOGETHER)
    ]


def run_tests(files: Sequence[Path], report: BinaryIO, timeout_s: float) -> Outcome:
    """pytest's report goes to `report`; it ran when the exit code is 0 or 1. ValueError: they do
    not want the same machine."""
    [machine] = {machine_of(file) for file in files}
    command = ["env", *ENVIRONMENT, sys.executable, "-m", "pytest", *PYTEST, *map(str, files)]
    return run(command, machine, timeout_s, report, report)
