# SPDX-License-Identifier: GPL-2.0-or-later
"""The sentences of explain for flows that no filter serves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from atfnd.model import Flow, FlowState, SteeringMethod
from atfnd.model.reason import Code
from atfnd.serve.explain.explain import Explanation, explain, explain_absent
from tests.serve.published import flow, key, lab, topology

WHY = "this NIC has no 5-tuple filters; flows are steered by their entries"
NIC = replace(lab(owned=frozenset()), method=SteeringMethod.RSS, method_why=Code.KERNEL(WHY))
ENTRY = "its entry 37 of the indirection table points to queue 3, on its core"


def served(state: FlowState, why: str, **changes: Any) -> Flow:
    return flow(40_000, state)._replace(location=None, why=Code.KERNEL(why), **changes)


def explained(entry: Flow) -> Explanation:
    return explain(entry, NIC, topology(), 3)


def test_by_entry_names_method_entry_and_queue() -> None:
    answer = explained(served(FlowState.RSS, ENTRY))
    assert f"lab:lab: {WHY}." in answer.chain
    assert "lab:lab: no filter catches it; RSS sends it to queue 3." in answer.chain
    assert answer.verdict == f"Steered and verified: {ENTRY}; its packets arrive on CPU 3."
    assert answer.advice is None


def test_by_entry_not_seen_yet_and_seen_elsewhere() -> None:
    assert "not yet verified" in explained(served(FlowState.RSS, ENTRY, rx_cpu=None)).verdict
    elsewhere = explained(served(FlowState.RSS, ENTRY, rx_cpu=1))
    assert "still seen on CPU 1" in elsewhere.verdict
    assert elsewhere.advice is not None
    assert "rx-flow-hash" in elsewhere.advice


def test_in_the_shade_of_busier_flows() -> None:
    why = "shares entry 37 with 3 flows on CPU 1, not clearly less busy"
    answer = explained(served(FlowState.SHARED, why, rx_cpu=1))
    assert answer.verdict == f"Not on its core: {why}. An entry points to one queue."
    assert answer.advice is not None


def test_handed_on_by_the_kernel() -> None:
    why = "RFS hands its packets on to CPU 3, where its thread calls: has one receive queue"
    assert explained(served(FlowState.RFS, why)).verdict == f"Served in software: {why}."
    late = explained(served(FlowState.RFS, why, rx_cpu=1))
    assert "processed on CPU 1, not 3" in late.verdict
    assert late.advice is not None


def test_the_method_is_explained_for_a_flow_without_an_entry() -> None:
    assert f"lab:lab: {WHY}." in explain_absent(key(40_000), [(NIC, 3)]).chain


def test_a_flow_without_an_entry_where_rfs_serves_every_flow() -> None:
    nic = replace(
        NIC, method=SteeringMethod.RFS, method_why=Code.KERNEL("has one receive queue"), armed=True
    )
    answer = explain_absent(key(40_000), [(nic, None)])
    assert "It does so for every flow, without an entry" in answer.verdict
    unarmed = explain_absent(key(40_000), [(replace(nic, armed=False), None)])
    assert unarmed.verdict.startswith("atfnd does not steer it")


def test_a_kind_of_flow_that_no_filter_takes() -> None:
    nic = replace(lab(), caps=replace(lab().caps, flow_types=frozenset()))
    why = "this NIC's filters take no IPv4 TCP flow"
    answer = explain(served(FlowState.WANTED, why, target_queue=None, rx_cpu=1), nic, topology(), 1)
    assert (answer.verdict, answer.advice) == (f"Not steered: {why}. RSS delivers it.", None)
