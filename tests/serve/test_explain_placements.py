# SPDX-License-Identifier: GPL-2.0-or-later
"""What `explain` and `placed` say of flows that are not to arrive on their application's core."""

from __future__ import annotations

import pytest

from atfnd.model import FlowState, Match
from atfnd.model.reason import Code, Why
from atfnd.serve.api.views import flow_view, placed
from atfnd.serve.explain.explain import Explanation, explain
from tests.serve.published import flow, key, lab, rule, topology

__all__: list[str] = []

OURS = rule(100, Match.of(key(40_000)), 3)
LLC = flow(40_000)._replace(  # its thread is on CPU 1, its packets under the same cache
    app_cpu=1, why=Code.KERNEL("its thread runs on CPU 1; near llc: queue 3 is delivered on CPU 3")
)
BACK = "near smt: no queue is delivered on the other thread of its core; on its own CPU instead"
LEFT = "near smt: no queue is delivered on the other thread of its core; left to RSS"


def explained(**changes: object) -> Explanation:
    return explain(LLC._replace(**changes), lab(OURS), topology(), 1)  # type: ignore[arg-type]


def test_on_another_core_is_right_where_the_policy_asks_for_it() -> None:
    answer = explained()
    assert answer.verdict == "Steered and verified: its packets arrive on CPU 3."
    assert "under the same last-level cache as the application's CPU 1" in answer.chain[-1]
    assert (placed(LLC), placed(LLC._replace(rx_cpu=1))) == (True, False)


def test_a_fallback_is_not_what_was_asked_for() -> None:
    answer = explained(fell_back=BACK)
    assert answer.verdict == f"Its packets arrive on CPU 3, a fallback: {BACK}."
    assert answer.advice == "put a queue on such a CPU, or change its rule's placement"
    view = flow_view(LLC._replace(fell_back=Code.KERNEL(BACK)), 0)
    assert (view["placed"], view["fell_back"]) == (False, BACK)


def test_a_rule_stays_where_nothing_better_can_be_had() -> None:
    answer = explained(target_cpu=None, fell_back=LEFT.replace("to RSS", "on queue 3"))
    assert answer.verdict == (
        "Its filter stays and leads it to queue 3, delivered on CPU 3: near smt: no queue is "
        "delivered on the other thread of its core; left on queue 3."
    )


def test_nor_is_a_flow_that_is_left_to_rss() -> None:
    left = LLC._replace(
        state=FlowState.WANTED, target_queue=None, target_cpu=None, fell_back=Code.KERNEL(LEFT)
    )
    answer = explain(left, lab(), topology(), 1)
    assert answer.verdict == f"Not steered: {LEFT}."
    assert placed(left) is False
    assert placed(left._replace(rx_cpu=None)) is None


@pytest.mark.parametrize(
    ("left", "advised"),
    [(Code.LEFT_FULL(1), True), (Code.LEFT_WANDERS("its thread wanders over CPUs 0-3"), False)],
)
def test_while_its_core_is_full_it_says_what_helps(left: Why, advised: bool) -> None:
    waits = LLC._replace(state=FlowState.WANTED, location=None, left=left)
    answer = explain(waits, lab(), topology(), 1)
    assert answer.verdict == f"Left to RSS: {str(left).removesuffix(': left to RSS')}."
    if not advised:
        assert answer.advice is None
        return
    assert answer.advice is not None
    assert answer.advice.startswith("nothing: it is steered again when that CPU has time")
    assert "`near: llc`" in answer.advice
    assert answer.advice.endswith("atfnctl events --kind full")


def test_of_auto_it_says_what_was_measured() -> None:
    remark = "auto: llc since 12 s, 1.40 x the bytes a CPU-second and 1.10 x the bytes a second."
    answer = explain(LLC, lab(OURS), topology(), 1, (remark,))
    assert remark in answer.chain
    assert all(not link.startswith("auto") for link in explained().chain)
