# SPDX-License-Identifier: GPL-2.0-or-later
"""Some faults of the long list, always the same, are seen by the tests that are named for them."""

from __future__ import annotations

import subprocess
import sys

from tests.mutants import ROOT

__all__: list[str] = []

EVERY = 40  # about twenty: a minute


def test_of_forty_faults_one_is_made_and_seen() -> None:
    asked = [sys.executable, "-m", "tests.mutants", "--fresh", "--every", str(EVERY)]
    ran = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
