# SPDX-License-Identifier: GPL-2.0-or-later
"""The table of faults is true of the code; a fault is made in the module that is tested."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter

import pytest

from tests.mutants import ROOT, changed
from tests.mutations import MUTATIONS, Mutation
from tests.tiers import file_of

__all__: list[str] = []


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: f"{each.file}:{each.old[:40]}")
def test_its_text_is_in_its_file_once_and_what_it_becomes_is_python(mutation: Mutation) -> None:
    text = changed(mutation)
    assert text is not None, "change tests/mutations.py with the code"
    was = ast.dump(ast.parse((ROOT / "atfnd" / mutation.file).read_text()))
    assert ast.dump(ast.parse(text)) != was
    for each in mutation.tests:
        assert file_of(f"test_{each}")


def test_no_fault_is_made_twice() -> None:
    assert Counter((each.file, each.old, each.new) for each in MUTATIONS).most_common(1)[0][1] == 1


def test_a_fault_is_made_in_the_module_that_is_tested_and_its_tests_see_it() -> None:
    asked = [sys.executable, "-m", "tests.mutants", "--fresh", "wiped = not filters"]
    ran = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "killed     engine/filters/lost.py: wiped = not filters" in ran.stdout
