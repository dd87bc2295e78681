# SPDX-License-Identifier: GPL-2.0-or-later
"""The same seed gives the same run in every process: Python orders the sets of each in its own way,
and nothing that the daemon decides may depend on that."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.simulation.run import run
from tests.simulation.schedule import plan

PRINTED = """
import sys
from tests.simulation.run import run
from tests.simulation.schedule import plan
for seed in map(int, sys.argv[1:]):
    print(run(plan(seed)).world.digest())
"""
# In some of them another flow lost its filter, or moved first, while the order of sets counted.
SEEDS = 0, 1, 3, 14, 20, 69


def test_a_seed_gives_the_same_run_whatever_the_order_of_sets() -> None:
    def digests(hash_seed: int) -> list[str]:
        asked = [sys.executable, "-c", PRINTED, *map(str, SEEDS)]
        env = os.environ | {"PYTHONHASHSEED": str(hash_seed)}
        ran = subprocess.run(asked, env=env, stdout=subprocess.PIPE, text=True, check=True)
        return ran.stdout.split()

    found = [digests(hash_seed) for hash_seed in (0, 1)]
    assert found[0] == found[1]
    assert len({*found[0]}) == len(SEEDS)


def test_what_happened_before_in_a_process_does_not_matter() -> None:
    digests = [run(plan(seed)).world.digest() for seed in (5, 7, 5)]
    assert digests[0] == digests[2] != digests[1]
