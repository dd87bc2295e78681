# SPDX-License-Identifier: GPL-2.0-or-later
"""Benches on the counted machine: measured in the guest (tests/guest), reported where they were
asked for.

On the host a guest is started for `python -m bench.guest NAME ROUNDS [WORD...]`, which prints what
was measured as one line of JSON. Inside a guest (ATFND_GUEST is set) there is no second one.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from atfnd.errors import OperatorError
from bench.counted import cells, costs, forwarding, observed, pairs
from bench.ending import ended_in_order
from bench.machine import Machine, machine
from bench.report import Report
from tests.guest import boot
from tests.guest import machine as emulated

__all__ = ["NAMES", "run"]

DEADLINE_S = 3 * 3600.0
NOTE = "in a guest of QEMU without KVM: every instruction is emulated, only ratios and shares count"


class _Bench(NamedTuple):
    measure: Callable[..., Any]  # of rounds and words
    report: Callable[[Any], Report]
    machine: emulated.Machine


_COUNTED = emulated.Machine(sockets=2, cores=4, counted=True)
_BENCHES = {
    "machine": _Bench(cells.measure, costs.report, _COUNTED),
    "observed": _Bench(observed.measure, observed.report, _COUNTED),
    "pairs": _Bench(pairs.matrix, costs.report, _COUNTED),
    "pairs-16": _Bench(partial(pairs.matrix, cpus=16), costs.report, replace(_COUNTED, cores=8)),
    "forward-counted": _Bench(
        forwarding.measure,
        costs.report,
        replace(_COUNTED, nics=(emulated.Nics("nvme", forwarding.PORTS),)),
    ),
    **{
        where: _Bench(partial(pairs.shared, where=where), costs.report, _COUNTED)
        for where in pairs.SHARED
    },
}
NAMES = tuple(_BENCHES)


def run(
    name: str,
    rounds: int,
    words: Sequence[str] = (),
    said: io.BytesIO | None = None,
    of: emulated.Machine | None = None,
) -> Report:
    """Measure in this guest or in a new one, and report with the guest's machine. `said`: gets what
    a new one says, as it comes; the last line is all that was measured. `of`: what a new one is
    made of, if it is not as usual."""
    if "ATFND_GUEST" in os.environ:
        answer = _answer(name, rounds, words)
    else:
        answer = _asked(name, rounds, words, said or io.BytesIO(), of or _BENCHES[name].machine)
    report = _BENCHES[name].report(answer["measured"])
    report.machine = Machine(*answer["machine"])
    report.notes.append(NOTE)
    return report


def _answer(name: str, rounds: int, words: Sequence[str]) -> dict[str, Any]:
    return {"machine": machine(), "measured": _BENCHES[name].measure(rounds, *words)}


def _asked(
    name: str, rounds: int, words: Sequence[str], said: io.BytesIO, of: emulated.Machine
) -> Any:
    """The same from a guest. OperatorError: it did not end well, with its own words on stderr."""
    print(f"{name}: a guest is measuring, {rounds} rounds", file=sys.stderr, flush=True)
    same = ["env", "PYTHONHASHSEED=0"]  # where instructions of Python are counted
    command = [*same, sys.executable, "-m", "bench.guest", name, str(rounds), *words]
    outcome = boot.run(command, of, DEADLINE_S, said, sys.stderr.buffer)
    for complaint in outcome.complaints:
        print(f"guest kernel: {complaint}", file=sys.stderr)
    if outcome.exit_code:
        raise OperatorError(f"{name}: exited with {outcome.exit_code} in the guest", exit_code=1)
    if outcome.exit_code is None:
        raise OperatorError(f"{name}: the guest died:\n{outcome.console}", exit_code=1)
    return json.loads(said.getvalue().splitlines()[-1])


def main() -> None:
    """Measure, and print it for the host."""
    parser = argparse.ArgumentParser(prog="python -m bench.guest", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("rounds", type=int)
    parser.add_argument("words", nargs="*")
    given = parser.parse_args()
    with ended_in_order():
        print(json.dumps(_answer(given.name, given.rounds, given.words)))


if __name__ == "__main__":
    main()
