# SPDX-License-Identifier: GPL-2.0-or-later
"""What is said of the softirq budget that a policy asks for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.diagnose.host_settings import budget_of, examine_host
from atfnd.model import HostStanding, Level, Machine, Queue, Rival
from atfnd.model.softirq_budget import PACKETS, TIME
from tests.values import NIC

__all__: list[str] = []

SET = HostStanding(PACKETS, "set", "2", "2", "300", "")
LEFT = HostStanding(TIME, "left", "8000", None, None, "")
SOFTIRQ = Queue(0, 1, 40, 0, False, None)
THREADED = Queue(0, 1, 40, 0, True, 77)
BORROWED = replace(THREADED, borrowed=True)


def said(each: HostStanding, *queues: Queue, **machine: object) -> list[tuple[Level, str]]:
    nics = [replace(NIC, queues=queues or (SOFTIRQ,))]
    found = examine_host([each, LEFT], Machine(**machine), nics)  # type: ignore[arg-type]
    return [(finding.level, finding.what) for finding in found]


def test_what_nobody_asks_for_is_not_mentioned() -> None:
    assert said(replaced(SET, state="left", wanted=None, original=None)) == []


def replaced(each: HostStanding, **changes: str | None) -> HostStanding:
    return each._replace(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "level"),
    [
        ("wanted", Level.NOTE),
        ("manual", Level.WARNING),
        ("refused", Level.WARNING),
        ("unknown", Level.WARNING),
    ],
)
def test_what_is_not_as_the_policy_asks_is_said_with_the_reason(state: str, level: Level) -> None:
    now = None if state == "unknown" else "300"
    [(found, what)] = said(SET._replace(state=state, now=now, why="because"))
    assert found is level
    there = now or "not there"
    assert what == f"{PACKETS} is {there} and should be 2: because"


def test_one_that_is_kept_though_nobody_asks_is_said() -> None:
    [(level, what)] = said(SET._replace(wanted=None, why="it goes back later"))
    assert (level, what) == (Level.NOTE, f"{PACKETS} is 2: it goes back later")


def test_it_has_no_effect_where_threads_poll_every_queue() -> None:
    as_asked = (Level.OK, f"{PACKETS} is 2, as the policy asks")
    assert said(SET) == said(SET, SOFTIRQ, THREADED) == said(SET, BORROWED) == [as_asked]
    *first, (level, what) = said(SET, THREADED)
    assert first == [as_asked]
    assert level is Level.NOTE
    assert "no effect on the queues that atfnd serves" in what


def test_bpftune_fights_over_it_only_if_it_is_asked_for() -> None:
    rivals = (Rival("bpftune", 9), Rival("numad", 8))
    *_, (level, what) = said(SET, rivals=rivals)
    assert level is Level.WARNING
    assert what.startswith("bpftune (pid 9) changes the softirq budget")
    assert said(SET._replace(state="left", wanted=None, original=None), rivals=rivals) == []


def test_a_flow_is_explained_by_what_ends_a_pass_over_its_queue() -> None:
    both = [SET, HostStanding(TIME, "set", "20000", "20000", "8000", "")]
    ends = "The softirq that polls its queue ends a pass after 2 packets"
    assert budget_of(SOFTIRQ, both) == f"{ends} or 20000 us (policy)."
    assert budget_of(BORROWED, [SET, LEFT]) == f"{ends} (policy)."
    assert "does not bound it" in (budget_of(THREADED, both) or "")
    for state in ("wanted", "manual"):
        assert budget_of(SOFTIRQ, [SET._replace(state=state), LEFT]) is None
    assert budget_of(SOFTIRQ, [SET._replace(wanted=None)]) is None
