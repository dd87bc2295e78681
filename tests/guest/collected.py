# SPDX-License-Identifier: GPL-2.0-or-later
"""One file of tests in a guest of its own, and the machine it wants: its constant `GUEST`.

`GUEST = ["--nic", "igb:2"]`: options of `python -m tests.guest`, read without importing the file.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path
from typing import BinaryIO

from tests.guest.boot import Outcome, run
from tests.guest.machine import Machine

__all__ = ["machine_of", "run_tests"]

# Start-up is what costs under TCG: nothing is loaded or written that the tests do not need.
PYTEST = ("-q", "-p", "no:cacheprovider", "-p", "pytest_timeout", "-o", "timeout=600")
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


def run_tests(file: Path, report: BinaryIO, timeout_s: float) -> Outcome:
    """pytest's report goes to `report`; it ran when the exit code is 0 or 1."""
    command = ["env", *ENVIRONMENT, sys.executable, "-m", "pytest", *PYTEST, str(file)]
    return run(command, machine_of(file), timeout_s, report, report)
