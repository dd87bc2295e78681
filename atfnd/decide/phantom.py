# SPDX-License-Identifier: GPL-2.0-or-later
"""Phantom rules: the NIC lists a rule and delivers its flow elsewhere. Pure.

After a reset some drivers list filters that the hardware does not have any more (idpf:
reference/drivers.md), so a rule is believed by the queue its flow is observed on. Two audits in a
row with traffic on another queue make a phantom: it is deleted and inserted anew, a bounded number
of times, and then let go of. Only TCP flows prove it: of a socket that sends, acknowledgements come
in; a UDP socket may send for long while nothing arrives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from atfnd.decide.memory import Elsewhere, Memory
from atfnd.model import Action, ActionKind, Flow, FlowKey, FlowState, NicView, Plan, Protocol

__all__ = ["phantoms"]

_LOOKS = 2  # audits in a row that saw it elsewhere
_ATTEMPTS = 3
_YOUNG_NS = 1_000_000_000  # a rule that moved since may not have been observed yet


def phantoms(nics: Mapping[str, NicView], memory: Memory, now_ns: int) -> Plan:
    """After `check_sockets`: rules to write anew. A flow whose rule has no effect after three
    attempts becomes MANUAL; its rule stays, and is deleted with the flow."""
    plan: list[Action] = []
    manual: list[Flow] = []
    watched: dict[FlowKey, Elsewhere] = {}
    for flow in memory.table:
        nic = nics.get(flow.nic)
        if nic is None or not nic.armed or not _delivered_elsewhere(flow):
            continue
        seen = memory.elsewhere.get(flow.key, Elsewhere(flow.bytes, 0, 0))
        if now_ns - flow.moved_ns > _YOUNG_NS:
            seen = Elsewhere(flow.bytes, seen.looks + (flow.bytes > seen.bytes), seen.attempts)
        if seen.looks == _LOOKS and seen.attempts == _ATTEMPTS:
            why = f"its rule is in the NIC, which delivers on queue {flow.rx_queue} all the same"
            manual.append(replace(flow, state=FlowState.MANUAL, why=why))
            continue
        if seen.looks == _LOOKS:
            seen = Elsewhere(flow.bytes, 0, seen.attempts + 1)
            plan.append(_anew(flow, memory))
        watched[flow.key] = seen
    memory.elsewhere = watched
    for flow in manual:
        memory.table.put(flow)
    return tuple(plan)


def _delivered_elsewhere(flow: Flow) -> bool:
    return (
        flow.key.protocol == Protocol.TCP
        and flow.state is FlowState.STEERED
        and flow.location is not None
        and flow.rx_queue is not None
        and flow.rx_queue != flow.target_queue
    )


def _anew(flow: Flow, memory: Memory) -> Action:
    """A rewrite to the queue it names already (`program.ntuple`: delete, then insert)."""
    queue = flow.target_queue
    why = f"the NIC lists its rule, and delivers on queue {flow.rx_queue}: written anew"
    return Action(
        ActionKind.REWRITE, flow.nic, flow.key, flow.location, queue, queue, why, flow.policy,
        generation=memory.table.generation(flow.key),
    )  # fmt: skip
