# SPDX-License-Identifier: GPL-2.0-or-later
"""Faults are made where they can be, one at a time, and a test that sees one is heard."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.mutants import ROOT, faults_of

__all__: list[str] = []

SOURCE = """
def first(many: list[int] | None, least: int) -> int:
    '''A sum of 3 and 4 is 7.'''
    if not many:
        return 0
    many.sort()
    return min(many) if many[0] >= least and True else least - 1
"""
EXPECTED = {
    "not many -> many",
    "0 -> 1",
    "1 -> 2",
    "True -> False",
    "many.sort() -> (left out)",
    "min(many) -> max(many)",
    "many[0] >= least -> many[0] > least",
    "many[0] >= least and True -> many[0] >= least or True",
    "least - 1 -> least + 1",
}


def test_each_change_is_made_alone() -> None:
    found = [each() for each in faults_of(Path("atfnd/first.py"), SOURCE)]
    assert {f"{each.was} -> {each.is_now}" for each in found} == EXPECTED
    assert len({each.text for each in found}) == len(found)


def test_a_fault_that_a_test_sees_is_killed_and_the_tree_is_as_before() -> None:
    file = ROOT / "atfnd/engine/turns.py"
    before = file.read_text()
    words = ["--number", "3", "--seed", "2", "--no-simulation", "atfnd/engine/turns.py"]
    asked = [sys.executable, "-m", "tests.mutants", *words]
    ran = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode in (0, 1), ran.stderr
    killed, simulated, survived, _ = ran.stdout.splitlines()[-1].split()[1:]
    assert int(killed) > 0
    assert (int(killed) + int(survived), simulated) == (3, "0")
    assert file.read_text() == before
