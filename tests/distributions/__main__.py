# SPDX-License-Identifier: GPL-2.0-or-later
"""`python -m tests.distributions [NAME...]`: build atfnd on each distribution, install it, use it
and remove it, and print a table of what was tried. Exits 1 if something failed, 2 for a mistake.

Tries the files of the last commit, and build/kit. Writes below build/distributions: root trees,
which stay, and a log of each step.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from atfnd.errors import OperatorError
from tests.distributions.distribution import DISTRIBUTIONS, RELEASER, Distribution
from tests.distributions.trial import STEPS, Tried, steps_of, tried_on_all

__all__ = ["chosen", "main", "shown"]


def chosen(names: Sequence[str]) -> tuple[Distribution, ...]:
    """Those of these names, or all; always RELEASER, which builds the wheel. OperatorError: no
    distribution has one of the names."""
    known = [each.name for each in DISTRIBUTIONS]
    for name in names:
        if name not in known:
            raise OperatorError(f"{name}: not a distribution", f"one of {', '.join(known)}")
    wanted = set(names or known) | {RELEASER.name}
    return tuple(each for each in DISTRIBUTIONS if each.name in wanted)


def shown(results: Sequence[Tried], distributions: Sequence[Distribution]) -> Table:
    """One row for each distribution, one column for each step."""
    of = {(each.distribution, each.step): str(each) for each in results}
    table = Table(title="atfnd on other distributions")
    for column in ("distribution", "Python", *(step.title for step in STEPS)):
        table.add_column(column, no_wrap=column == "distribution")
    for each in distributions:
        cells = [of[each.name, step.name] if step in steps_of(each) else "-" for step in STEPS]
        table.add_row(each.title, each.python, *cells)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.distributions", description=__doc__)
    parser.add_argument("name", nargs="*", help="default: all")
    options = parser.parse_args()
    try:
        distributions = chosen(options.name)
        if os.geteuid():
            raise OperatorError("root trees need root", "sudo make test-distributions")
        results = list(tried_on_all(distributions))
    except OperatorError as error:
        return error.tell("distributions")
    Console().print(shown(results, distributions))
    failed = [each for each in results if each.code]
    for each in failed:
        print(f"{each.distribution}, {each.step}: exit code {each.code}; {each.log}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
