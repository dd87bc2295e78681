# SPDX-License-Identifier: GPL-2.0-or-later
"""`python -m tests.guest [options] -- COMMAND...`: run a command in the guest, exit as it did."""

from __future__ import annotations

import argparse
import sys

from atfnd.errors import OperatorError
from tests.guest.boot import TIMED_OUT, run
from tests.guest.machine import Machine

__all__ = ["main"]

DIED = 125


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.guest")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS")
    Machine.add_arguments(parser)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    try:
        machine = Machine.of(options)
        outcome = run(
            options.command, machine, options.timeout, sys.stdout.buffer, sys.stderr.buffer
        )
    except OperatorError as error:
        error.tell("guest")
        return DIED
    for line in outcome.complaints:
        print(f"guest kernel: {line}", file=sys.stderr)
    if outcome.exit_code == TIMED_OUT:
        print(f"guest: not done within {options.timeout:g} s", file=sys.stderr)
    if outcome.exit_code is None:
        print(f"guest: died under its command:\n{outcome.console}", file=sys.stderr)
        return DIED
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main())
