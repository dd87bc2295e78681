# SPDX-License-Identifier: GPL-2.0-or-later
"""The reception `auto` on all queues of a NIC: which ask for it, what may be tried there, and which
is next. Pure.

On a NIC there is one trial at a time, and none beside a trial of the placement `auto`. Queues that
have an owner, or are on CPUs that a flow rule dedicates, may be suspended: an epoll that hangs then
delays no strangers. Nothing is chosen that takes a CPU (`busy`, `dedicated`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from atfnd.engine import reception
from atfnd.engine.autopilot import pilot
from atfnd.engine.autopilot.pilot import (
    DEFERRED,
    SUSPENDED,
    PilotPhase,
    PilotState,
    PilotTerms,
    PilotTurn,
    QueueWindow,
)
from atfnd.engine.table.memory import Memory
from atfnd.model import NicView, Reception, ReceptionMode

__all__ = ["TERMS", "Piloted", "abandon", "asking", "look", "pressing", "said"]

TERMS = PilotTerms()


class Piloted(NamedTuple):
    """An event: the mode of a queue has changed, or its trial has ended."""

    queue: int
    rule_name: str  # empty: the interface's
    kind: str  # trial, kept, back
    what: str
    why: str


def asking(nic: NicView, memory: Memory) -> dict[int, str]:
    """The queues of a NIC that can be written whose reception is `auto`, with the flow rule's
    name; empty, if it is the interface's."""
    if not (nic.armed and nic.up) or reception.of_device(nic):
        return {}
    of_rules = memory.nics[nic.name].reception.of_rules
    wanted = {each.index: of_rules.get(each.index, (nic.reception, "")) for each in nic.queues}
    return {
        queue: rule_name
        for queue, (each, rule_name) in wanted.items()
        if each.mode is ReceptionMode.AUTO
    }


def look(
    nic: NicView, windows: Mapping[int, QueueWindow], memory: Memory, now_ns: int
) -> list[Piloted]:
    """One look at a NIC: `windows` since the last one, of queues that ask for `auto`."""
    known, asked, turned = memory.nics[nic.name].reception, asking(nic, memory), list[Piloted]()
    for queue in known.auto.keys() - asked.keys():
        turned += _ended(queue, known.auto.pop(queue))
    for queue, rule_name in asked.items():
        if queue not in known.auto:
            known.auto[queue] = PilotState()
        if queue in windows:
            able = _able(nic, queue, memory)
            turn = pilot.watched(known.auto[queue], windows[queue], able, now_ns, TERMS)
            turned += _taken(queue, rule_name, turn, memory, nic.name)
    return [*turned, *_begun(nic.name, windows, asked, memory, now_ns)]


def abandon(nic: NicView, why: str, memory: Memory, now_ns: int) -> list[Piloted]:
    """End the trial on this NIC."""
    known = memory.nics[nic.name].reception
    turned = list[Piloted]()
    for queue, state in known.auto.items():
        if state.trying:
            turned += _taken(queue, "", pilot.void(state, why, now_ns, TERMS), memory, nic.name)
    return turned


def pressing(memory: Memory, now_ns: int) -> bool:
    """A trial goes on, or begins if the CPU of some queue is short of time in one more window."""
    return any(
        state.trying or state.ready(now_ns, 1, TERMS)
        for nic in memory.nics.values()
        for state in nic.reception.auto.values()
    )


def said(nic: str, memory: Memory, now_ns: int) -> dict[int, str]:
    """Of each queue whose reception is `auto`, in a clause."""
    known = memory.nics[nic].reception
    return {queue: pilot.in_words(each, now_ns) for queue, each in known.auto.items()}


def _able(nic: NicView, queue: int, memory: Memory) -> list[Reception]:
    """What can be had there."""
    known = memory.nics[nic.name]
    alone = queue in known.owned or queue in known.reception.of_rules
    candidates = [SUSPENDED, DEFERRED] if alone else [DEFERRED]
    return [each for each in candidates if reception.can_have(nic, queue, each, memory)]


def _begun(
    nic: str,
    windows: Mapping[int, QueueWindow],
    asked: Mapping[int, str],
    memory: Memory,
    now_ns: int,
) -> list[Piloted]:
    """Begin a trial of the queue that carries most, of those whose CPU is short of time. It could
    have begun when its window did: that was pressing, and is as short as those of the trial."""
    states = memory.nics[nic].reception.auto
    if any(state.trying for state in states.values()):
        return []
    ready = [
        queue
        for queue, window in windows.items()
        if queue in states and states[queue].ready(window.used.began_ns, TERMS.windows, TERMS)
    ]
    chosen = max(ready, key=lambda queue: windows[queue].used.bytes, default=None)
    if chosen is None:
        return []
    turn = pilot.begin(states[chosen], windows[chosen], now_ns)
    return _taken(chosen, asked.get(chosen, ""), turn, memory, nic)


def _taken(queue: int, rule_name: str, turn: PilotTurn, memory: Memory, nic: str) -> list[Piloted]:
    memory.nics[nic].reception.auto[queue] = turn.state
    if turn.kind is None:
        return []
    return [Piloted(queue, rule_name, turn.kind, f"queue {queue}: {turn.what}", turn.why)]


def _ended(queue: int, state: PilotState) -> list[Piloted]:
    """Its reception is not `auto` any more."""
    if state.phase is PilotPhase.USUAL:
        return []
    what = f"queue {queue}: {state.reception} -> as its policy asks"
    return [Piloted(queue, "", "back", what, "no policy asks for `auto` there")]
