# SPDX-License-Identifier: GPL-2.0-or-later
"""`python -m tests.distributions [NAME...]`: build atfnd on each distribution, install it, use it
and remove it, and print a table of what was tried. Exits 1 if something failed, 2 for a mistake.

Each step is a script of the folder `inside`, and runs only if those that it needs have succeeded.
Tries the files of the last commit, and build/kit. Writes below build/distributions: root trees,
which stay, and a log of each step.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from atfnd.errors import OperatorError
from tests.distributions.tree import DISTRIBUTIONS, RELEASER, TIMED_OUT, Distribution, Tree

__all__ = ["Tried", "chosen", "main", "tried"]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build/distributions"
INSIDE = Path(__file__).parent / "inside"
TREE, TREE_LIMIT_S = "tree", 900.0


@dataclass(frozen=True, slots=True)
class Step:
    """`layer`: where it runs; None: on the bare tree. `title` is its column."""

    name: str
    title: str
    needs: tuple[str, ...]
    layer: str | None
    limit_s: float


RELEASE = Step("release", "wheel built", ("build",), "build", 900)
WHEEL = Step("wheel", "wheel works", (TREE, RELEASE.name), None, 600)
KIT = Step("kit", "kit runs", (TREE,), None, 900)
STEPS = (
    Step("build", "package built", (TREE,), "build", 1800),
    Step("package", "package works", ("build",), None, 600),
    RELEASE,
    WHEEL,
    KIT,
)


@dataclass(frozen=True, slots=True)
class Tried:
    """How a step ended on a distribution. `code` None: a step that it needs had not succeeded."""

    distribution: str
    step: str
    code: int | None
    took_s: float
    log: Path

    def __str__(self) -> str:
        match self.code:
            case None:
                return "not tried"
            case 0:
                return f"yes, {self.took_s:.0f} s"
            case code if code == TIMED_OUT:
                return f"no, not within {self.took_s:.0f} s"
            case _:
                return "no"


def steps_of(distribution: Distribution) -> tuple[Step, ...]:
    """The wheel is built by one distribution only."""
    return tuple(step for step in STEPS if step is not RELEASE or distribution is RELEASER)


def tried_on_all(chosen: tuple[Distribution, ...]) -> Iterator[Tried]:
    """Every step on every distribution, RELEASER first. Reads the files of the last commit and
    build/kit, writes below build/distributions. OperatorError: mmdebstrap is
    not installed."""
    released: int | None = None
    for distribution in chosen:
        tree = Tree(distribution, FOLDER / distribution.name)
        for each in tried(distribution, partial(_run, tree), released):
            if each.step == RELEASE.name:
                released = each.code
            yield each


def tried(
    distribution: Distribution, run: Callable[[str], Tried], released: int | None
) -> Iterator[Tried]:
    """Its tree, then its steps, as `run` runs them by name. `released`: how RELEASE ended."""
    codes: dict[str, int | None] = {RELEASE.name: released}
    for name, needs in [(TREE, ()), *((step.name, step.needs) for step in steps_of(distribution))]:
        ready = all(codes.get(need) == 0 for need in needs)
        done = run(name) if ready else Tried(distribution.name, name, None, 0.0, Path())
        codes[name] = done.code
        yield done


def _run(tree: Tree, name: str) -> Tried:
    began_s, log = time.monotonic(), tree.folder / f"{name}.log"
    print(f"{tree.distribution.name}: {name}", file=sys.stderr, flush=True)
    if name == TREE:
        code = tree.make(log, TREE_LIMIT_S)
        _share(tree)
    else:
        [step] = [each for each in STEPS if each.name == name]
        if step is WHEEL:
            _share_release(tree)
        if step is KIT:
            _share_folder(ROOT / "build/kit", tree)
        code = tree.run(step.layer, name, log, step.limit_s)
    return Tried(tree.distribution.name, name, code, time.monotonic() - began_s, log)


def _share(tree: Tree) -> None:
    archive = ["git", "archive", "-o", str(tree.shared / "source.tar"), "HEAD"]
    subprocess.run(archive, cwd=ROOT, check=True)
    shutil.copytree(INSIDE, tree.shared, dirs_exist_ok=True)
    (tree.shared / "tests").mkdir(exist_ok=True)
    for name in ("talker.py", "wait.py"):
        shutil.copy(ROOT / "tests" / name, tree.shared / "tests")


def _share_release(tree: Tree) -> None:
    _share_folder(FOLDER / RELEASER.name / "shared/dist", tree)


def _share_folder(made: Path, tree: Tree) -> None:
    here = tree.shared / made.name
    if made != here:
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(made, here)


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
