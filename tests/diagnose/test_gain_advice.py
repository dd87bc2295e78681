# SPDX-License-Identifier: GPL-2.0-or-later
"""The rule "when not to arm", case by case. Pure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.diagnose.gain import Around, summarised
from atfnd.model import (
    ArmingVerdict,
    Cpu,
    NicView,
    SteeringMethod,
    Survey,
    SurveyedReads,
    Topology,
)
from atfnd.model.reason import Code
from tests.diagnose.machines import topology
from tests.serve.shown import lab

__all__: list[str] = []

NIC = replace(lab(), armed=False)
TWO = Topology(tuple(Cpu(n, True, None, 0, n, (n,), (0, 1)) for n in range(2)))
PINNED, FREE = 1, 8
ARM, LEAVE, UNKNOWN = ArmingVerdict.ARM, ArmingVerdict.DO_NOT_ARM, ArmingVerdict.UNKNOWN


def reads(tid: int, allowed: int, count: int, read: int = 1, rx: int | None = 0) -> SurveyedReads:
    return SurveyedReads("lab:lab", tid, tid, "app", read, rx, False, count, 100, 0, None, allowed)


def advised(
    *rows: SurveyedReads,
    nic: NicView = NIC,
    cpus: Topology | None = None,
    busy: dict[int, float] | None = None,
    shared: frozenset[int] = frozenset(),
) -> tuple[ArmingVerdict, str]:
    around = Around(cpus or topology(), busy or {}, {"lab:lab": shared}, {}, lambda tid: None)
    [found] = summarised(Survey(rows, 0), 10.0, [nic], around).nics
    assert found.would_do is None
    return found.verdict, found.advice


def test_pinned_threads_off_their_packets_gain() -> None:
    verdict, advice = advised(reads(1, PINNED, 60), reads(2, PINNED, 40, read=0))
    assert verdict is ARM
    assert "60% of the bytes" in advice
    assert "at most" in advice


def test_so_do_threads_that_stay_where_there_are_many_cpus() -> None:
    assert advised(reads(1, FREE, 60), busy=dict.fromkeys(range(8), 0.1))[0] is ARM


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "no data was read in 10 s"),
        ([reads(1, PINNED, 9, rx=None)], "only unconnected UDP"),
    ],
)
def test_where_nothing_is_known_nothing_is_advised(rows: list[SurveyedReads], words: str) -> None:
    verdict, advice = advised(*rows)
    assert verdict is UNKNOWN
    assert words in advice


def test_of_an_armed_nic_the_figures_are_those_with_steering() -> None:
    verdict, advice = advised(reads(1, PINNED, 9), nic=lab())
    assert verdict is ArmingVerdict.ARMED
    assert "with steering" in advice


@pytest.mark.parametrize(
    ("method", "words"),
    [(SteeringMethod.NONE, "its table is stuck"), (SteeringMethod.RFS, "needs no daemon")],
)
def test_a_nic_that_cannot_be_steered(method: SteeringMethod, words: str) -> None:
    nic = replace(NIC, method=method, method_why=Code.KERNEL("its table is stuck"))
    verdict, advice = advised(reads(1, PINNED, 60), nic=nic)
    assert verdict is LEAVE
    assert words in advice


def test_what_arrives_right_cannot_gain() -> None:
    verdict, advice = advised(reads(1, PINNED, 96, read=0), reads(2, PINNED, 4))
    assert (verdict, advice) == (
        LEAVE, "Do not arm: 96% of the bytes are read where they arrive already."
    )  # fmt: skip
    assert advised(reads(1, PINNED, 95, read=0), reads(2, PINNED, 5))[0] is ARM


def test_wanderers_are_left_to_rss() -> None:
    rows = [reads(1, FREE, 50, read=cpu, rx=0) for cpu in (1, 2, 3)]
    verdict, advice = advised(*rows)
    assert verdict is LEAVE
    assert "threads that wander read 100%" in advice
    assert advised(*rows, reads(2, PINNED, 50))[0] is ARM


def test_what_the_policy_leaves_alone() -> None:
    verdict, advice = advised(
        reads(1, PINNED, 60)._replace(left=True), reads(2, PINNED, 40, read=0)
    )
    assert verdict is LEAVE
    assert "the policy leaves alone 60%" in advice


def test_threads_that_were_hardly_seen() -> None:
    verdict, advice = advised(reads(1, FREE, 60)._replace(calls=3), reads(2, PINNED, 40, read=0))
    assert verdict is UNKNOWN
    assert "ask for longer" in advice


def test_a_core_that_is_full_and_would_get_the_packets_too() -> None:
    rows = [reads(1, PINNED, 60), reads(2, PINNED, 40, read=2)]
    verdict, advice = advised(*rows, busy={1: 0.97, 2: 0.2})
    assert verdict is LEAVE
    assert "CPU 1 is full (97%)" in advice
    assert advised(*rows, busy={1: 0.5, 2: 0.97})[0] is ARM  # the lesser part would come to CPU 2
    assert advised(*rows)[0] is ARM  # nobody knows how busy they are
    spread = [reads(1, PINNED, 50), reads(2, PINNED, 30, read=2), reads(3, PINNED, 20, read=3)]
    assert advised(*spread, busy={1: 0.97})[0] is ARM  # half of it would come to others


def test_unpinned_threads_on_few_cpus_at_low_load() -> None:
    row = reads(1, FREE, 60)._replace(allowed=2)
    light, heavy = {0: 0.3, 1: 0.3}, {0: 0.8, 1: 0.8}
    verdict, advice = advised(row, cpus=TWO, busy=light)
    assert verdict is LEAVE
    assert "not pinned, on 2 CPUs under low load (30%)" in advice
    assert advised(row, cpus=TWO, busy=heavy)[0] is ARM
    assert advised(row._replace(allowed=1), cpus=TWO, busy=light)[0] is ARM
    assert advised(row, reads(2, PINNED, 61), cpus=TWO, busy=light)[0] is ARM


def test_short_connections_of_a_listener_that_threads_share() -> None:
    def worker(tid: int, accepted: int) -> SurveyedReads:
        return reads(tid, PINNED, 50, read=tid)._replace(accepted=accepted, port=80)

    short, shared = [worker(1, 20), worker(2, 20)], frozenset({80})
    verdict, advice = advised(*short, shared=shared)
    assert verdict is LEAVE
    assert "listener of port 80" in advice
    assert advised(*short)[0] is ARM  # each has a listener of its own
    assert advised(worker(1, 2), worker(2, 2), shared=shared)[0] is ARM  # they last
    assert advised(*short, reads(3, PINNED, 101, read=3), shared=shared)[0] is ARM
