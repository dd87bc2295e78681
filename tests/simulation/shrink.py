# SPDX-License-Identifier: GPL-2.0-or-later
"""From a plan that fails to a shorter one that fails in the same way, and its story."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.simulation.run import Failure, run
from tests.simulation.schedule import Plan

__all__ = ["shrunk", "story_of"]

LINES = 30
TRIES = 400


def shrunk(failure: Failure, tries: int = TRIES, again: Callable[[Plan], object] = run) -> Failure:
    """The same invariant broken by as few steps as can be found in so many runs."""
    best, left = failure, tries
    found = True
    while found and left > 0:
        found = False
        for plan in _smaller(best.plan):
            left -= 1
            if (failed := _fails(plan, again)) is not None and failed.what == failure.what:
                best, found = failed, True
                break
            if left <= 0:
                break
    return best


def _fails(plan: Plan, again: Callable[[Plan], object]) -> Failure | None:
    try:
        again(plan)
    except Failure as failed:
        return failed
    return None


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Fewer steps, the largest cuts first; then a smaller world."""
    steps, size = plan.steps, len(plan.steps)
    cut = size // 2
    while cut >= 1:
        for at in range(size - cut, -1, -cut):
            yield plan._replace(steps=(*steps[:at], *steps[at + cut :]))
        cut //= 2
    if len(plan.drivers) > 1:
        for driver in plan.drivers:
            yield plan._replace(drivers=(driver,))
    if plan.flows > 1:
        yield plan._replace(flows=plan.flows - 1)


def story_of(failure: Failure) -> str:
    """At most LINES lines: the world, then what happened, the end of it if it is long."""
    head = str(failure.plan).partition("\n")[0]
    story = failure.story
    if len(story) > LINES - 2:
        story = [f"... {len(story) - LINES + 3} lines before", *story[3 - LINES :]]
    return "\n".join(
        [f"{failure.what}: {failure.how}"[:160], head, *(each[:160] for each in story)]
    )
