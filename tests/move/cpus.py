# SPDX-License-Identifier: GPL-2.0-or-later
"""One ring whose NAPI changes its CPU, with or without a queue of each CPU between it and the
socket: what queue-follow relies on, and what breaks it. The real machine decides and writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from atfnd.model import Action, ActionKind, Outcome
from atfnd.model.reason import Code
from atfnd.move import device
from atfnd.move.command import Ended, Write
from atfnd.move.device import NicMoves
from atfnd.move.event import Event, Seen, TimerDue, Wanted, Written
from atfnd.move.port import Stage
from atfnd.move.verdict import Mode
from tests.move.check import PORT, TIMES
from tests.move.explore import Found, explore

__all__ = ["check_follow"]

PACKETS = 4
ACTION = Action(ActionKind.QUEUE_CPU, "nic", None, None, 0, 1, Code.UNSAID(), "", queue=0)
WANTED = Wanted(ACTION, Mode.STRICT, frozenset({0}))


class Follow(NamedTuple):
    """`backlogs`: packets that wait on a CPU for its softirq, in scenes with such a stage."""

    machine: NicMoves
    write: bool = False  # asked for, not carried out
    affinity: int = 0  # written
    cpu: int = 0  # where the NAPI will be polled next
    next: int = 0
    ring: tuple[int, ...] = ()
    taken: tuple[int, ...] = ()  # by the poll under way
    backlogs: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    last: int = -1
    overtaken: bool = False
    verdict: str | None = None


def check_follow(stages: frozenset[Stage]) -> Found:
    """Visit every state of one migration; `stages` are those of the NIC."""
    port = PORT._replace(stages=stages)
    first = _tell(Follow(NicMoves(port, TIMES)), WANTED, 1)

    def steps(state: Follow) -> Iterator[tuple[str, Follow]]:
        yield from _machine(state)
        yield from _napi(state, bool(stages))

    def broken(state: Follow, still: bool) -> str | None:
        if state.overtaken:
            return "InOrder: a packet was delivered after a later one"
        return "the move never ends" if still and state.verdict is None else None

    return explore(first, steps, broken, lambda state: state.verdict)


def _tell(state: Follow, event: Event, now: int) -> Follow:
    machine, commands = device.step(state.machine, event, now)
    state = state._replace(machine=machine)
    for command in commands:
        if isinstance(command, Write):
            state = state._replace(write=True)
        elif isinstance(command, Ended):
            state = state._replace(verdict=command.verdict.value)
    return state


def _machine(state: Follow) -> Iterator[tuple[str, Follow]]:
    if state.write:
        written = Written(Outcome(ACTION, 1, 0, None, ""), 1, 1)
        after = _tell(state._replace(write=False, affinity=1), written, 1)
        yield "the NAPI is sent to CPU 1", after
        return
    if state.verdict is None and state.cpu == 1:
        yield "packets are seen on CPU 1", _tell(state, Seen(0, 0, 1), 1)
    if state.verdict is None:
        yield "time passes", _tell(state, TimerDue(), 99)


def _napi(state: Follow, staged: bool) -> Iterator[tuple[str, Follow]]:
    if state.next < PACKETS:
        after = state._replace(next=state.next + 1, ring=(*state.ring, state.next))
        yield f"packet {state.next} arrives", after
    if state.taken:
        packet, rest = state.taken[0], state.taken[1:]
        if staged:
            mine = (*state.backlogs[state.cpu], packet)
            backlogs = (mine, state.backlogs[1]) if state.cpu == 0 else (state.backlogs[0], mine)
            yield f"CPU {state.cpu} queues {packet}", state._replace(taken=rest, backlogs=backlogs)
        else:
            yield f"CPU {state.cpu} delivers {packet}", _delivered(state, packet, taken=rest)
    else:
        if state.cpu != state.affinity:
            yield f"its interrupt goes to CPU {state.affinity}", state._replace(cpu=state.affinity)
        for count in range(1, len(state.ring) + 1):
            after = state._replace(taken=state.ring[:count], ring=state.ring[count:])
            yield f"CPU {state.cpu} polls {count}", after
    for cpu, backlog in enumerate(state.backlogs):
        if backlog:
            rest = backlog[1:]
            both = (rest, state.backlogs[1]) if cpu == 0 else (state.backlogs[0], rest)
            after = _delivered(state, backlog[0], backlogs=both)
            yield f"CPU {cpu}'s softirq delivers {backlog[0]}", after


def _delivered(state: Follow, packet: int, **changes: object) -> Follow:
    overtaken = state.overtaken or packet < state.last
    after = state._replace(**changes)  # type: ignore[arg-type]
    return after._replace(last=max(packet, state.last), overtaken=overtaken)
