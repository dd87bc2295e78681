# SPDX-License-Identifier: GPL-2.0-or-later
"""The sentences of explain: for every state a flow can be in, by filters and without them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from atfnd.model import FlowKey, FlowState, Match, NicView, Protocol, SteeringMethod
from atfnd.model.reason import Code, Why
from atfnd.serve.api.nic_views import match_text
from atfnd.serve.api.views import flow_view, placed
from atfnd.serve.explain.chain import catching_filter, covers
from atfnd.serve.explain.explain import (
    Explanation,
    explain,
    explain_absent,
    explain_unsteered,
)
from tests.serve.published import topology
from tests.serve.shown import flow, found, key, lab, rule

OURS = rule(100, Match.of(key(40_000)), 3)
THEIRS = rule(9, Match(4, Protocol.TCP, None, 0, None, 0, None, 5201), 0)
LAB = lab(OURS)
OPEN = FlowKey(Protocol.UDP, bytes(4), 53, bytes(4), 0)  # to any remote
NOTHING_IN_PLACE: dict[str, Any] = {"location": None, "target_queue": None, "target_cpu": None}


def explained(
    nic: NicView | None = LAB, remarks: Sequence[str] = (), **changes: Any
) -> Explanation:
    """Of the flow that rule 100 steers, with these changes."""
    entry = flow(40_000)._replace(**changes)
    return explain(entry, nic, topology(), 1, tuple(remarks))


def with_queue_3(nic: NicView = LAB, **changes: Any) -> NicView:
    return replace(nic, queues=(*nic.queues[:3], replace(nic.queues[3], **changes)))


def test_steered_and_verified_tells_the_whole_chain() -> None:
    assert explained() == Explanation(
        (
            "tcp 10.0.0.2:5201 <- 10.9.0.1:40000 is used on CPU 3 by thread 4121 (iperf3) of "
            "process 4120.",
            "Policy `bulk` wants its packets on CPU 3, through queue 3: same core as the "
            "application.",
            "lab:lab: filter 100 (ours, 7 hits) sends it to queue 3.",
            "Queue 3 is polled by NAPI 8196 in kernel thread 903, on CPU 3.",
            "Its packets were last seen from queue 3 on CPU 3: the application's own.",
        ),
        "Steered and verified: its packets arrive on CPU 3.",
        None,
    )


@pytest.mark.parametrize(
    ("changes", "nic", "verdict", "advice"),
    [
        ({"rx_cpu": None, "rx_queue": None}, LAB, "not yet verified", None),
        ({"rx_cpu": 1, "used_ns": 900}, LAB, "not been used since its filter changed", ""),
        ({"rx_cpu": 1, "rx_queue": 1}, LAB, "still seen on CPU 1", "hits"),
        ({"rx_cpu": 1}, LAB, "moves them on after the queue", "rps_cpus"),
        ({}, lab(), "Our filter 100 is not in lab:lab", ""),
        ({}, lab(THEIRS, OURS),
         "Filter 9 (tcp from * to *:5201) catches it before our filter 100", "delete filter 9"),
        ({}, lab(rule(100, Match.of(key(40_000)), 2)), "sends it to queue 2, not to queue 3", ""),
        ({}, with_queue_3(cpu=0), "Queue 3 is delivered on CPU 0, no longer on CPU 3",
         "taskset -pc 3 903 (queue 3)"),
        ({}, with_queue_3(cpu=None, irq=45, threaded=False, pid=None), "delivered on no one CPU",
         "echo 3 > /proc/irq/45/smp_affinity_list (queue 3)"),
        ({"state": FlowState.OBSERVED, "location": None, "rx_cpu": 1}, replace(lab(), armed=False),
         "lab:lab is not armed", "atfnctl arm lab:lab"),
        ({"state": FlowState.WANTED, "why": Code.KERNEL("refused: EINVAL")}, lab(),
         "no filter is in place: refused: EINVAL", "atfnctl events --nic lab:lab"),
        ({"state": FlowState.MANUAL, "why": Code.KERNEL("another program did"),
          **NOTHING_IN_PLACE}, lab(), "another program did", "atfnctl resume lab:lab"),
        ({"state": FlowState.OVERFLOW, "why": Code.KERNEL("table full")}, LAB,
         "no room for it (lab:lab holds 1 filters in 4096 slots): table full", "min_rate"),
        ({"state": FlowState.WANTED, "why": Code.KERNEL("its filters take no IPv4 TCP flow"),
          **NOTHING_IN_PLACE},
         replace(lab(), caps=replace(lab().caps, flow_types=frozenset())),
         "Not steered: its filters take no IPv4 TCP flow. RSS delivers it.", None),
    ],
)  # fmt: skip
def test_what_is_otherwise_is_said_with_what_helps(
    changes: dict[str, Any], nic: NicView, verdict: str, advice: str | None
) -> None:
    answer = explained(nic, **changes)
    assert verdict in answer.verdict
    assert (answer.advice is None) if advice is None else (advice in (answer.advice or ""))


def test_links_of_the_chain_that_differ() -> None:
    entry: dict[str, Any] = {
        "state": FlowState.OBSERVED,
        "location": None,
        "rx_queue": 1,
        "rx_cpu": 1,
    }
    chain = explained(lab(), **entry).chain
    assert "lab:lab: no filter catches it; RSS sends it to queue 1." in chain
    assert "Queue 1 is polled by NAPI 8194 in kernel thread 901, on CPU 1." in chain
    theirs = explained(lab(THEIRS, OURS)).chain
    assert "lab:lab: filter 9 (not ours, 7 hits) sends it to queue 0." in theirs
    interrupted = explained(with_queue_3(cpu=None, irq=45, threaded=False, pid=None)).chain
    polled = "Queue 3 is polled by NAPI 8196 after interrupt 45, not confined to one CPU."
    assert polled in interrupted
    assert "None of its packets has been observed yet." in explained(rx_cpu=None).chain
    assert "auto: llc." in explained(remarks=["auto: llc."]).chain


def test_what_holds_a_queue_with_an_interrupt() -> None:
    nic = replace(LAB, settings={"threaded": "0"})
    softirq = replace(nic.queues[3], irq=45, threaded=False, pid=None)
    lent = replace(softirq, threaded=True, pid=77, borrowed=True)
    holds = "What holds it while flows move in order: "
    for queue, changes, said in (
        (softirq, {}, f"{holds}a borrowed NAPI thread."),
        (lent, {}, "after interrupt 45 in kernel thread 77, borrowed for moves, on CPU 3."),
        (softirq, {"borrows": False}, "napi_threads: never"),
        (softirq, {"manual": frozenset({"threaded"})}, "another program"),
    ):
        changed: Any = {"queues": (*nic.queues[:3], queue), **changes}
        assert said in "\n".join(explained(replace(nic, **changed)).chain)
    assert holds not in "\n".join(explained(nic).chain)


def test_wanted_without_a_queue_on_that_cpu_says_what_to_do() -> None:
    answer = explained(lab(), state=FlowState.WANTED, app_cpu=6, target_cpu=6, target_queue=None)
    assert "No queue of lab:lab is delivered on CPU 6" in answer.verdict
    ways = re.compile(r"taskset -pc 0-3 4121.*taskset -pc 6 903 \(queue 3\).*ethtool -L")
    assert ways.search(answer.advice or "")


def test_where_the_table_is_full_whose_filters_are_in_it() -> None:
    entry: dict[str, Any] = {"state": FlowState.OVERFLOW, "location": None}
    full = lab(OURS, rule(101, Match.of(key(40_001)), 1))
    full = replace(full, caps=replace(full.caps, filter_slots=2))
    said = "filter table is full (2 filters in 2 slots, 1 not ours)"
    assert said in explained(full, why=Code.KERNEL("table full"), **entry).verdict
    for why in (Code.TENANT_SHARE("control group", 10), Code.RULE_SHARE(5)):
        assert explained(full, why=why, **entry).verdict.endswith(f"not ours): {why}.")


@pytest.mark.parametrize("state", FlowState)
def test_every_state_on_a_nic_that_is_down_or_gone(state: FlowState) -> None:
    assert explained(replace(LAB, up=False), state=state).verdict.startswith("lab:lab is down")
    assert explained(None, state=state).verdict.startswith("lab:lab is gone")
    assert explained(lab(), state=state).verdict


def test_how_near_the_packets_come() -> None:
    for rx_cpu, words in (
        (2, "the SMT sibling of the application's CPU 3"),
        (1, "under the same last-level cache as the application's CPU 3"),
        (5, "on NUMA node 1, the application's CPU 3 is on node 0"),
        (99, "not the application's CPU 3"),
    ):
        assert explained(rx_cpu=rx_cpu).chain[-1].endswith(f"{words}.")


def test_no_advice_to_give_a_cpu_the_queue_that_was_just_taken_from_it() -> None:
    nic = replace(with_queue_3(cpu=1), homes={3: 3}, owners={3: "thread 7"})
    back = "nothing: queue 3 of CPU 3 follows thread 7 to CPU 1, and goes back after"
    why = Code.KERNEL("no queue is delivered there")
    for fell_back in (None, why):
        waits = explained(nic, state=FlowState.WANTED, fell_back=fell_back, **NOTHING_IN_PLACE)
        assert waits.advice == back
    steered = explained(replace(nic, filters=()), target_cpu=None, fell_back=why)
    assert "put a queue" not in str(steered.advice)


# Flows without an entry


def test_a_flow_that_is_not_in_the_table_goes_by_rss() -> None:
    nics = [(LAB, 1), (replace(lab(), name="eth1", armed=False), 2)]
    answer = explain_absent(key(40_009), nics)
    assert answer.chain == (
        "tcp 10.0.0.2:5201 <- 10.9.0.1:40009 is not in the Flow-to-Core table.",
        "No socket of it receives through a watched interface.",
        "lab:lab: no filter catches it; RSS sends it to queue 1.",
        "Queue 1 is polled by NAPI 8194 in kernel thread 901, on CPU 1.",
        "eth1: no filter catches it; RSS sends it to queue 2.",
        "Queue 2 is polled by NAPI 8195 in kernel thread 902, on CPU 2.",
    )
    assert answer.verdict.startswith("atfnd does not steer it")
    assert "atfnctl arm eth1" in (answer.advice or "")
    left = explain_absent(key(40_009), nics, "`control` (built-in:12)")
    assert left.verdict == "Left to RSS on purpose: policy `control` (built-in:12) says leave."
    [_, _, by_rss, *_] = explain_absent(OPEN, [(lab(), None)]).chain
    assert by_rss == "lab:lab: no filter catches it; RSS chooses a queue for each remote."


RFS = {"rps-sock-flow-entries": "32768", "rps-flow-cnt:1": "32768"}


@pytest.mark.parametrize(
    ("changes", "by"),
    [
        ({}, "RSS"),
        ({"filters": (rule(9, Match.of(key(7)), 1),)}, "filter 9"),
        ({"settings": RFS}, "RFS on queue 1"),
    ],
)
def test_what_delivers_a_flow_that_needs_nothing(changes: dict[str, Any], by: str) -> None:
    answer = explain_unsteered(found(7), replace(lab(), **changes), topology(), 1)
    verdict = f"Delivered by {by} on CPU 1, where its thread runs: nothing to do."
    assert (answer.verdict, answer.advice) == (verdict, None)


# Flows that no filter serves

BY_ENTRIES = "this NIC has no 5-tuple filters; flows are steered by their entries"
ENTRY = "its entry 37 of the indirection table points to queue 3, on its core"
SHARED = "shares entry 37 with 3 flows on CPU 1, not clearly less busy"
HANDED_ON = "RFS hands its packets on to CPU 3, where its thread calls: has one receive queue"
FILTERLESS = replace(
    lab(owned=frozenset()), method=SteeringMethod.RSS, method_why=Code.KERNEL(BY_ENTRIES)
)


@pytest.mark.parametrize(
    ("state", "why", "rx_cpu", "verdict", "advice"),
    [
        (FlowState.RSS, ENTRY, 3,
         f"Steered and verified: {ENTRY}; its packets arrive on CPU 3.", None),
        (FlowState.RSS, ENTRY, None, "not yet verified", ""),
        (FlowState.RSS, ENTRY, 1, "still seen on CPU 1", "rx-flow-hash"),
        (FlowState.SHARED, SHARED, 1,
         f"Not on its core: {SHARED}. An entry points to one queue.", " "),
        (FlowState.RFS, HANDED_ON, 3, f"Served in software: {HANDED_ON}.", ""),
        (FlowState.RFS, HANDED_ON, 1, "processed on CPU 1, not 3", " "),
    ],
)  # fmt: skip
def test_a_flow_that_is_served_by_other_means(
    state: FlowState, why: str, rx_cpu: int | None, verdict: str, advice: str | None
) -> None:
    answer = explained(FILTERLESS, state=state, location=None, why=Code.KERNEL(why), rx_cpu=rx_cpu)
    assert f"lab:lab: {BY_ENTRIES}." in answer.chain
    assert verdict in answer.verdict
    assert (answer.advice is None) if advice is None else (advice in (answer.advice or ""))


def test_a_flow_without_an_entry_where_other_means_serve_it() -> None:
    assert f"lab:lab: {BY_ENTRIES}." in explain_absent(key(40_000), [(FILTERLESS, 3)]).chain
    for_every = "It does so for every flow, without an entry"
    for armed in (True, False):
        nic = replace(FILTERLESS, method=SteeringMethod.RFS, armed=armed)
        verdict = explain_absent(key(40_000), [(nic, None)]).verdict
        assert (for_every in verdict) is armed
        assert verdict.startswith("atfnd does not steer it") is not armed


# Flows that are not to arrive on their application's core

NEAR: dict[str, Any] = {  # its thread is on CPU 1, its packets under the same cache
    "app_cpu": 1,
    "why": Code.KERNEL("its thread runs on CPU 1; near llc: queue 3 is delivered on CPU 3"),
}
NEAR_FLOW = flow(40_000)._replace(**NEAR)
BACK = "near smt: no queue is delivered on the other thread of its core; on its own CPU instead"


def test_on_another_core_is_right_where_the_policy_asks_for_it() -> None:
    answer = explained(**NEAR)
    assert answer.verdict == "Steered and verified: its packets arrive on CPU 3."
    assert "under the same last-level cache as the application's CPU 1" in answer.chain[-1]
    assert (placed(NEAR_FLOW), placed(NEAR_FLOW._replace(rx_cpu=1))) == (True, False)


def test_a_fallback_is_not_what_was_asked_for() -> None:
    answer = explained(fell_back=BACK, **NEAR)
    assert answer.verdict == f"Its packets arrive on CPU 3, a fallback: {BACK}."
    assert answer.advice == "put a queue on such a CPU, or change its rule's placement"
    view = flow_view(NEAR_FLOW._replace(fell_back=Code.KERNEL(BACK)), 0)
    assert (view["placed"], view["fell_back"]) == (False, BACK)
    stays = explained(target_cpu=None, fell_back=BACK, **NEAR)
    verdict = f"Its filter stays and leads it to queue 3, delivered on CPU 3: {BACK}."
    assert stays.verdict == verdict
    left = {**NEAR, **NOTHING_IN_PLACE, "location": 100, "fell_back": Code.KERNEL(BACK)}
    assert explained(lab(), state=FlowState.WANTED, **left).verdict == f"Not steered: {BACK}."


@pytest.mark.parametrize(
    ("left", "advised"),
    [(Code.LEFT_FULL(1), True), (Code.LEFT_WANDERS("its thread wanders over CPUs 0-3"), False)],
)
def test_while_its_core_is_full_it_says_what_helps(left: Why, advised: bool) -> None:
    answer = explained(lab(), state=FlowState.WANTED, location=None, left=left, **NEAR)
    assert answer.verdict == f"Left to RSS: {str(left).removesuffix(': left to RSS')}."
    advice = answer.advice or ""
    assert advice.startswith("nothing: it is steered again when that CPU has time") is advised
    assert ("`near: llc`" in advice) is advised
    assert advice.endswith("atfnctl events --kind full") is advised


# Which filter catches a flow, and how it is written


def test_filters_are_tried_in_location_order() -> None:
    late, early = rule(50, Match.of(key(1)), 1), rule(2, Match.of(key(1)), 2)
    assert catching_filter([late, early], key(1)) == early
    assert catching_filter([late, early], key(2)) is None


@pytest.mark.parametrize(
    ("match", "of", "caught"),
    [
        (Match(4, None, None, 0, None, 0, None, None), key(40_000), True),
        (Match(6, None, None, 0, None, 0, None, None), key(40_000), False),
        (Match(4, Protocol.UDP, None, 0, None, 0, None, None), key(40_000), False),
        (Match(4, None, bytes([10, 8, 0, 0]), 16, None, 0, None, None), key(40_000), False),
        (Match(4, None, bytes([10, 8, 0, 0]), 15, None, 0, None, None), key(40_000), True),
        (Match(4, None, None, 0, bytes([10, 0, 0, 2]), 32, 40_000, 5201), key(40_000), True),
        (Match(4, None, None, 0, None, 0, None, 40_000), key(40_000), False),
        (Match(4, None, bytes([10, 9, 0, 0]), 16, None, 0, None, 53), OPEN, False),
        (Match.of(OPEN), OPEN, True),
    ],
)
def test_what_a_filter_catches(match: Match, of: FlowKey, caught: bool) -> None:
    assert covers(match, of) is caught


def test_how_a_match_is_written() -> None:
    v6 = Match(6, None, b"\x20\x01" + bytes(14), 32, None, 0, None, 53)
    assert match_text(v6) == "ipv6 any from 2001::/32 to *:53"
