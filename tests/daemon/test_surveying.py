# SPDX-License-Identifier: GPL-2.0-or-later
"""`Surveying` without a daemon: when it counts, who gets which answer, what it asks the parts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from atfnd.daemon import surveying
from atfnd.daemon.session import Sessions
from atfnd.daemon.surveying import Surveying, pinned_by
from atfnd.model import (
    Action,
    ActionKind,
    ArmingVerdict,
    Gain,
    Planned,
    Survey,
    SurveyedReads,
)
from atfnd.model.reason import Code
from tests.diagnose.machines import topology
from tests.values import NIC, key

OFF = replace(NIC, armed=False)
FILTER = Action(ActionKind.INSERT, "nic", key(1), None, None, 2, Code.KERNEL("why"), "rest")
QUEUE = replace(FILTER, kind=ActionKind.QUEUE_CPU)
READS = SurveyedReads("nic", os.getpid(), 7, "app", 1, 0, False, 100, 20, 0, None, 8)


class Bed:
    """What a survey asks; `rows` are what it finds."""

    def __init__(self, *rows: SurveyedReads, shared: frozenset[int] = frozenset()) -> None:
        self.rows, self.sees, self.did = list(rows), True, list[str]()
        self.plan_error: Exception | None = None
        part: Any = SimpleNamespace
        observer = part(name="blind", begin_survey=self._begin, end_survey=self._end)
        sessions: Sessions = {name: part(view=replace(OFF, name=name)) for name in ("nic", "other")}
        self.begun = asyncio.Event()
        self.surveying = Surveying(
            observer,
            sessions,
            part(known=topology),
            self._plan,
            lambda nic: shared if nic == "nic" else frozenset(),
        )

    def _begin(self) -> bool:
        self.did.append("begin")
        self.begun.set()
        return self.sees

    def _end(self) -> Iterator[Callable[[], Survey]]:
        self.did.append("end")
        parts = [*(Survey((row,), 0) for row in self.rows), Survey((), 3)]
        return (partial(Survey.of, [part]) for part in parts)

    async def _plan(self, nic: str) -> Sequence[Planned]:
        if self.plan_error is not None:
            raise self.plan_error
        return [Planned(each, None, (), None) for each in (FILTER, FILTER, QUEUE)]


def asked(of: Coroutine[Any, Any, Gain]) -> Gain:
    return asyncio.run(of)


def test_who_goes_away_does_not_end_it_for_others() -> None:
    bed = Bed()

    async def one_leaves() -> Gain:
        first = asyncio.ensure_future(bed.surveying.gain(None, 0.05))
        second = asyncio.ensure_future(bed.surveying.gain(None, 60))
        await bed.begun.wait()
        first.cancel()
        return await second

    assert asyncio.run(one_leaves()).seconds >= 0.05
    assert bed.did == ["begin", "end"]


@pytest.mark.parametrize("error", [KeyError("nic"), OSError()])
def test_of_a_nic_that_goes_meanwhile_no_plan_is_known(error: Exception) -> None:
    bed = Bed(READS)
    bed.plan_error = error
    assert [nic.would_do for nic in asked(bed.surveying.gain(None, 0)).nics] == [None, None]


def test_it_asks_of_each_nic_which_listeners_are_shared() -> None:
    rows = [READS._replace(tid=tid, accepted=10, port=80, allowed=1) for tid in (1, 2)]
    for shared, verdict in (
        (frozenset({443}), ArmingVerdict.ARM),
        (frozenset({80}), ArmingVerdict.DO_NOT_ARM),
    ):
        bed = Bed(*rows, shared=shared)
        assert asked(bed.surveying.gain("nic", 0)).nics[0].verdict is verdict


@pytest.mark.parametrize(
    ("affinity", "cpuset", "by"),
    [
        ({0, 1}, None, None),
        ({0, 1}, {0}, None),
        ({0}, {0, 1}, "affinity"),
        ({0}, {0}, "cpuset"),
        ({0}, None, "affinity"),
        (None, {0}, None),
    ],
)
def test_what_pins_a_thread(
    monkeypatch: pytest.MonkeyPatch, affinity: set[int] | None, cpuset: set[int] | None, by: str
) -> None:
    def of(tid: int) -> set[int]:
        if affinity is None:
            raise ProcessLookupError(tid)
        return affinity

    monkeypatch.setattr(os, "sched_getaffinity", of)
    monkeypatch.setattr(surveying, "cpuset_of", lambda tid: cpuset)
    assert pinned_by(7) == by
