# SPDX-License-Identifier: GPL-2.0-or-later
"""What the plugin counted between two of its marks (plugin.c), and when it may be believed. Pure.

All CPUs take turns of the same length, so each executes the same number of instructions in a
window, and all of them together one a virtual nanosecond. A window in which they do not is refused:
idle CPUs halted, turns were unequal, or something was not counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from atfnd.errors import OperatorError

__all__ = ["KINDS", "LATENCIES_NS", "MODES", "MOVED", "ROUNDS", "Cpu", "Window"]
__all__ += ["handed", "judge", "marks", "pingpongs", "windows"]

MODES = ("user", "kernel", "softirq")
KINDS = (
    "l1", "l2", "llc", "dirty_near", "clean_near", "dirty_far", "clean_far", "memory",
    "upgrade_near", "upgrade_far",
)  # fmt: skip
MOVED = KINDS[3:]  # between CPUs, or from memory
RATE = 0.02  # a CPU's instructions may differ by this from the mean, and all from the clock
HANDED = 0.02  # as far may the lines of a ping-pong be from those handed over
ROUNDS = 2000

# ns of each kind. EPYC 7R13: between cores 23 under an LLC, 197 between sockets, which is the worst
# case (107 in a socket); Xeon 8375C: 51 and 108 (github.com/nviennot/core-to-core-latency). LLC 10
# and memory 113 of Rome, LLC 17 (46 cycles) of a Xeon 8280 (anandtech.com, 14694); its memory is
# assumed. A clean line of another LLC comes from memory on EPYC.
_EPYC = (0, 4, 10, 23, 23, 197, 113, 113, 23, 197)
_XEON = (0, 5, 17, 51, 51, 108, 108, 100, 51, 108)
LATENCIES_NS = {
    "EPYC": dict(zip(KINDS, _EPYC, strict=True)),
    "Xeon": dict(zip(KINDS, _XEON, strict=True)),
}
PER_NS = 3.0  # instructions: 3 GHz, one a cycle


class Cpu(NamedTuple):
    """Instructions by mode, those of the idle loop apart, and accesses by mode and kind. Of each
    BPF program that is counted: how often it ran, and its instructions."""

    instructions: dict[str, int]
    idle: int
    lines: dict[str, dict[str, int]]
    runs: list[int]
    within: list[int]

    @property
    def busy(self) -> int:
        return sum(self.instructions.values())

    @property
    def executed(self) -> int:
        return self.busy + self.idle

    def found(self, kind: str) -> int:
        """Accesses of all modes."""
        return sum(lines[kind] for lines in self.lines.values())

    def ns(self, processor: str) -> float:
        """An estimate: what it executed, and every line waited for."""
        waited = sum(self.found(kind) * ns for kind, ns in LATENCIES_NS[processor].items())
        return self.busy / PER_NS + waited

    def since(self, before: Cpu) -> Cpu:
        """The difference of two marks."""
        return Cpu(
            {mode: count - before.instructions[mode] for mode, count in self.instructions.items()},
            self.idle - before.idle,
            {
                mode: {kind: count - before.lines[mode][kind] for kind, count in lines.items()}
                for mode, lines in self.lines.items()
            },
            _less(self.runs, before.runs),
            _less(self.within, before.within),
        )


def _less(counts: list[int], before: list[int]) -> list[int]:
    return [now - then for now, then in zip(counts, before, strict=True)]


Window = tuple[Cpu, ...]  # of all CPUs


def marks(text: str) -> list[Window]:
    """Of the plugin's file."""
    return [tuple(map(_cpu, json.loads(line))) for line in text.splitlines()]


def _cpu(counted: dict[str, list[int]]) -> Cpu:
    *busy, idle = counted["instructions"]
    lines = {mode: dict(zip(KINDS, counted[mode], strict=True)) for mode in MODES}
    by_mode = dict(zip(MODES, busy, strict=True))
    return Cpu(by_mode, idle, lines, counted["runs"], counted["within"])


def windows(found: Sequence[Window], took_ns: Sequence[int]) -> list[Window]:
    """Each from a mark to the next; `took_ns` by the guest's clock. OperatorError: one is refused,
    or marks are missing."""
    if len(found) != 2 * len(took_ns):
        raise _refused(f"{len(found)} marks for {len(took_ns)} windows")
    edges = zip(found[::2], found[1::2], took_ns, strict=True)
    return [_window(begin, end, ns) for begin, end, ns in edges]


def _window(begin: Window, end: Window, took_ns: int) -> Window:
    window = tuple(now.since(before) for before, now in zip(begin, end, strict=True))
    executed = [cpu.executed for cpu in window]
    mean = sum(executed) / len(executed)
    rates = [each / mean if mean else 0.0 for each in executed]
    if not all(abs(rate - 1) <= RATE for rate in rates):
        raise _refused(f"CPUs executed at rates of {', '.join(f'{each:.3f}' for each in rates)}")
    if abs(sum(executed) / took_ns - 1) > RATE:
        raise _refused(f"{sum(executed)} instructions in {took_ns} ns of the guest's clock")
    return window


def pingpongs(cpus: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """CPUs of one socket, and of two."""
    return (2, 3), (2, cpus // 2 + 1)


def judge(counted: str, said: str, cpus: int) -> list[Window]:
    """The ping-pongs of start.sh, by what the plugin wrote meanwhile and what they said.
    OperatorError: one is refused."""
    took_ns = [json.loads(line)["ns"] for line in said.splitlines()]
    near, far = windows(marks(counted)[-2 * len(took_ns) :], took_ns)
    of_one, of_two = pingpongs(cpus)
    handed(near, of_one, ROUNDS, near=True)
    handed(far, of_two, ROUNDS, near=False)
    return [near, far]


def handed(window: Window, players: Iterable[int], rounds: int, *, near: bool) -> None:
    """Judge a ping-pong: in each round each player gets the line from the other and takes it.
    OperatorError: the model saw something else."""
    where = "near" if near else "far"
    for cpu in players:
        for kind in (f"dirty_{where}", f"upgrade_{where}"):
            count = window[cpu].lines["user"][kind]
            if abs(count / rounds - 1) > HANDED:
                raise _refused(f"{rounds} rounds of a ping-pong were {count} {kind} on CPU {cpu}")


def _refused(why: str) -> OperatorError:
    return OperatorError(f"window refused: {why}", exit_code=1)
