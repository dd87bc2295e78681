# SPDX-License-Identifier: GPL-2.0-or-later
"""The whole daemon holds in runs by chance.

A seed that fails here: `python -m tests.simulation --whole SEED` shrinks it and tells its story.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.run import run
from tests.simulation.schedule import Step, whole

SOAK = os.environ.get("ATFND_FAULTS_SEED")  # in `make soak`: other seeds, and more
FIRST, SEEDS = (int(SOAK), 2000) if SOAK else (0, 80)


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, 10))
def test_everything_holds(first: int) -> None:
    for seed in range(first, first + 10):
        run(whole(seed))


@pytest.mark.parametrize("verb", ["pause", "restore"])
def test_an_order_for_a_nic_that_has_just_gone(verb: str) -> None:
    plan = whole(2)
    began, gone_ns = plan.steps[0], plan.steps[len(plan.steps) // 2].at_ns
    what = (*plan.steps[1:9], Step(gone_ns, "unplug", (1,)), Step(gone_ns, verb, (1,)))
    run(plan._replace(steps=(began, *what)))


@pytest.mark.parametrize("then", [("stop",), ("disk full", "end", "disk has room")])
def test_late_news_of_a_name_comes_before_an_end(then: tuple[str, ...]) -> None:
    plan = whole(2001094)
    at, renamed = next((n, each) for n, each in enumerate(plan.steps) if each.verb == "rename")
    soon = (Step(renamed.at_ns + 1_000_000, verb, (0,)) for verb in then)
    begins = Step(renamed.at_ns + 200_000_000, "begin", ())
    run(plan._replace(steps=(*plan.steps[: at + 1], *soon, begins)))


def test_a_count_that_was_refused_is_tried_again_as_soon_as_one_that_rests() -> None:
    plan = whole(8001915)
    refused = Step(plan.steps[-1].at_ns - 20_000_000_000, "refuse count", (0, 0))
    kept = "begin", "shift", "admin places", "reload", "batch begins", "batch ends"
    steps = sorted((*(each for each in plan.steps if each.verb in kept), refused))
    run(plan._replace(steps=tuple(steps)))
