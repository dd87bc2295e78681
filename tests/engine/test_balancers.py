# SPDX-License-Identifier: GPL-2.0-or-later
"""Which interrupts an irqbalance is asked to leave alone, and which bans of ours have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from atfnd.engine.command import (
    AskBalancer,
    Command,
    ConfirmBan,
    ForgetBan,
    Log,
    LookAtInterrupts,
)
from atfnd.engine.engine import Engine
from atfnd.engine.event import (
    BalancerAsked,
    BalancerRead,
    BalancersFound,
    BansEnding,
    Event,
    MethodDue,
    NicAttached,
    NicLost,
    SettingsLeftAlone,
)
from atfnd.engine.table.memory import Memory
from atfnd.model import Ban, Bans, NicView, Policy, Queue
from tests.values import NIC, RULE

ADMINS = 90
PID, OTHER = 7, 8
NONE = Bans((), frozenset(), frozenset())
OURS = frozenset({40, 41})
VIEW = replace(NIC, queues=(Queue(0, 1, 40, 0, False, None), Queue(1, 2, 41, 1, False, None)))
BANS = tuple(Ban(PID, "nic", irq) for irq in sorted(OURS))
HELD = Bans(BANS, frozenset(), frozenset())


def like(view: NicView) -> tuple[Event, ...]:
    """A NIC with these facts, armed or not, with these settings left alone. How it is steered
    follows from that."""
    return (
        NicAttached(view, armed=view.armed),
        SettingsLeftAlone(view.name, view.manual),
        MethodDue(view.name),
    )


class Host:
    """One armed NIC with interrupts 40 and 41, and an irqbalance."""

    def __init__(self) -> None:
        self.engine = Engine(Memory.of(Policy((), (RULE,), "auto", 64, 0, ())))
        for event in like(VIEW):
            self.engine.handle(event, 0)
        self.find(PID)

    def find(self, *pids: int, bans: Bans = NONE) -> Sequence[Command]:
        return self.engine.handle(BalancersFound(frozenset(pids), bans), 0)

    def read(self, *spares: int, bans: Bans = NONE, pid: int = PID) -> Sequence[Command]:
        return self.engine.handle(BalancerRead(pid, frozenset(spares), bans), 0)

    def silent(self) -> Sequence[Command]:
        return self.engine.handle(BalancerRead(PID, None, NONE), 0)

    def answer(self, asked: Command, refused: str | None = None) -> Sequence[Command]:
        assert isinstance(asked, AskBalancer)
        return self.engine.handle(BalancerAsked(asked, refused), 0)

    def changes(self, **values: object) -> None:
        for event in like(replace(VIEW, **values)):  # type: ignore[arg-type]
            self.engine.handle(event, 0)

    def may_have_moved(self, irq: int, *pids: int, bans: Bans = NONE) -> bool:
        return self.engine.memory.balancers.may_have_moved(irq, pids or (PID,), bans)


@pytest.fixture
def host() -> Host:
    return Host()


def test_it_may_have_moved_what_it_has_not_agreed_to_leave_alone(host: Host) -> None:
    assert host.may_have_moved(40)
    assert not host.may_have_moved(40, bans=NONE._replace(theirs=frozenset({40})))  # an admin's
    [asked] = host.read(ADMINS)
    assert host.may_have_moved(40)
    host.answer(asked)
    assert not host.may_have_moved(40)
    assert not host.may_have_moved(ADMINS)
    assert host.may_have_moved(40, PID, OTHER)  # another one that nobody has asked yet
    host.engine.handle(BansEnding(frozenset({PID, OTHER})), 0)
    assert host.may_have_moved(40)
    host.read(*OURS)
    host.find(PID, OTHER)
    assert not host.may_have_moved(41)  # it has run all the time
    host.find()
    host.find(PID)
    assert host.may_have_moved(41)  # it starts anew


def test_it_is_not_asked_for_what_another_program_had_it_move_again(host: Host) -> None:
    assert host.read(40, bans=NONE._replace(theirs=frozenset({41}))) == []


def test_one_that_never_answers_counts_as_another_program(host: Host) -> None:
    looks = 0
    while host.may_have_moved(40):
        assert host.silent() == []
        looks += 1
        assert looks < 30
    assert looks > 5
    assert [type(each) for each in host.read()] == [AskBalancer]
    assert host.may_have_moved(40)  # it answers again
    for _ in range(looks - 1):
        host.silent()
    assert host.may_have_moved(40)


def test_one_that_refuses_counts_as_another_program_and_that_is_logged_once(host: Host) -> None:
    [asked] = host.read()
    [log] = host.answer(asked, "it does not listen")
    assert isinstance(log, Log)
    assert (log.kind, log.why, log.fields) == ("refused", "it does not listen", {"nic": "nic"})
    assert "still moves interrupts 40-41" in log.what
    assert not host.may_have_moved(40)
    [asked] = host.read()
    assert host.answer(asked, "it does not listen") == []
    [asked] = host.read()
    assert [type(each) for each in host.answer(asked)] == [Log, LookAtInterrupts]
    [asked] = host.read()
    assert [type(each) for each in host.answer(asked, "it does not listen")] == [Log]


def test_bans_end_with_their_irqbalance_and_are_none_of_another(host: Host) -> None:
    host.find(PID, OTHER)
    assert host.read(*OURS, pid=OTHER, bans=HELD) == []
    host.find(OTHER)
    assert host.read(pid=OTHER, bans=HELD)[:2] == [ForgetBan(each) for each in BANS]


def test_what_it_was_not_heard_to_take_is_settled_by_what_it_says_now(host: Host) -> None:
    forgotten, asked = host.read(40, bans=HELD._replace(doubtful=frozenset(BANS[1:])))
    assert forgotten == ForgetBan(BANS[1])
    assert asked == AskBalancer(PID, frozenset({40}), {"nic": frozenset({41})}, ())


def test_what_another_program_frees_while_a_list_is_lifted_is_theirs(host: Host) -> None:
    """One that was to be lifted with it is there: irqbalance did not take that."""
    lifting = HELD._replace(doubtful=frozenset(BANS))
    said = host.read(40, bans=lifting)
    assert said[:2] == [ConfirmBan(BANS[0]), ForgetBan(BANS[1], theirs=True)]
    assert not any(isinstance(each, AskBalancer) for each in said)
    [*ended, _] = host.read(bans=lifting)  # it took it
    assert ended == [ForgetBan(BANS[0]), ForgetBan(BANS[1])]


def test_an_interrupt_that_a_nic_has_no_more_is_moved_again(host: Host) -> None:
    host.changes(queues=VIEW.queues[:1])
    assert host.read(*OURS, ADMINS, bans=HELD) == [
        AskBalancer(PID, OURS | {ADMINS}, {}, (BANS[1],))
    ]
    host.changes(queues=(), up=False)  # it may have them again when it is up
    assert host.read(*OURS, bans=HELD) == []
    host.engine.handle(NicLost("nic"), 0)
    [asked] = host.read(*OURS, ADMINS, bans=HELD)
    assert asked == AskBalancer(PID, OURS | {ADMINS}, {}, BANS)
    assert host.answer(asked) == []
    assert host.may_have_moved(40)
    assert not host.may_have_moved(ADMINS)
