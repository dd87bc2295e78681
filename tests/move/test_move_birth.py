# SPDX-License-Identifier: GPL-2.0-or-later
"""A birth is proven by when its connection was established, and by nothing that was predicted."""

from __future__ import annotations

import pytest

from atfnd.model import Action, ActionKind, Outcome
from atfnd.model.reason import Code
from atfnd.move import device as machine
from atfnd.move.command import Ended, Write
from atfnd.move.device import NicMoves
from atfnd.move.event import Established, Event, EvidenceLost, Seen, TimerDue, Wanted, Written
from atfnd.move.timer import Times
from atfnd.move.verdict import Mechanism, Mode, Verdict
from tests.move.test_move_mover import LIKELY
from tests.values import key

WRITE_NS = LIKELY.write_ns or 0
T1 = 1_000 + WRITE_NS
FLOW = key(1)
PORT = FLOW._replace(remote=bytes(4), remote_port=0)


def birth(
    of: object = FLOW, first_data_ns: int = 1_000_000_000, kind: ActionKind = ActionKind.INSERT
) -> Wanted:
    assert isinstance(of, type(FLOW))
    action = Action(kind, "nic", of, None, None, 1, Code.UNSAID(), "")
    rss = frozenset({0}) if of.remote_port else frozenset({0, 1, 2})
    before = frozenset({0}) if kind is ActionKind.DELETE else rss
    return Wanted(action, Mode.STRICT, before, rss, first_data_ns=first_data_ns)


def ended(wanted: Wanted, *events: Event, done_ns: int = T1) -> Ended:
    """How it ends when the write returns at `done_ns` and these are reported then."""
    device, commands = machine.step(NicMoves(LIKELY, Times()), wanted, 1_000)
    assert Write(wanted.action) in commands
    outcome = Outcome(wanted.action, done_ns, 0, 7, "")
    for event in (Written(outcome, 1_000, done_ns), *events):
        device, _ = machine.step(device, event, done_ns)
    device, commands = machine.step(device, TimerDue(), done_ns + 2 * Times().verify_ns)
    (end,) = (each for each in commands if isinstance(each, Ended))
    assert end.mechanism is Mechanism.BIRTH
    return end


def test_established_after_the_rule_is_proven() -> None:
    seen = Seen(FLOW, 1, T1 + 5)
    assert ended(birth(), Established(FLOW, T1 + 1), seen).verdict is Verdict.PROVEN


@pytest.mark.parametrize("at_ns", [T1, T1 - 1, None])
def test_established_before_the_rule_is_not(at_ns: int | None) -> None:
    end = ended(birth(), Established(FLOW, at_ns), Seen(FLOW, 1, T1 + 5))
    assert end.verdict is Verdict.UNPROVEN
    assert "before the filter" in str(end.why)


def test_what_nobody_reported_is_not_proven() -> None:
    end = ended(birth(), Seen(FLOW, 1, T1 + 5))
    assert end.verdict is Verdict.UNPROVEN
    assert "not known" in str(end.why)


def test_a_write_that_took_too_long_is_not() -> None:
    wanted = birth(first_data_ns=T1)
    end = ended(wanted, Established(FLOW, T1 + 2), Seen(FLOW, 1, T1 + 5), done_ns=T1 + 1)
    assert end.verdict is Verdict.UNPROVEN


@pytest.mark.parametrize("event", [Established(FLOW, 1_001), EvidenceLost()], ids=str)
def test_a_birth_that_waits_is_none_once_it_may_be_established(event: Event) -> None:
    slow = Times(move_every_ns=10**9, burst=1)
    device, _ = machine.step(NicMoves(LIKELY, slow), birth(key(2)), 1_000)
    device, commands = machine.step(device, birth(), 1_000)
    assert commands == ()
    device, commands = machine.step(device, event, 1_001)
    [end] = commands
    assert isinstance(end, Ended)
    assert end.verdict is Verdict.DEFERRED
    assert FLOW not in device.waiting


@pytest.mark.parametrize("kind", [ActionKind.INSERT, ActionKind.DELETE])
def test_a_port_is_verified_unless_a_connection_came_through_an_old_ring(kind: ActionKind) -> None:
    wanted = birth(PORT, kind=kind)
    assert ended(wanted).verdict is Verdict.VERIFIED
    assert ended(wanted, EvidenceLost()).verdict is Verdict.UNPROVEN
    end = ended(wanted, Established(PORT, None))
    assert end.verdict is Verdict.UNPROVEN
