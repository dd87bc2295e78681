# SPDX-License-Identifier: GPL-2.0-or-later
"""One ring whose RFS is switched, on or off, by its NAPI thread or by one that is borrowed for it.
The real machine decides when; the write is what `program.rfs` makes of it.

A poll takes packets into a list. For each it looks up whether the ring has RFS: then the packet
goes to a backlog, which a softirq delivers at some time; those without stay in the list, and are
delivered when the poll ends (netif_receive_skb_list_internal()). A poll that an interrupt began may
last as long as it likes, also after a thread was lent.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from atfnd.model import Action, Outcome
from atfnd.move import device
from atfnd.move.command import Write
from atfnd.move.device import NicMoves
from atfnd.move.event import Event, TimerDue, Wanted, Written
from atfnd.move.loan import BORROWED
from atfnd.move.port import Port
from atfnd.move.verdict import Mode
from tests.move.check import LENDS, PORT, TIMES
from tests.move.explore import Found, explore

PACKETS = 3
TICKS = 4
NEVER = LENDS._replace(rings=tuple(ring._replace(loan=None) for ring in LENDS.rings))
Steps = Iterator[tuple[str, "Ring"]]


class Rules(NamedTuple):
    """What `program.rfs` does, each of which can be left out."""

    quiesces: bool = True  # B does not begin a poll until the write has returned
    waits_for_polls: bool = True  # and one that is under way has ended
    waits_for_backlogs: bool = True


ALL = Rules()


class Ring(NamedTuple):
    """`step` of a switch: what program.rfs has done of it."""

    machine: NicMoves
    threads: bool
    rfs: bool
    todo: tuple[Write, ...] = ()
    step: int = 0
    marked: tuple[int, ...] = ()  # backlog packets that are waited for
    next: int = 0
    ring: tuple[int, ...] = ()
    taken: tuple[int, ...] | None = None  # by the poll under way, not looked up yet
    listed: tuple[int, ...] = ()  # to be delivered when the poll ends
    backlog: tuple[int, ...] = ()
    last: int = -1
    now: int = 1
    faults: int = 0
    overtaken: bool = False
    verdict: str | None = None
    wrong: str | None = None


def check_switch(*, on: bool, port: Port = PORT, rules: Rules = ALL) -> Found:
    """Visit every state of one switch; its verdict is `switched` or `refused`."""
    action = Action.of_setting("nic", "rps-flow-cnt:0", "256" if on else "0")
    rings = tuple(ring._replace(hands_on=not on) for ring in port.rings)
    machine = NicMoves(port._replace(rings=rings), TIMES)
    threads = bool(port.rings[0].thread)
    first = _tell(Ring(machine, threads, not on), Wanted(action, Mode.STRICT))

    def steps(state: Ring) -> Steps:
        if not state.wrong:
            yield from _daemon(state, action, rules)
            yield from _nic(state, rules)

    def broken(state: Ring, still: bool) -> str | None:
        if state.overtaken:
            return "InOrder: a packet was delivered after a later one"
        if state.wrong or not still:
            return state.wrong
        if state.verdict is None:
            return "FailOpen: the switch never ends"
        return "FailOpen: threads are borrowed for ever" if state.threads != threads else None

    return explore(first, steps, broken, lambda state: state.verdict)


def _tell(state: Ring, event: Event) -> Ring:
    machine, commands = device.step(state.machine, event, state.now)
    writes = tuple(each for each in commands if isinstance(each, Write))
    return state._replace(machine=machine, todo=state.todo + writes)


def _answer(state: Ring, write: Write, code: int = 0) -> Ring:
    outcome = Outcome(write.action, state.now, code, None, "refused")
    done = state._replace(todo=tuple(each for each in state.todo if each != write))
    return _tell(done, Written(outcome, state.now, state.now))


def _daemon(state: Ring, action: Action, rules: Rules) -> Steps:
    for write in state.todo:  # whichever first, and one beside the other
        if write.action == action:
            yield from _switch(state, write, rules)
        elif not state.step or write.action.value != BORROWED:
            yield from _lend(state, write)
    due_ns = device.due_ns(state.machine)
    if due_ns is not None and due_ns <= state.now and not (state.todo and state.step == 0):
        yield f"it is {state.now}", _tell(state, TimerDue())
    if state.now < TICKS and not any(_lends(each) for each in state.todo):
        yield "the clock goes on", state._replace(now=state.now + 1)
    elif state.now == TICKS and due_ns is not None and due_ns > state.now and not state.todo:
        yield "the clock goes to its end", state._replace(now=due_ns)


def _lends(write: Write) -> bool:
    return (write.action.setting or "").startswith("threaded")


def _lend(state: Ring, write: Write) -> Steps:
    on = write.action.value == BORROWED
    if not on and state.step:
        yield "threads are given back", state._replace(wrong="I8: given back under a hold")
        return
    after = _answer(state._replace(threads=on), write)
    yield ("threads poll from now on" if on else "interrupts poll from now on"), after
    if on and not state.faults:
        yield "nothing is lent", _answer(state._replace(faults=1), write, errno.EIO)


def _switch(state: Ring, write: Write, rules: Rules) -> Steps:
    """What `program.rfs.switch` does, step by step."""
    ring = state.machine.port.rings[0]
    if state.step == 0 and not state.threads:
        # A ring that might have had a thread, and nothing had been refused.
        asked = ring.loan is None or state.faults
        wrong = None if asked else "I8: a ring without a thread is to be quiesced"
        refused = _answer(state, write, errno.EOPNOTSUPP)
        yield "it cannot be quiesced", refused._replace(verdict="refused", wrong=wrong)
    elif state.step == 0:
        if state.taken is None or not rules.waits_for_polls:
            yield "it is quiesced", state._replace(step=1, marked=state.backlog)
        if state.taken is not None and rules.waits_for_polls:
            refused = _answer(state, write, errno.EAGAIN)
            yield "a poll does not end", refused._replace(verdict="refused")
    elif state.step == 1:
        on = write.action.value != "0"
        if on or not state.marked or not rules.waits_for_backlogs:
            yield "it is written", state._replace(step=2, rfs=on)
        else:
            refused = _answer(state._replace(step=0, marked=()), write, errno.EAGAIN)
            yield "the backlogs do not deliver", refused._replace(verdict="refused")
    else:
        done = _answer(state._replace(step=0, marked=()), write)
        yield "it is released", done._replace(verdict="switched")


def _nic(state: Ring, rules: Rules) -> Steps:
    if state.next < PACKETS:
        after = state._replace(next=state.next + 1, ring=(*state.ring, state.next))
        yield f"packet {state.next} is in the ring", after
    if state.taken is None and state.ring and not (state.step and rules.quiesces):
        for count in range(1, len(state.ring) + 1):
            after = state._replace(taken=state.ring[:count], ring=state.ring[count:])
            yield f"a poll takes {state.ring[:count]}", after
    elif state.taken:
        packet, rest = state.taken[0], state.taken[1:]
        if state.rfs:
            backlog = (*state.backlog, packet)
            yield f"{packet} goes to a backlog", state._replace(taken=rest, backlog=backlog)
        else:
            listed = (*state.listed, packet)
            yield f"{packet} stays in the list", state._replace(taken=rest, listed=listed)
    elif state.taken is not None:
        after = state._replace(taken=None, listed=())
        yield f"the poll ends with {state.listed}", _reaches(after, state.listed)
    if state.backlog:
        packet, rest = state.backlog[0], state.backlog[1:]
        marked = tuple(each for each in state.marked if each != packet)
        after = _reaches(state._replace(backlog=rest, marked=marked), (packet,))
        yield f"a backlog delivers {packet}", after


def _reaches(state: Ring, packets: tuple[int, ...]) -> Ring:
    for packet in packets:
        overtaken = state.overtaken or packet < state.last
        state = state._replace(last=max(state.last, packet), overtaken=overtaken)
    return state


@pytest.mark.parametrize("port", [PORT, LENDS], ids=["thread", "borrowed"])
@pytest.mark.parametrize("to_on", [True, False], ids=["on", "off"])
def test_rfs_is_switched_in_order_and_lets_go(to_on: bool, port: Port) -> None:
    found = check_switch(on=to_on, port=port)
    assert found.broken is None, str(found)
    assert "switched" in found.verdicts


@pytest.mark.parametrize("to_on", [True, False], ids=["on", "off"])
def test_rfs_is_not_switched_where_nothing_is_lent(to_on: bool) -> None:
    found = check_switch(on=to_on, port=NEVER)
    assert found.broken is None, str(found)
    assert found.verdicts == {"refused"}


@pytest.mark.parametrize("port", [PORT, LENDS], ids=["thread", "borrowed"])
@pytest.mark.parametrize(
    ("to_on", "rules"),
    [
        (True, Rules(waits_for_polls=False)),
        (True, Rules(quiesces=False)),
        (False, Rules(waits_for_backlogs=False)),
        (False, Rules(quiesces=False)),
    ],
)
def test_each_rule_of_a_switch_is_needed(to_on: bool, rules: Rules, port: Port) -> None:
    found = check_switch(on=to_on, port=port, rules=rules)
    assert found.broken is not None
    assert found.broken.startswith("InOrder"), str(found)


CHANGES = {
    "no wait for a thread": ("switch_loan", lambda action, port: None),
    "given back under a switch": (
        "_loan_due_ns", lambda known: known.loan.due_ns(known.times),
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_thread_that_is_not_there_is_caught(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, *CHANGES[change])
    found = check_switch(on=True, port=LENDS)
    assert found.broken is not None
    assert found.broken.startswith("I8"), str(found)
