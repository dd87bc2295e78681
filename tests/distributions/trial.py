# SPDX-License-Identifier: GPL-2.0-or-later
"""What is tried on a distribution, step by step. Each step is a script of the folder `inside`, and
runs only if those that it needs have succeeded."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.distributions.distribution import RELEASER, Distribution
from tests.distributions.tree import TIMED_OUT, Tree

__all__ = ["INSIDE", "STEPS", "TREE", "Step", "Tried", "steps_of", "tried", "tried_on_all"]

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
    for file in [*INSIDE.iterdir(), ROOT / "tests/talker.py"]:
        shutil.copy(file, tree.shared)


def _share_release(tree: Tree) -> None:
    _share_folder(FOLDER / RELEASER.name / "shared/dist", tree)


def _share_folder(made: Path, tree: Tree) -> None:
    here = tree.shared / made.name
    if made != here:
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(made, here)
