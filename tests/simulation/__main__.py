# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs seeds of the simulation.

    python -m tests.simulation [FIRST [LAST]]       # one seed, or several
    python -m tests.simulation --seconds 60         # as many as fit, from 0 on

A seed that fails is shrunk and told; exit status 1. At the end: how many runs, and which kinds of
steps, writes and verdicts were seen, and which were never.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from itertools import count

from tests.simulation.run import Failure, run
from tests.simulation.schedule import VERBS, plan
from tests.simulation.shrink import shrunk, story_of
from tests.simulation.world import BEGIN_NS

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("first", nargs="?", type=int, default=0)
    parser.add_argument("last", nargs="?", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args(arguments)
    last = options.first if options.last is None and options.seconds is None else options.last
    began, seen, runs, lived_ns, failed = time.process_time(), Counter[str](), 0, 0, 0
    for seed in count(options.first):
        spent_s = time.process_time() - began
        if last is not None and seed > last:
            break
        if options.seconds is not None and spent_s > options.seconds:
            break
        runs += 1
        try:
            done = run(plan(seed, options.steps))
        except Failure as failure:
            failed += 1
            print(f"\n{story_of(shrunk(failure))}\n")
            continue
        seen += done.world.seen
        lived_ns += done.world.now_ns - BEGIN_NS
    spent_s = time.process_time() - began
    print(
        f"{runs} runs, {failed} failed, {lived_ns / 1e9:.0f} s simulated in {spent_s:.1f} s of CPU"
    )
    for what, times in sorted(seen.items()):
        print(f"{times:8} {what}")
    never = sorted(VERBS - seen.keys())
    print(f"never seen: {', '.join(never) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
