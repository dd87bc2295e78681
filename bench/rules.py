# SPDX-License-Identifier: GPL-2.0-or-later
"""Filters inserted, given another queue and deleted per second, on the test driver in the guest.

`atfnd` is what the daemon does with a plan: `move.plan` and `program.filter`, journal included,
on the NIC of `nic/ethtool/nic.py`. `ethtool` is one process per filter, from a shell script, as an
operator does it. `ioctl` is the bare loop in C (rules_ioctl.c). All write the same BATCH of filters
to the same locations, the last ones of a table that holds the rest of its size already; every
filter is read back after each step. `ethtool` and `ioctl` are given the locations, atfnd finds
them. Time is what the calls take: C has read its rules before, and atfnd has its plan.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from atfnd.errors import OperatorError
from atfnd.model import Action, ActionKind, FlowKey, Match, Protocol
from atfnd.move.plan import in_order
from atfnd.nic import Nic
from atfnd.program import filter
from atfnd.program.journals.filter_journal import FilterJournal
from bench import plot
from bench.bed import succeed
from bench.report import Report, Target
from bench.sim_bed import DEVICE, TABLE, sim_bed
from bench.stats import Estimate, median, ratios

__all__ = ["BATCH", "SIZES", "STEPS", "compiled", "filters", "measure", "report"]

SIZES = (64, 1000, 4000)  # filters in the table when the batch is in
BATCH = 32
STEPS = ("insert", "re-steer", "delete")
REPEATS = {"ethtool": 1, "atfnd": 8, "ioctl": 32}  # batches a round
RIVALS = ("ethtool", "ioctl")
TIMES = 20.0
SOURCE = Path(__file__).with_name("rules_ioctl.c")


class TestedFilter(NamedTuple):
    """One filter of a TCP flow over IPv4."""

    key: FlowKey
    queue: int
    location: int

    @property
    def ends(self) -> tuple[str, int, str, int]:
        """Source and destination of its packets."""
        remote, local = (".".join(map(str, end)) for end in (self.key.remote, self.key.local))
        return remote, self.key.remote_port, local, self.key.local_port


LAST = TABLE - TABLE // 16 - 1  # where a first filter goes (nic/location.py)
Step = Callable[[str, Sequence[TestedFilter]], int]  # ns that one step with the filters took


def filters(count: int, first: int, way: int) -> list[TestedFilter]:
    """Of `count` flows, at locations from `first` on, upwards (1) or downwards (-1)."""
    found = []
    for number in range(count):
        at = first + way * number
        remote = bytes((10, 9, 64 + at // 256, at % 256))
        key = FlowKey(Protocol.TCP, bytes((10, 9, 0, 1)), 443, remote, 1024 + at)
        found.append(TestedFilter(key, number % 2, at))
    return found


def _re_steered(filters: Sequence[TestedFilter]) -> list[TestedFilter]:
    return [each._replace(queue=each.queue + 2) for each in filters]


def _ethtool(step: str, filters: Sequence[TestedFilter]) -> int:
    """A process per filter, started by dash. Bookworm's ethtool says 0 when the NIC refuses."""
    lines = []
    for each in filters:
        src, sport, dst, dport = each.ends
        said = f"flow-type tcp4 src-ip {src} dst-ip {dst} src-port {sport} dst-port {dport}"
        said += f" action {each.queue} loc {each.location}"
        if step == "delete":
            said = f"delete {each.location}"
        lines.append(f"ethtool -N {DEVICE} {said}")
    began = time.perf_counter_ns()
    done = subprocess.run(["dash"], input="\n".join(lines), capture_output=True, text=True)
    took = time.perf_counter_ns() - began
    if done.returncode or done.stderr:
        raise OperatorError(f"ethtool: {done.stderr.strip().splitlines()[0]}", exit_code=1)
    return took


def compiled(folder: Path) -> Path:
    """The loop in C, built there."""
    program = folder / "rules_ioctl"
    succeed("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(program), str(SOURCE))
    return program


def _ioctl(program: Path) -> Step:
    def step(name: str, filters: Sequence[TestedFilter]) -> int:
        lines = [" ".join(map(str, (*f.ends, f.queue, f.location))) for f in filters]
        command = [str(program), DEVICE, "delete" if name == "delete" else "insert"]
        done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True)
        if done.returncode:
            raise OperatorError(done.stderr.strip(), exit_code=1)
        return int(done.stdout)

    return step


def _atfnd(nic: Nic, journal: FilterJournal) -> Step:
    def step(name: str, filters: Sequence[TestedFilter]) -> int:
        kind = {
            "insert": ActionKind.INSERT,
            "re-steer": ActionKind.REWRITE,
            "delete": ActionKind.DELETE,
        }[name]
        plan = tuple(
            Action(
                kind, DEVICE, each.key,
                None if kind is ActionKind.INSERT else each.location,
                None, None if kind is ActionKind.DELETE else each.queue,
                "its application is there", "bench",
            )
            for each in filters
        )  # fmt: skip
        began = time.perf_counter_ns()
        outcomes = [filter.apply(nic, journal, action) for action in in_order(plan)]
        took = time.perf_counter_ns() - began
        for outcome in outcomes:
            if outcome.errno:
                raise OperatorError(f"atfnd: {outcome.left}", exit_code=1)
        return took

    return step


def _check(nic: Nic, filters: Sequence[TestedFilter], there: bool) -> None:
    """Every filter is in the NIC as it was asked for, or none is."""
    for each in filters:
        rule = nic.filter(each.location)
        found = rule and (rule.match, rule.queue)
        if found != ((Match.of(each.key), each.queue) if there else None):
            raise OperatorError(f"location {each.location} holds {found}", exit_code=1)


def _batches(step: Step, nic: Nic, batch: Sequence[TestedFilter], repeats: int) -> dict[str, float]:
    """ns a filter in each step, over `repeats` batches."""
    spent = dict.fromkeys(STEPS, 0)
    for _ in range(repeats):
        for name in STEPS:
            filters = batch if name == "insert" else _re_steered(batch)
            spent[name] += step(name, filters)
            _check(nic, filters, there=name != "delete")
    return {name: ns / (repeats * len(batch)) for name, ns in spent.items()}


@contextmanager
def _rivals() -> Iterator[tuple[Nic, dict[str, Step]]]:
    with ExitStack() as stack:
        bed = stack.enter_context(sim_bed())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/run")))
        program = compiled(folder)
        nic = stack.enter_context(bed.open())
        nic.probe()
        journal = stack.enter_context(closing(FilterJournal(folder / "filters.journal")))
        yield (
            nic,
            {"ethtool": _ethtool, "atfnd": _atfnd(nic, journal), "ioctl": _ioctl(program)},
        )


def measure(
    rounds: int, sizes: Sequence[int] = SIZES, batch: int = BATCH
) -> dict[str, dict[str, dict[str, list[float]]]]:
    """ns a filter, one figure a round: by size of the table, contender and step."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    with _rivals() as (nic, steps):
        for turn in range(rounds):
            for size in sizes:
                others = filters(size - batch, 0, 1)
                steps["ioctl"]("insert", others)
                for name in list(steps)[:: 1 if turn % 2 else -1]:
                    last = filters(batch, LAST, -1)
                    each = _batches(steps[name], nic, last, REPEATS[name])
                    series = found.setdefault(str(size), {}).setdefault(name, {})
                    for step, ns in each.items():
                        series.setdefault(step, []).append(ns)
                steps["ioctl"]("delete", others)
    return found


def report(measured: dict[str, dict[str, dict[str, list[float]]]]) -> Report:
    """From what `measure` found, which may have been JSON in between."""
    report = Report("rules", "filters inserted, re-steered and deleted per second")
    report.samples = {"ns_a_filter": measured}
    pictures: dict[str, list[Estimate]] = {}
    groups = []
    for size, contenders in measured.items():
        for step in STEPS:
            what = f"{step}, {size} in the table"
            groups.append(f"{step}\n{size}")
            ns = {name: contenders[name][step] for name in ("atfnd", *RIVALS)}
            for name, each in ns.items():
                rate = report.add(what, name, "filters/s", median(1e9 / one for one in each))
                pictures.setdefault(name, []).append(rate)
            times = report.add(what, "atfnd / ethtool", "×", ratios(ns["ethtool"], ns["atfnd"]))
            report.add(what, "ioctl / atfnd", "×", ratios(ns["atfnd"], ns["ioctl"]))
            target = Target(f"atfnd against ethtool, {what}", times.value, TIMES, True, "×")
            report.targets.append(target)
    plot.bars("rules", "Filters per second", "filters/s", groups, pictures, log=True)
    return report
