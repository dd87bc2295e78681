# SPDX-License-Identifier: GPL-2.0-or-later
"""The sentences of explain, for every state a flow can be in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from atfnd.model import Flow, FlowKey, FlowState, Match, NicView, Protocol, Queue
from atfnd.model.reason import Code
from atfnd.serve.explain.explain import (
    Explanation,
    explain,
    explain_absent,
    explain_unsteered,
)
from tests.serve.published import flow, key, lab, rule, topology
from tests.serve.shown import found

OURS = rule(100, Match.of(key(40_000)), 3)


def explained(entry: Flow, nic: NicView | None) -> Explanation:
    return explain(entry, nic, topology(), 1)


def test_steered_and_verified_tells_the_whole_chain() -> None:
    assert explained(flow(40_000), lab(OURS)) == Explanation(
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


def test_steered_but_not_yet_seen() -> None:
    answer = explained(flow(40_000)._replace(rx_cpu=None, rx_queue=None), lab(OURS))
    assert "not yet verified" in answer.verdict
    assert "None of its packets has been observed yet." in answer.chain
    assert answer.advice is None


def test_steered_but_unused_since_the_rule_changed() -> None:
    answer = explained(flow(40_000)._replace(rx_cpu=1, rx_queue=1, used_ns=900), lab(OURS))
    assert "not been used since its filter changed" in answer.verdict


def test_steered_but_packets_still_seen_elsewhere() -> None:
    answer = explained(flow(40_000)._replace(rx_cpu=1, rx_queue=1), lab(OURS))
    assert "still seen on CPU 1" in answer.verdict
    assert answer.advice is not None
    assert "hits" in answer.advice


def test_steered_but_moved_on_after_the_queue_names_rps() -> None:
    answer = explained(flow(40_000)._replace(rx_cpu=1), lab(OURS))
    assert "moves them on after the queue" in answer.verdict
    assert answer.advice is not None
    assert "rps_cpus" in answer.advice


def test_steered_but_the_rule_is_gone() -> None:
    assert "Our filter 100 is not in lab:lab" in explained(flow(40_000), lab()).verdict


def test_steered_but_someone_elses_rule_comes_first() -> None:
    theirs = rule(9, Match(4, Protocol.TCP, None, 0, None, 0, None, 5201), 0)
    answer = explained(flow(40_000), lab(theirs, OURS))
    assert "Filter 9 (tcp from * to *:5201) catches it before our filter 100" in answer.verdict
    assert "lab:lab: filter 9 (not ours, 7 hits) sends it to queue 0." in answer.chain
    assert answer.advice is not None
    assert "delete filter 9" in answer.advice


def test_steered_but_the_rule_names_another_queue() -> None:
    answer = explained(flow(40_000), lab(rule(100, Match.of(key(40_000)), 2)))
    assert "sends it to queue 2, not to queue 3" in answer.verdict


def test_steered_but_the_queue_was_moved_says_how_to_move_it_back() -> None:
    nic = lab(OURS)
    moved = replace(nic, queues=(*nic.queues[:3], replace(nic.queues[3], cpu=0)))
    answer = explained(flow(40_000), moved)
    assert "Queue 3 is delivered on CPU 0, no longer on CPU 3" in answer.verdict
    assert answer.advice == "taskset -pc 3 903 (queue 3)"


def test_a_queue_with_an_interrupt_is_moved_by_its_interrupt() -> None:
    nic = lab(OURS)
    queue = replace(nic.queues[3], cpu=None, irq=45, threaded=False, pid=None)
    answer = explained(flow(40_000), replace(nic, queues=(*nic.queues[:3], queue)))
    assert "delivered on no one CPU" in answer.verdict
    assert answer.advice == "echo 3 > /proc/irq/45/smp_affinity_list (queue 3)"
    assert "Queue 3 is polled by NAPI 8196 after interrupt 45, not confined to one CPU." in (
        answer.chain
    )


def test_what_holds_a_queue_with_an_interrupt() -> None:
    nic = replace(lab(OURS), settings={"threaded": "0"})
    softirq = replace(nic.queues[3], irq=45, threaded=False, pid=None)

    def chain(queue: Queue, **changes: Any) -> Sequence[str]:
        shown = replace(nic, queues=(*nic.queues[:3], queue), **changes)
        return explained(flow(40_000), shown).chain

    holds = "What holds it while flows move in order: "
    assert not [link for link in chain(nic.queues[3]) if holds in link]
    assert f"{holds}a borrowed NAPI thread." in chain(softirq)
    lent = replace(softirq, threaded=True, pid=77, borrowed=True)
    assert f"{holds}a borrowed NAPI thread." in chain(lent)
    polled = "Queue 3 is polled by NAPI 8196 after interrupt 45 in kernel thread 77, "
    assert f"{polled}borrowed for moves, on CPU 3." in chain(lent)
    [why] = [link for link in chain(softirq, borrows=False) if holds in link]
    assert "napi_threads: never" in why
    [why] = [link for link in chain(softirq, manual=frozenset({"threaded"})) if holds in link]
    assert "another program" in why


def test_observed_says_how_to_arm() -> None:
    entry = flow(40_000, FlowState.OBSERVED)._replace(location=None, rx_queue=1, rx_cpu=1)
    answer = explained(entry, replace(lab(), armed=False))
    assert "lab:lab is not armed" in answer.verdict
    assert answer.advice == "atfnctl arm lab:lab"
    assert "lab:lab: no filter catches it; RSS sends it to queue 1." in answer.chain
    assert "Queue 1 is polled by NAPI 8194 in kernel thread 901, on CPU 1." in answer.chain


def test_wanted_without_a_queue_on_that_cpu_says_what_to_do() -> None:
    entry = flow(40_000, FlowState.WANTED)._replace(app_cpu=6, target_cpu=6, target_queue=None)
    answer = explained(entry, lab())
    assert "No queue of lab:lab is delivered on CPU 6" in answer.verdict
    assert answer.advice is not None
    assert "taskset -pc 0-3 4121" in answer.advice
    assert "taskset -pc 6 903 (queue 3)" in answer.advice
    assert "ethtool -L" in answer.advice


def test_wanted_but_refused_repeats_the_reason() -> None:
    answer = explained(
        flow(40_000, FlowState.WANTED)._replace(why=Code.KERNEL("refused: EINVAL")), lab()
    )
    assert "no filter is in place: refused: EINVAL" in answer.verdict
    assert answer.advice is not None
    assert "atfnctl events --nic lab:lab" in answer.advice


def test_overflow_of_the_nic_and_of_the_table() -> None:
    entry = flow(40_000, FlowState.OVERFLOW)._replace(location=None, why=Code.KERNEL("table full"))
    full = lab(OURS, rule(101, Match.of(key(40_001)), 1))
    full = replace(full, caps=replace(full.caps, filter_slots=2))
    assert (
        "filter table is full (2 filters in 2 slots, 1 not ours)" in explained(entry, full).verdict
    )
    for why in (Code.TENANT_SHARE("control group", 10), Code.RULE_SHARE(5)):
        assert explained(entry._replace(why=why), full).verdict.endswith(f"not ours): {why}.")
    answer = explained(entry, lab(OURS))
    assert "no room for it (lab:lab holds 1 filters in 4096 slots): table full" in answer.verdict
    assert answer.advice is not None
    assert "min_rate" in answer.advice


def test_a_rule_somebody_else_changed() -> None:
    why = "another program pointed its filter to queue 2"
    entry = flow(40_000, FlowState.MANUAL)._replace(
        target_queue=None, location=None, why=Code.KERNEL(why)
    )
    answer = explained(entry, lab())
    assert why in answer.verdict
    assert answer.advice == "to have it steered again: atfnctl resume lab:lab"


@pytest.mark.parametrize("state", FlowState)
def test_every_state_on_a_nic_that_is_down_or_gone(state: FlowState) -> None:
    entry = flow(40_000, state)
    assert explained(entry, replace(lab(OURS), up=False)).verdict.startswith("lab:lab is down")
    assert explained(entry, None).verdict.startswith("lab:lab is gone")
    assert explained(entry, lab()).verdict


@pytest.mark.parametrize(
    ("rx_cpu", "words"),
    [
        (3, "the application's own"),
        (2, "the SMT sibling of the application's CPU 3"),
        (1, "under the same last-level cache as the application's CPU 3"),
        (5, "on NUMA node 1, the application's CPU 3 is on node 0"),
        (99, "not the application's CPU 3"),
    ],
)
def test_how_near_the_packets_come(rx_cpu: int, words: str) -> None:
    assert (
        explained(flow(40_000)._replace(rx_cpu=rx_cpu), lab(OURS)).chain[-1].endswith(f"{words}.")
    )


def test_a_flow_that_is_not_in_the_table_goes_by_rss() -> None:
    eth1 = replace(lab(), name="eth1", armed=False)
    answer = explain_absent(key(40_009), [(lab(OURS), 1), (eth1, 2)])
    assert answer.chain == (
        "tcp 10.0.0.2:5201 <- 10.9.0.1:40009 is not in the Flow-to-Core table.",
        "No socket of it receives through a watched interface.",
        "lab:lab: no filter catches it; RSS sends it to queue 1.",
        "Queue 1 is polled by NAPI 8194 in kernel thread 901, on CPU 1.",
        "eth1: no filter catches it; RSS sends it to queue 2.",
        "Queue 2 is polled by NAPI 8195 in kernel thread 902, on CPU 2.",
    )
    assert answer.verdict.startswith("atfnd does not steer it")
    assert answer.advice is not None
    assert "atfnctl arm eth1" in answer.advice


def test_a_flow_that_a_policy_leaves_is_said_so() -> None:
    answer = explain_absent(key(40_009), [(lab(OURS), 1)], "`control` (built-in:12)")
    assert answer.verdict == "Left to RSS on purpose: policy `control` (built-in:12) says leave."
    assert answer.chain[2] == "lab:lab: no filter catches it; RSS sends it to queue 1."


def test_a_flow_without_a_remote_has_no_rss_queue() -> None:
    open_ended = FlowKey(Protocol.UDP, bytes(4), 53, bytes(4), 0)
    answer = explain_absent(open_ended, [(lab(), None)])
    assert answer.chain[2] == "lab:lab: no filter catches it; RSS chooses a queue for each remote."


def test_no_advice_to_give_a_cpu_the_queue_that_was_just_taken_from_it() -> None:
    nic = lab(OURS)
    queues = tuple(replace(q, cpu=1) if q.index == 3 else q for q in nic.queues)
    nic = replace(nic, queues=queues, homes={3: 3}, owners={3: "thread 7"})
    waits = flow(40_000)._replace(
        state=FlowState.WANTED, location=None, target_queue=None, target_cpu=None
    )
    back = "nothing: queue 3 of CPU 3 follows thread 7 to CPU 1, and goes back after"
    assert explained(waits, nic).advice == back
    assert (
        explained(waits._replace(fell_back=Code.KERNEL("no queue is delivered there")), nic).advice
        == back
    )
    steered = flow(40_000)._replace(
        target_cpu=None, fell_back=Code.KERNEL("no queue is delivered there")
    )
    nic = replace(nic, filters=(), queues=queues)
    assert "put a queue" not in str(explained(steered, nic).advice)


RFS = {"rps-sock-flow-entries": "32768", "rps-flow-cnt:1": "32768"}


@pytest.mark.parametrize(
    ("changes", "by"),
    [
        ({}, "RSS"),
        ({"filters": (rule(9, Match.of(key(7)), 1),)}, "filter 9"),
        (
            {"settings": {"rps-sock-flow-entries": "32768", "rps-flow-cnt:1": "32768"}},
            "RFS on queue 1",
        ),
    ],
)
def test_what_delivers_a_flow_that_needs_nothing(changes: dict[str, Any], by: str) -> None:
    answer = explain_unsteered(found(7), replace(lab(), **changes), topology(), 1)
    verdict = f"Delivered by {by} on CPU 1, where its thread runs: nothing to do."
    assert (answer.verdict, answer.advice) == (verdict, None)
