# SPDX-License-Identifier: GPL-2.0-or-later
"""The counted guest itself: every CPU executes at the same rate, and a line that two of them hand
to each other is counted once each time; a window in which idle CPUs halt is refused."""

from __future__ import annotations

import io

import pytest

from atfnd.errors import OperatorError
from bench.counted.counts import HANDED, RATE, ROUNDS, judge, marks, pingpongs, windows
from tests.guest.boot import ROOT, run
from tests.guest.machine import Machine

CPUS = 8
COUNTED = Machine(sockets=2, cores=CPUS // 2, counted=True)
PAIRS = " ".join(f"'{one} {other}'" for one, other in pingpongs(CPUS))
START = f"bash bench/counted/start.sh {ROUNDS} {PAIRS}"
HALTING = "/dev/shm/counted/load pingpong 2 3 100"  # without spinidle
GUEST_S = 1800.0

pytestmark = pytest.mark.timeout(2 * GUEST_S)


def test_the_bed_counts_what_is_known_and_refuses_idle_cpus_that_halt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    said, errors = io.BytesIO(), io.BytesIO()
    command = f"set -e; {START}; {HALTING}; cat /run/guest/counts"
    outcome = run(["bash", "-c", command], COUNTED, GUEST_S, said, errors)
    assert (outcome.exit_code, outcome.complaints) == (0, ()), (errors.getvalue(), outcome.console)
    near, far, halting, *counted = said.getvalue().decode().splitlines()

    for window in judge("\n".join(counted[:-2]), f"{near}\n{far}", CPUS):
        mean = sum(cpu.executed for cpu in window) / len(window)
        assert all(cpu.executed == pytest.approx(mean, rel=RATE) for cpu in window)
        assert all(cpu.lines["user"]["memory"] < HANDED * ROUNDS for cpu in window)
    with pytest.raises(OperatorError, match="refused: CPUs executed at rates of"):
        windows(marks("\n".join(counted[-2:])), [int(halting.strip('{}"ns: '))])
