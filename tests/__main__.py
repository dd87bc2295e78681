# SPDX-License-Identifier: GPL-2.0-or-later
"""`python -m tests quick|rest|demand|soak`: a tier of the suite (tests/tiers.py), in two pytest
runs: the first takes files beside each other. If a few tests failed, they run once more, with
nothing beside them. Exits 1 when one of them failed again, or many had failed.

ATFND_WORKERS: how many files at once. ATFND_TESTS_UNTIL: seconds since the epoch; no file is begun
later, and those left out are named.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import psutil

from tests.tiers import ALONE, SOAK, file_of

__all__ = ["main"]

WORKERS = os.environ.get("ATFND_WORKERS") or str(len(os.sched_getaffinity(0)) + 2)
BESIDE = ("-n", WORKERS, "--dist", "loadfile", "--no-loadscope-reorder")
GUEST = "test_guest"
TWO = ("-n", "2", "--dist", "load", "--maxschedchunk", "1")  # an emulator keeps one CPU busy
TIERS = {"quick": "quick", "rest": "full", "demand": "demand"}
LINT = "make", "-s", "lint"  # most of it, mypy, keeps one CPU busy
PREPARE = "from tests.guest.boot import prepare; prepare(); prepare('newest')"
CLOSING = ("short test summary info", "NOT RUN")
LEAST_BUSY_PERCENT = 15
TESTS_FAILED, NO_TESTS = 1, 5  # pytest's exit codes; the latter: nothing was selected
ONCE_MORE = 3  # tests of a tier, at most
NO_LIMIT = {"ATFND_TESTS_UNTIL": "inf"}
FAILED = re.compile(r"(?:FAILED|ERROR) (.+?)(?: - |$)")


@dataclass
class Ran:
    """One run of pytest: what it ended with."""

    name: str
    code: int
    took_s: float | None
    closing: list[str] = field(default_factory=list)


def ran(name: str, words: Sequence[str], more: Mapping[str, str] | None = None) -> Ran:
    """Run pytest; its output is copied as it comes."""
    began_s, closing, summing, last = time.monotonic(), list[str](), False, ""
    print(f"==== {name}: pytest {' '.join(words)}", flush=True)
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *words],
        env={**os.environ, **(more or {})},
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            summing = summing or (line[0] == "=" and any(words in line for words in CLOSING))
            if summing:
                closing.append(line.rstrip())
            last = line.rstrip()
    code = 0 if process.returncode == NO_TESTS else process.returncode
    return Ran(name, code, time.monotonic() - began_s, closing or [last])


def tier(name: str) -> list[Ran]:
    """Files beside each other, then those that run alone, then the guest, which takes longest.
    Beside the first of them run the linters (`quick`), or what a guest is made of is downloaded:
    its tests tell what is wrong with that."""
    selected, words = TIERS[name], ["-q", "--durations=10", "-m"]
    quick = name == "quick"
    with subprocess.Popen(LINT if quick else [sys.executable, "-c", PREPARE]) as meanwhile:
        beside = ran("beside each other", [*words, f"({selected}) and not alone", *BESIDE])
    files = [str(file_of(stem)) for stem in sorted(ALONE) if stem != GUEST]
    done = [beside, ran("alone", [*words, selected, *files])]
    if quick:
        done.insert(0, Ran("lint", meanwhile.returncode, None))
    if not quick:
        two = TWO if name == "rest" else ()
        done += [ran("in the guest", [*words, selected, "-rP", *two, str(file_of(GUEST))])]
    return [*done, *once_more(done)]


def once_more(done: Sequence[Ran]) -> list[Ran]:
    """Real servers, a scheduler and emulated CPUs are not the same each time: what fails of them
    once and not again is shown, and is no failure of the run."""
    lines = [line for each in done if each.code for line in each.closing]
    failed = [match[1] for line in lines if (match := FAILED.match(line))]
    if not 0 < len(failed) <= ONCE_MORE:
        return []
    long = any("test_in_the_guest" in each for each in failed)
    again = ran("what failed, once more", ["-q", *failed], None if long else NO_LIMIT)
    if again.code == 0 and f"{len(failed)} passed" in again.closing[-1]:
        for each in done:
            each.code = 0 if each.code == TESTS_FAILED else each.code
    return [again]


def soak(hours: float) -> list[Ran]:
    """Rounds of faults by chance, each with a seed of its own, until the time is over."""
    end_s, done = time.monotonic() + hours * 3600, list[Ran]()
    judged = tier("demand")
    files = [str(file_of(each)) for each in SOAK]
    while not done or time.monotonic() < end_s:
        seed = random.randrange(1 << 31)
        more = {
            "ATFND_HYPOTHESIS": "soak",
            "ATFND_SOAK": "10",
            "ATFND_FAULTS_SEED": str(seed),
            "ATFND_FAULTS_S": "1200",
        }
        done.append(ran(f"faults, seed {seed}", ["-q", *files, "-o", "timeout=7200"], more))
        done.append(ran("hypothesis", ["-q", "-m", "hypothesis", *BESIDE], more))
    return [*judged, *done]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests", description=__doc__)
    parser.add_argument("tier", choices=[*TIERS, "soak"])
    parser.add_argument("--hours", type=float, default=4.0, help="of soak")
    options = parser.parse_args()
    if (busy_percent := psutil.cpu_percent(interval=1)) > LEAST_BUSY_PERCENT:
        print(f"==== others keep {busy_percent:.0f} % of the CPUs busy: this takes longer")
    done = soak(options.hours) if options.tier == "soak" else tier(options.tier)
    print("==== what became of it")
    for each in done:
        for line in each.closing:
            print(line)
        took = "" if each.took_s is None else f", {each.took_s:.0f} s"
        print(f"{each.name}: {'failed' if each.code else 'passed'}{took}")
    return 1 if any(each.code for each in done) else 0


if __name__ == "__main__":
    sys.exit(main())
