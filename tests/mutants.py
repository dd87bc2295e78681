# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs pure tests against each fault of `mutations`, made in memory: the tests are to fail.

    python -m tests.mutants [WORD...]

Nothing in the tree is changed: a child process imports the one module with the fault in it, and all
others as they are. With words, only faults whose file or text has one of them. Says of each whether
it was killed, survived, or is stale (its text is not in the file any more); exit status 1 if a
fault that is not equivalent survived, or anything else went wrong.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import Phase, settings

from tests.mutations import MUTATIONS, Mutation
from tests.tiers import file_of

__all__ = ["Verdict", "changed", "judge", "passes"]

ROOT = Path(__file__).parent.parent
LIMIT_S = 120  # of CPU time: a fault that makes a loop endless is seen, too, on a busy machine
EXAMPLES = 25  # of what hypothesis tries: a fault that needs more is hardly tested
NOT_IMPORTED = 99
# No plugin and no fixture of ours: what the tests of pure code do without costs most of a run.
PLAIN = "-x", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--noconftest"


class Verdict(Enum):
    KILLED = "killed"
    SURVIVED = "survived"
    EQUIVALENT = "equivalent"  # it survived, and is said to
    STALE = "stale"
    BROKEN = "broken"  # its tests fail without it, or do not import its file


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


def judge(mutation: Mutation) -> Verdict:
    """Make the fault and run its tests."""
    text = changed(mutation)
    if text is None:
        return Verdict.STALE
    code = _run(mutation, text)
    if code in (NOT_IMPORTED, pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.USAGE_ERROR):
        return Verdict.BROKEN
    if code == pytest.ExitCode.OK:
        return Verdict.SURVIVED if mutation.equivalent is None else Verdict.EQUIVALENT
    return Verdict.KILLED


def passes(mutation: Mutation) -> bool:
    """Its tests do without the fault, made to the same file in the same way."""
    return _run(mutation, (ROOT / "atfnd" / mutation.file).read_text()) == pytest.ExitCode.OK


def _run(mutation: Mutation, text: str) -> int:
    """Exit status of pytest in a child; what was killed for its time is minus the signal."""
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
        signal.alarm(20 * LIMIT_S)  # it waits for what never comes
        os._exit(_tested(mutation, text))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _tested(mutation: Mutation, text: str) -> int:
    path = ROOT / "atfnd" / mutation.file
    name = ".".join(("atfnd", *Path(mutation.file).with_suffix("").parts))
    finder = _Changed(name, path, text)
    sys.meta_path.insert(0, finder)
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)
    files = [str(file_of(f"test_{each}")) for each in mutation.tests]
    code = pytest.main([*PLAIN, f"--rootdir={ROOT}", *files])
    return int(code) if finder.imported else NOT_IMPORTED


def main(words: Sequence[str]) -> int:
    """0: every fault was killed, but for those that nothing can see."""
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
    found: Counter[Verdict] = Counter()
    sound: dict[tuple[str, ...], bool] = {}
    for mutation in MUTATIONS:
        if words and not any(word in f"{mutation.file} {mutation.old}" for word in words):
            continue
        ground = mutation.file, *mutation.tests
        if ground not in sound:
            sound[ground] = passes(mutation)
        verdict = judge(mutation) if sound[ground] else Verdict.BROKEN
        found[verdict] += 1
        old, new = (" ".join(text.split())[:60] for text in (mutation.old, mutation.new))
        print(f"{verdict.value:10} {mutation.file}: {old} -> {new}", flush=True)
    killed, every = found[Verdict.KILLED], found.total() - found[Verdict.EQUIVALENT]
    print(", ".join(f"{count} {verdict.value}" for verdict, count in found.items()))
    print(f"{killed} of {every} killed ({killed / max(1, every):.0%})")
    return 0 if killed == every else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
