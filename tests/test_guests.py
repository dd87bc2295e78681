# SPDX-License-Identifier: GPL-2.0-or-later
"""Every file of tests/guest/, in the guest of its machine. `python -m tests` has two guests beside
each other: one keeps little more than a CPU busy, however many it has."""

from __future__ import annotations

import compileall
import io
import re
import sys
from itertools import zip_longest

import pytest

from tests.__main__ import ONCE_MORE
from tests.guest.boot import ROOT, Outcome
from tests.guest.collected import Group, machines_of, not_ended, run_tests, that_failed, together
from tests.guest.debian import build
from tests.tiers import DEMAND, SOLITARY

FILES = sorted((ROOT / "tests/guest").glob("test_*.py"))
[USUAL] = machines_of(ROOT / "tests/guest/test_clock.py")
FILES_S = 2400.0
# A kernel changes its own code by way of a breakpoint (text_poke_bp_batch(), Linux 6.12
# arch/x86/kernel/alternative.c): when BPF programs and tracepoints are attached, among others. An
# emulated CPU may still run it from what it has translated when it has been taken out, and nobody
# waits for it any more. No CPU does that, so it says nothing about us.
STALE_BREAKPOINT = "Oops: int3"
FAILED = re.compile(r"\.py [.]*[FEs]")  # of a file's line in pytest's report
SLOW = re.compile(r"\d+\.\d\ds (setup|call|teardown) ")  # of `pytest --durations`


pytestmark = pytest.mark.timeout(FILES_S + 300)


def named(group: Group) -> str:
    machine, [first, *others] = group.machine, group.files
    cpus = f"{machine.sockets}x{machine.cores}x{machine.threads}"
    return f"{machine.kernel} {machine.init} {cpus} {first.stem} and {len(others)} more"


@pytest.fixture(scope="module", autouse=True)
def bytecode() -> None:
    """The guest cannot keep what it compiles."""
    for folder in ("atfnd", "tests", "bench"):
        assert compileall.compile_dir(ROOT / folder, quiet=1)


def reported(group: Group) -> tuple[Outcome, str]:
    report = io.BytesIO()
    outcome = run_tests(group, report, FILES_S)
    return outcome, report.getvalue().decode()


def groups(*, on_demand: bool) -> list[Group]:
    """A worker of pytest-xdist begins with two that stand together: a part of the files that share
    the usual machine, and those of another."""
    files = [file for file in FILES if (file.stem in DEMAND) is on_demand]
    made = [
        group
        for alone in (True, False)
        for group in together(
            (machine, file)
            for file in files
            for machine in machines_of(file)
            if (file.stem in SOLITARY) is alone
        )
    ]
    usual = [each for each in made if each.machine == USUAL]
    others = [each for each in made if each.machine != USUAL]
    others.sort(key=lambda each: -len(each.files))
    return [each for pair in zip_longest(others, usual) for each in pair if each is not None]


def marks(group: Group, *, on_demand: bool) -> list[pytest.MarkDecorator]:
    solitary = group.files[0].stem in SOLITARY
    return [pytest.mark.demand] * on_demand + [pytest.mark.solitary] * solitary


@pytest.mark.parametrize(
    "group",
    [
        pytest.param(group, marks=marks(group, on_demand=on_demand))
        for on_demand in (False, True)
        for group in groups(on_demand=on_demand)
    ],
    ids=named,
)
def test_in_the_guest(group: Group, capsys: pytest.CaptureFixture[str]) -> None:
    def tell(what: str) -> None:
        with capsys.disabled():  # a worker's stdout goes nowhere
            print(f"\n{named(group)}: {what}", file=sys.stderr)

    if group.machine.init == "systemd":
        build()
    outcome, said = reported(group)
    if outcome.exit_code is None and STALE_BREAKPOINT in outcome.console:
        tell("the emulated CPU met a stale breakpoint, the rest once more")
        assert not FAILED.search(said), said
        outcome, more = reported(not_ended(group, said))
        said += more
    complaints, failed = outcome.complaints, that_failed(group, said)
    if outcome.exit_code == 1 and 0 < len(failed.files) <= ONCE_MORE:
        tell(f"what failed, once more\n{said}")
        outcome, said = reported(failed)
        complaints += outcome.complaints
    assert outcome.exit_code == 0, f"{said}\n{outcome.console}"
    assert complaints == ()
    lines = said.splitlines()
    slow = [line for line in lines if line.startswith("not run: ") or SLOW.match(line)]
    tell("\n".join([lines[-1], *slow]))
