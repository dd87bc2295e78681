# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs pure tests, then the simulation, against each fault of `mutations`: one of them is to fail.

    python -m tests.mutants [--minutes M] [--fresh] [--every N] [WORD...]

Nothing in the tree is changed: a child process imports the one module with the fault in it, and all
others as they are. There is a child for each CPU. It runs the tests that the table names, those of
the file's room first, up to the first failure. If all pass, it runs the seeds of the simulation
that `make test` runs, too.

With words, only faults whose file or text has one of them. With `--minutes`, no fault is begun
after that time, and the next call goes on: build/mutants.json keeps each verdict for as long as
nothing in atfnd/, tests/ or bench/ changes (`--fresh` forgets it). With `--every`, one of so many.

Says of each fault whether it was killed by tests or by the simulation, survived, is equivalent (and
why), or is stale (its text is not in the file any more); then how many, by room. Exit status 1: a
fault that is not equivalent survived, or anything else went wrong; 2: there was not enough time.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
from hypothesis import Phase, settings

from tests.mutations import MUTATIONS, Mutation
from tests.tiers import file_of

__all__ = ["Verdict", "changed"]

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "build" / "mutants.json"
CODE = "atfnd", "tests", "bench"  # what a verdict depends on
LIMIT_S = 240  # of CPU time: a fault that makes a loop endless is seen, too, on a busy machine
EXAMPLES = 25  # of what hypothesis tries: a fault that needs more is hardly tested
# No plugin and no fixture of ours: what the tests of pure code do without costs most of a run.
PLAIN = "-x", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--noconftest"
# The seeds that `make test` runs: ordered moves, then the whole daemon.
SIMULATION = file_of("test_run"), file_of("test_whole"), "-k", "everything_holds"
PRELOADED = "asyncio", "hypothesis.stateful", "psutil", "pydantic", "pyroute2", "yaml"


class Verdict(Enum):
    KILLED = "killed"  # by tests
    SIMULATED = "simulated"  # killed by the simulation: all tests pass
    SURVIVED = "survived"
    EQUIVALENT = "equivalent"  # it survived, and is said to
    STALE = "stale"
    BROKEN = "broken"  # its tests fail without it, or do not import its file


KILLED = Verdict.KILLED, Verdict.SIMULATED
# How a child ends.
EXITS = dict(enumerate((Verdict.KILLED, Verdict.SIMULATED, Verdict.SURVIVED, Verdict.BROKEN), 10))


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports one module from this text, before any other finder is asked."""

    def __init__(self, name: str, path: Path, text: str) -> None:
        self._name, self._path, self._text = name, path, text
        self.imported = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def get_source(self, fullname: str) -> str:
        return self._text

    def exec_module(self, module: ModuleType) -> None:
        self.imported = True
        super().exec_module(module)


def changed(mutation: Mutation) -> str | None:
    """The file with the fault in it. None: its text is not there, or more than once."""
    text = (ROOT / "atfnd" / mutation.file).read_text()
    return text.replace(mutation.old, mutation.new) if text.count(mutation.old) == 1 else None


class _Job(NamedTuple):
    """To run the tests of a fault with its file as this text."""

    mutation: Mutation
    text: str
    simulate: bool


def _judged(jobs: Iterable[_Job], until_s: float) -> Iterator[tuple[_Job, Verdict]]:
    """As many at once as there are CPUs. None is begun after `until_s`."""
    under_way: dict[int, _Job] = {}
    waiting = iter(jobs)
    while True:
        while len(under_way) < (os.cpu_count() or 1) and time.monotonic() < until_s:
            if (job := next(waiting, None)) is None:
                break
            under_way[_begun(job)] = job
        if not under_way:
            return
        child, status = os.wait()
        # No exit of ours: a signal ended it, since it ran for ever.
        verdict = EXITS.get(os.waitstatus_to_exitcode(status), Verdict.KILLED)
        yield under_way.pop(child), verdict


def _begun(job: _Job) -> int:
    """The child that does it."""
    if child := os.fork():
        return child
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
    signal.alarm(20 * LIMIT_S)  # it waits for what never comes
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)
    verdict = _tested(job)
    os._exit(next(code for code, each in EXITS.items() if each is verdict))


def _tested(job: _Job) -> Verdict:
    path = ROOT / "atfnd" / job.mutation.file
    name = ".".join(("atfnd", *Path(job.mutation.file).with_suffix("").parts))
    finder = _Changed(name, path, job.text)
    sys.meta_path.insert(0, finder)
    verdict = Verdict.KILLED
    if _passes(*_files(job.mutation)):
        seen = job.simulate and not _passes(*SIMULATION)
        verdict = Verdict.SIMULATED if seen else Verdict.SURVIVED
    return verdict if finder.imported else Verdict.BROKEN


def _files(mutation: Mutation) -> list[Path]:
    """The test files, those of the file's room first."""
    room = Path(mutation.file).parts[0]
    files = [file_of(f"test_{each}") for each in mutation.tests]
    return sorted(files, key=lambda each: each.parent.name != room)


def _passes(*arguments: object) -> bool:
    ended = pytest.main([*PLAIN, f"--rootdir={ROOT}", *map(str, arguments)])
    return ended == pytest.ExitCode.OK


def _unchanged(mutation: Mutation) -> Mutation:
    """No fault: its tests pass, unless they are wrong themselves."""
    return mutation._replace(old="", new="", equivalent=None)


def _digest(mutation: Mutation) -> str:
    """Of the fault, and of all code: what a test of one file sees may change with any other."""
    return sha256(repr((mutation, _tree())).encode()).hexdigest()[:20]


@cache
def _tree() -> str:
    digest = sha256()
    for path in sorted(each for room in CODE for each in (ROOT / room).rglob("*.py")):
        digest.update(f"{path}".encode() + path.read_bytes())
    return digest.hexdigest()


def _read_kept() -> dict[str, str]:
    kept: dict[str, str] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    return kept


class _Verdicts:
    """What is known of faults, kept in a file."""

    def __init__(self) -> None:
        self._kept = _read_kept()

    def forget(self, mutations: Iterable[Mutation]) -> None:
        for each in mutations:
            self._kept.pop(_digest(each), None)

    def of(self, mutation: Mutation) -> Verdict | None:
        """None: it is not known yet."""
        if mutation.old and changed(mutation) is None:
            return Verdict.STALE
        if mutation.old and self.of(_unchanged(mutation)) not in (None, Verdict.SURVIVED):
            return Verdict.BROKEN
        if (kept := self._kept.get(_digest(mutation))) is None:
            return None
        verdict = Verdict(kept)
        equivalent = verdict is Verdict.SURVIVED and mutation.equivalent is not None
        return Verdict.EQUIVALENT if equivalent else verdict

    def find(self, mutations: Iterable[Mutation], until_s: float) -> Iterator[Mutation]:
        """Judge what is not known yet. Returns each as soon as it is known."""
        todo = []
        for each in mutations:
            if self.of(each) is not None:
                yield each
                continue
            text = changed(each) if each.old else (ROOT / "atfnd" / each.file).read_text()
            assert text is not None
            todo.append(_Job(each, text, simulate=bool(each.old)))
        for job, verdict in _judged(todo, until_s):
            new = {_digest(job.mutation): verdict.value}
            self._kept |= new
            KEPT.parent.mkdir(exist_ok=True)
            KEPT.write_text(json.dumps(_read_kept() | new))  # another run may have added to it
            yield job.mutation


def _brief(mutation: Mutation) -> str:
    old, new = (" ".join(text.split())[:60] for text in (mutation.old, mutation.new))
    return f"{mutation.file}: {old} -> {new}"


def _summary(found: Mapping[Mutation, Verdict]) -> Iterator[str]:
    """How many, by room."""
    rooms = sorted({Path(each.file).parts[0] for each in found})
    yield "".join((f"{'':10}", *(f"{each.value:>11}" for each in Verdict), "   killed"))
    for room in [*rooms, "all"]:
        counts = Counter(
            verdict
            for mutation, verdict in found.items()
            if room in ("all", Path(mutation.file).parts[0])
        )
        killed = sum(counts[each] for each in KILLED)
        share = killed / max(1, counts.total() - counts[Verdict.EQUIVALENT])
        row = "".join(f"{counts[each]:11}" for each in Verdict)
        yield f"{room:10}{row}{share:9.1%}"


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
    """0: every fault was killed, but for those that nothing can see."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("words", nargs="*")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args(arguments)
    until_s = time.monotonic() + 60 * options.minutes
    _prepare()
    every = [
        each
        for each in MUTATIONS
        if not options.words or any(word in f"{each.file} {each.old}" for word in options.words)
    ][:: options.every]
    grounds = [*dict.fromkeys(map(_unchanged, every))]
    verdicts = _Verdicts()
    if options.fresh:
        verdicts.forget([*grounds, *every])
    for _ in verdicts.find(grounds, until_s):
        pass
    found: dict[Mutation, Verdict] = {}
    for mutation in verdicts.find(every, until_s):
        verdict = verdicts.of(mutation)
        assert verdict is not None
        found[mutation] = verdict
        why = f"  ({mutation.equivalent})" if verdict is Verdict.EQUIVALENT else ""
        print(f"{verdict.value:10} {_brief(mutation)}{why}", flush=True)
    print("\n".join(_summary(found)))
    if len(found) < len(every):
        print(f"{len(every) - len(found)} are still to be made")
        return 2
    return 0 if {*found.values()} <= {*KILLED, Verdict.EQUIVALENT} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
