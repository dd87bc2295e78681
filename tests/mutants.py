# SPDX-License-Identifier: GPL-2.0-or-later
"""Makes faults in the code, one by one, and runs pure tests and the simulation on each: one of them
is to fail.

    python -m tests.mutants [--number N] [--seed S] [--no-simulation] [PREFIX...]

A fault is a small change somewhere in `atfnd/`: another comparison, `and` for `or`, a condition
turned round, a number that is one more, `min` for `max`, a statement left out. N of them are drawn
by the seed, of the files whose path begins with a prefix, or of all.

Nothing in the tree is changed: a child process imports the one module with the fault in it, and all
others as they are. There is a child for each CPU. It runs the pure tests that import the module (of
a module of the engine, `tests/cases`, too), up to the first failure; if all pass, the seeds of the
simulation that `make test` runs, too. A file that does not pass there by itself, because it needs a
machine, is left out.

Says which faults survived, and how many did by room. Nobody can see some of them: it is for a
reader to judge. Exit status 1: one survived.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from enum import Enum
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
from hypothesis import Phase, settings

from tests.tiers import file_of

__all__ = ["Fault", "faults_of"]

ROOT = Path(__file__).parent.parent
LIMIT_S = 240  # of CPU time: a fault that makes a loop endless is seen, too, on a busy machine
EXAMPLES = 25  # of what hypothesis tries: a fault that needs more is hardly tested
# No plugin and no fixture of ours: what the tests of pure code do without costs most of a run.
PLAIN = "-x", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--noconftest"
# The seeds that `make test` runs.
SIMULATION = file_of("test_run"), "-k", "everything_holds"
PRELOADED = "asyncio", "hypothesis.stateful", "psutil", "pydantic", "pyroute2", "yaml"

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_COUNTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}  # fmt: skip
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Fault(NamedTuple):
    """One change of a file below the root, and the text of the file with it."""

    file: Path
    line: int
    was: str
    is_now: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.was} -> {self.is_now}"


class Verdict(Enum):
    KILLED = "killed"  # by tests
    SIMULATED = "simulated"  # killed by the simulation: all tests pass
    SURVIVED = "survived"


# How a child ends.
EXITS = {10: Verdict.KILLED, 11: Verdict.SIMULATED, 12: Verdict.SURVIVED}


def faults_of(file: Path, source: str) -> Iterator[Callable[[], Fault]]:
    """Every fault that can be made in this text, each made when it is called."""
    tree = ast.parse(source)
    for number, node in enumerate(ast.walk(tree)):
        if _change(node) is not None:
            yield partial(_fault, file, tree, number, node)


def _fault(file: Path, tree: ast.Module, number: int, node: ast.AST) -> Fault:
    new = _change(node)
    assert new is not None
    is_now = "(left out)" if isinstance(new, ast.Pass) else _brief(new)
    line = getattr(node, "lineno", 0)
    return Fault(file, line, _brief(node), is_now, _with(tree, number))


def _change(node: ast.AST) -> ast.AST | None:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=them) if type(op) in _COMPARED:
            return ast.Compare(left, [_COMPARED[type(op)]()], them)
        case ast.BoolOp(op=op, values=values):
            return ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _COUNTED:
            return None if _is_type(node) else ast.BinOp(left, _COUNTED[type(op)](), right)
        case ast.Constant(value=bool(value)):
            return ast.Constant(not value)
        case ast.Constant(value=int(value)):
            return ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=words) if name in _CALLED:
            return ast.Call(ast.Name(_CALLED[name]), args, words)
        case ast.If(test=ast.Name() | ast.Call() | ast.Compare() as test, body=body, orelse=other):
            return ast.If(ast.UnaryOp(ast.Not(), test), body, other)
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Delete() | ast.Continue():
            return ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return ast.Pass()
        case _:
            return None


def _is_type(node: ast.BinOp) -> bool:
    """`int | None`: a union of types."""
    text = ast.unparse(node)
    return isinstance(node.op, ast.BitOr) and ("None" in text or text[:1].isupper())


def _brief(node: ast.AST) -> str:
    text = ast.unparse(node) if not isinstance(node, ast.If) else f"if {ast.unparse(node.test)}"
    return " ".join(text.split())[:70]


def _with(tree: ast.Module, number: int) -> str:
    """The text with one change: of the node of this number in ast.walk()."""
    made = deepcopy(tree)
    node = next(each for at, each in enumerate(ast.walk(made)) if at == number)
    new = _change(node)
    for parent in ast.walk(made):
        for name, value in ast.iter_fields(parent):
            if value is node:
                setattr(parent, name, new)
            elif isinstance(value, list) and any(each is node for each in value):
                value[:] = [new if each is node else each for each in value]
    return ast.unparse(ast.fix_missing_locations(made))


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports one module from this text, before any other finder is asked."""

    def __init__(self, name: str, path: Path, text: str) -> None:
        self._name, self._path, self._text = name, path, text

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def get_source(self, fullname: str) -> str:
        return self._text


def _module(file: Path) -> str:
    return ".".join(file.with_suffix("").parts).removesuffix(".__init__")


@cache
def _imported(test: Path) -> frozenset[str]:
    """The modules that a test file imports, or imports names from."""
    found = set[str]()
    for node in ast.walk(ast.parse(test.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return frozenset(found)


@cache
def _tests_of(file: Path) -> list[Path]:
    """The test files that import it, those of its room first. The cases know the engine by its door
    alone."""
    every = [each for each in (ROOT / "tests").rglob("test_*.py") if "guest" not in each.parts]
    cases = [each for each in every if each.parent.name == "cases" and "engine" in file.parts]
    direct = [each for each in every if each not in cases and _module(file) in _imported(each)]
    direct += cases
    return sorted(direct, key=lambda each: (each.parent.name not in file.parts, each))


def _children(jobs: Iterable[Callable[[], int]]) -> Iterator[tuple[int, int | None]]:
    """Each in a child that ends with what it returns; as many at once as there are CPUs. Yields the
    job's number and its result. None: a signal ended it, since it ran for ever."""
    under_way: dict[int, int] = {}
    waiting = enumerate(jobs)
    while True:
        while len(under_way) < (os.cpu_count() or 1) and (job := next(waiting, None)) is not None:
            number, work = job
            under_way[_begun(work)] = number
        if not under_way:
            return
        child, status = os.wait()
        code = os.waitstatus_to_exitcode(status)
        yield under_way.pop(child), code if code >= 0 else None


def _begun(work: Callable[[], int]) -> int:
    """The child that does it."""
    if child := os.fork():
        return child
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
    signal.alarm(20 * LIMIT_S)  # it waits for what never comes
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)
    os._exit(work())


def _passes(*arguments: object) -> bool:
    ended = pytest.main([*PLAIN, f"--rootdir={ROOT}", *map(str, arguments)])
    return ended == pytest.ExitCode.OK


def _fails(test: Path) -> int:
    return int(not _passes(test))


def _judged(fault: Fault, tests: Sequence[Path], *, simulate: bool) -> int:
    sys.meta_path.insert(0, _Changed(_module(fault.file), ROOT / fault.file, fault.text))
    verdict = Verdict.KILLED
    if not tests or _passes(*tests):
        seen = simulate and not _passes(*SIMULATION)
        verdict = Verdict.SIMULATED if seen else Verdict.SURVIVED
    return next(code for code, each in EXITS.items() if each is verdict)


def _pure(tests: Iterable[Path]) -> set[Path]:
    """Those that pass by themselves, without a fault."""
    asked = sorted(tests)
    failing = _children(partial(_fails, each) for each in asked)
    return {asked[number] for number, code in failing if code == 0}


def _summary(found: Mapping[Fault, Verdict]) -> Iterator[str]:
    """How many, by room."""
    rooms = sorted({each.file.parts[1] for each in found})
    yield "".join((f"{'':10}", *(f"{each.value:>11}" for each in Verdict), "   killed"))
    for room in [*rooms, "all"]:
        counts = Counter(v for each, v in found.items() if room in ("all", each.file.parts[1]))
        killed = counts.total() - counts[Verdict.SURVIVED]
        row = "".join(f"{counts[each]:11}" for each in Verdict)
        yield f"{room:10}{row}{killed / max(1, counts.total()):9.1%}"


def _prepare() -> None:
    assert not any(name.startswith("atfnd") for name in sys.modules), "a child could not change it"
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    settings.register_profile(
        "mutants",
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),  # whether, not by how little
    )
    settings.load_profile("mutants")
    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()


def main(arguments: Sequence[str]) -> int:
    """0: every fault was seen."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("prefixes", nargs="*")
    parser.add_argument("--number", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("--no-simulation", action="store_true")
    options = parser.parse_args(arguments)
    files = [each.relative_to(ROOT) for each in sorted((ROOT / "atfnd").rglob("*.py"))]
    prefixes = tuple(options.prefixes or ["atfnd/"])
    possible = [
        each
        for file in files
        if str(file).startswith(prefixes)
        for each in faults_of(file, (ROOT / file).read_text())
    ]
    number = min(options.number, len(possible))
    drawn = [each() for each in random.Random(options.seed).sample(possible, number)]
    print(f"{number} of {len(possible)} faults, --seed {options.seed}", flush=True)
    _prepare()
    pure = _pure({test for each in drawn for test in _tests_of(each.file)})
    simulate = not options.no_simulation
    jobs = (
        partial(_judged, each, [t for t in _tests_of(each.file) if t in pure], simulate=simulate)
        for each in drawn
    )
    found: dict[Fault, Verdict] = {}
    for at, code in _children(jobs):
        found[drawn[at]] = verdict = EXITS.get(code or 0, Verdict.KILLED)
        if verdict is Verdict.SURVIVED:
            print(f"survived: {drawn[at]}", flush=True)
    print("\n".join(_summary(found)))
    return int(Verdict.SURVIVED in found.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
