# SPDX-License-Identifier: GPL-2.0-or-later
"""Ineffective filters: the NIC lists a filter and delivers its flow elsewhere. Pure.

After a reset some drivers list filters that the hardware does not have any more (idpf:
docs/hardware.md), so we trust a filter only if its flow is observed on its queue. Two audits in
a row with traffic on another queue make it ineffective: it is deleted and inserted anew, a bounded
number of times, and then left alone. Only TCP flows prove it: a socket that sends receives
acknowledgements, while a UDP socket may send for long and receive nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from atfnd.engine.table.flow_table import Elsewhere
from atfnd.engine.table.memory import Memory
from atfnd.model import Action, ActionKind, Flow, FlowKey, FlowState, NicView, Plan
from atfnd.model.reason import Code

__all__ = ["ineffective"]

_LOOKS = 2  # audits in a row that saw it elsewhere
_ATTEMPTS = 3
_YOUNG_NS = 1_000_000_000  # a filter that moved since may not have been observed yet


def ineffective(nics: Mapping[str, NicView], memory: Memory, now_ns: int) -> Plan:
    """After `check_sockets`: filters to write anew. A flow whose filter has no effect after three
    attempts becomes MANUAL; its filter stays, and is deleted with the flow."""
    plan: list[Action] = []
    manual: list[Flow] = []
    armed = {name for name, nic in nics.items() if nic.armed}
    astray = {flow.key: flow for flow in memory.table.astray() if flow.nic in armed}
    for key, notes in memory.table.notes().items():
        if notes.elsewhere is not None and key not in astray:
            _watch(key, None, memory)
    for flow in astray.values():
        seen = memory.table.noted(flow.key).elsewhere or Elsewhere(flow.bytes, 0, 0)
        if now_ns - flow.moved_ns > _YOUNG_NS:
            seen = Elsewhere(flow.bytes, seen.looks + (flow.bytes > seen.bytes), seen.attempts)
        if seen.looks == _LOOKS and seen.attempts == _ATTEMPTS:
            why = Code.NO_EFFECT(flow.rx_queue)
            manual.append(flow._replace(state=FlowState.MANUAL, why=why))
            _watch(flow.key, None, memory)
            continue
        if seen.looks == _LOOKS:
            seen = Elsewhere(flow.bytes, 0, seen.attempts + 1)
            plan.append(_anew(flow, memory))
        _watch(flow.key, seen, memory)
    for flow in manual:
        memory.table.put(flow)
    return tuple(plan)


def _watch(key: FlowKey, seen: Elsewhere | None, memory: Memory) -> None:
    notes = memory.table.noted(key)
    if notes.elsewhere != seen:
        memory.table.note(key, replace(notes, elsewhere=seen))


def _anew(flow: Flow, memory: Memory) -> Action:
    """Write it again, to the queue that it already names (`program.filter`: delete, then
    insert)."""
    queue = flow.target_queue
    why = Code.WRITTEN_ANEW(flow.rx_queue)
    return Action(
        ActionKind.REWRITE, flow.nic, flow.key, flow.location, queue, queue, why, flow.rule_name,
        generation=memory.table.generation(flow.key),
    )  # fmt: skip
