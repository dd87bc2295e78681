# SPDX-License-Identifier: GPL-2.0-or-later
"""When atfnd is worse for a server than the kernel alone, and when it is better."""

from __future__ import annotations

import pytest

from bench.verdicts import Run, Verdict, judged

LIGHT, FULL = "redis × 4, pinned, light", "redis × 4, pinned, saturated"
RUN = Run(0, LIGHT, "rss", 100.0, 50e3, 100e3, 1000.0, 0.0, 0.0, 0.5, 0.0)


def of(contender: str, measure: str, *ratios: float) -> list[Run]:
    """A round for each ratio, to RUN, of the measure."""
    changed = RUN._asdict() | {"contender": contender}
    return [
        Run(**(changed | {"turn": turn, measure: changed[measure] * ratio}))
        for turn, ratio in enumerate(ratios)
    ]


@pytest.mark.parametrize(
    ("measure", "ours", "verdict"),
    [
        ("per_s", (0.9,) * 6, Verdict.LOST),
        ("per_s", (0.9, 0.9, 0.9, 0.9, 0.9, 1.0), Verdict.OPEN),
        ("per_s", (2.0,) * 6, Verdict.KEPT),  # the goal asks for less CPU, or a better p99
        ("p99_ns", (1.06,) * 6, Verdict.LOST),
        ("p99_ns", (0.9,) * 6, Verdict.BETTER),
        ("cpu_ns", (1.03,) * 6, Verdict.LOST),
        ("cpu_ns", (1.01,) * 6, Verdict.KEPT),
        ("cpu_ns", (0.9, 0.9, 0.9, 0.9, 0.9, 1.01), Verdict.KEPT),
        ("cpu_ns", (0.9,) * 6, Verdict.BETTER),
    ],
)
def test_it_is_judged_by_the_interval_against_the_better_rival(
    measure: str, ours: tuple[float, ...], verdict: Verdict
) -> None:
    worse = {"per_s": 0.5}.get(measure, 2.0)
    runs = of("rss", measure, *(1.0,) * 6) + of("rfs", measure, *(worse,) * 6)
    found = judged(LIGHT, runs + of("atfnd", measure, *ours))
    assert found.verdict is verdict
    name = {"per_s": "operations", "p99_ns": "p99", "cpu_ns": "CPU an operation"}[measure]
    rival, ratio = found.ratios[name]
    assert rival == "rss"
    assert ratio.value == pytest.approx(sorted(ours)[3])


@pytest.mark.parametrize(
    ("cell", "cpu_ns", "p99_ns", "verdict"),
    [
        (LIGHT, 500.0, 200e3, Verdict.LOST),  # better in one measure, worse in another
        (FULL, 1000.0, 900e3, Verdict.KEPT),  # where requests wait for their turn
    ],
)
def test_a_cell_is_as_its_worst_measure(
    cell: str, cpu_ns: float, p99_ns: float, verdict: Verdict
) -> None:
    runs = [RUN._replace(contender=name) for name in ("rss", "rfs", "atfnd")]
    runs[-1] = runs[-1]._replace(cpu_ns=cpu_ns, p99_ns=p99_ns)
    assert judged(cell, runs).verdict is verdict
