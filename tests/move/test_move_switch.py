# SPDX-License-Identifier: GPL-2.0-or-later
"""RFS of a queue is switched in order, with threads that are borrowed for it where it has none."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from atfnd.model import Action, Outcome
from atfnd.move import device
from atfnd.move.choose import switch_loan
from atfnd.move.command import Command, Hold, Write
from atfnd.move.device import NicMoves, due_ns
from atfnd.move.event import Asleep, PortChanged, QueueHeld, Released, TimerDue, Wanted, Written
from atfnd.move.loan import BORROWED, GIVEN_BACK
from atfnd.move.port import Port, lent
from atfnd.move.verdict import Mode
from tests.move.check import LENDS, PORT
from tests.move.stepped import TIMES, SteppedNic, to
from tests.move.switching import NEVER, Rules, check_switch

ON, OFF = "256", "0"
TABLE = Action.of_setting("nic", "rps-sock-flow-entries", "32768")
OF_EACH = LENDS._replace(
    rings=tuple(ring._replace(loan=f"threaded:{index}") for index, ring in enumerate(LENDS.rings))
)
Written_ = list[tuple[str | None, str | None]]


@pytest.fixture
def nic() -> SteppedNic:
    return on(LENDS)


def on(port: Port) -> SteppedNic:
    made = SteppedNic()
    made.device = NicMoves(port, TIMES)
    return made


def rfs(queue: int = 0, value: str = ON) -> Action:
    return Action.of_setting("nic", f"rps-flow-cnt:{queue}", value)


def want(nic: SteppedNic, *actions: Action, after_ns: int = 0) -> Written_:
    """What is written once all of these are wanted."""
    commands: tuple[Command, ...] = ()
    nic.now_ns += after_ns
    for each in actions:
        commands += nic(Wanted(each, Mode.STRICT))
    return written(commands)


def written(commands: tuple[Command, ...]) -> Written_:
    writes = (each.action for each in commands if isinstance(each, Write))
    return [(each.setting, each.value) for each in writes]


def done(nic: SteppedNic, setting: str, value: str, code: int = 0) -> Written_:
    """The answer to a write, and what is written after it."""
    asked = (*nic.device.loan.asked, *nic.device.turning)
    action = next(each for each in asked if (each.setting, each.value) == (setting, value))
    outcome = Outcome(action, nic.now_ns, code, None, "the kernel said no" if code else "")
    return written(nic(Written(outcome, nic.now_ns, nic.now_ns)))


def switched(nic: SteppedNic, queue: int = 0, value: str = ON) -> None:
    """RFS is on, by threads that are lent."""
    assert want(nic, rfs(queue, value)) == [("threaded", BORROWED)]
    assert done(nic, "threaded", BORROWED) == [(f"rps-flow-cnt:{queue}", value)]
    assert done(nic, f"rps-flow-cnt:{queue}", value) == []


def test_a_switch_waits_until_threads_are_borrowed(nic: SteppedNic) -> None:
    switched(nic)
    assert nic.device.port.rings[0].hands_on
    assert not nic.device.settings


def test_a_queue_with_a_thread_of_its_own_borrows_nothing() -> None:
    nic = on(PORT)
    assert want(nic, rfs()) == [("rps-flow-cnt:0", ON)]


def test_threads_are_given_back_when_nothing_was_switched_for_a_while(nic: SteppedNic) -> None:
    switched(nic)
    assert want(nic, rfs(1), after_ns=TIMES.loan_linger_ns * 3 // 4) == [("rps-flow-cnt:1", ON)]
    assert done(nic, "rps-flow-cnt:1", ON) == []
    assert written(nic(TimerDue(), TIMES.loan_linger_ns * 3 // 4)) == []
    assert written(nic(TimerDue(), TIMES.loan_linger_ns)) == [("threaded", GIVEN_BACK)]
    done(nic, "threaded", GIVEN_BACK)
    hands_on = [ring.hands_on for ring in nic.device.port.rings]
    assert hands_on == [True, True, False]
    assert [ring.thread for ring in nic.device.port.rings] == [False] * 3


def test_nothing_is_given_back_while_a_setting_is_written(nic: SteppedNic) -> None:
    want(nic, rfs())
    done(nic, "threaded", BORROWED)
    assert written(nic(TimerDue(), TIMES.loan_max_ns)) == []


def test_what_is_switched_while_threads_are_given_back_waits_for_the_answer(
    nic: SteppedNic,
) -> None:
    switched(nic)
    assert written(nic(TimerDue(), TIMES.loan_linger_ns)) == [("threaded", GIVEN_BACK)]
    assert want(nic, rfs(1)) == []
    assert done(nic, "threaded", GIVEN_BACK) == []
    rest_ns = (due_ns(nic.device) or 0) - nic.now_ns
    assert rest_ns == TIMES.loan_rest_ns
    assert written(nic(TimerDue(), rest_ns)) == [("threaded", BORROWED)]
    assert done(nic, "threaded", BORROWED) == [("rps-flow-cnt:1", ON)]


def test_what_waits_until_threads_may_be_borrowed_again_is_in_nobodys_way(nic: SteppedNic) -> None:
    switched(nic)
    nic(TimerDue(), TIMES.loan_linger_ns)
    done(nic, "threaded", GIVEN_BACK)
    assert want(nic, rfs(1)) == []
    assert want(nic, TABLE) == [("rps-sock-flow-entries", "32768")]
    assert done(nic, "rps-sock-flow-entries", "32768") == []
    assert [each.action.key for each in nic(to(0, Mode.IMMEDIATE)) if isinstance(each, Write)]
    assert [*nic.device.settings] == [rfs(1)]


@pytest.mark.parametrize("code", [0, errno.EBUSY])
def test_a_borrowed_thread_that_a_policy_asks_for_is_not_given_back(code: int) -> None:
    nic, asked = on(OF_EACH), Action.of_setting("nic", "napi-thread:0", "2")
    assert want(nic, rfs(0)) == [("threaded:0", BORROWED)]
    done(nic, "threaded:0", BORROWED)
    assert done(nic, "rps-flow-cnt:0", ON) == []
    assert want(nic, asked) == [("napi-thread:0", "2")]
    done(nic, "napi-thread:0", "2", code)
    ring = nic.device.port.rings[0]
    assert (ring.thread, ring.loan) == ((True, "threaded:0") if code else (None, None))
    given = written(nic(TimerDue(), TIMES.loan_linger_ns))
    assert given == ([("threaded:0", GIVEN_BACK)] if code else [])


def test_the_threads_of_all_that_is_switched_are_borrowed_at_once() -> None:
    nic = on(OF_EACH)
    first = to(0, Mode.IMMEDIATE)
    nic(first)
    assert want(nic, rfs(0), rfs(2)) == []
    nic.written(first)
    asked = written(nic(TimerDue(), TIMES.verify_ns))
    assert asked == [("threaded:0", BORROWED), ("threaded:2", BORROWED)]
    assert done(nic, "threaded:0", BORROWED) == []
    both = [("rps-flow-cnt:0", ON), ("rps-flow-cnt:2", ON)]
    assert done(nic, "threaded:2", BORROWED) == both


def test_where_nothing_is_lent_it_is_written_and_refused_as_without_threads(
    nic: SteppedNic,
) -> None:
    assert want(nic, rfs()) == [("threaded", BORROWED)]
    assert done(nic, "threaded", BORROWED, errno.EBUSY) == [("rps-flow-cnt:0", ON)]
    assert done(nic, "rps-flow-cnt:0", ON, errno.EOPNOTSUPP) == []
    assert not nic.device.port.rings[0].hands_on
    assert want(nic, rfs(), after_ns=TIMES.loan_refused_ns // 2) == [("rps-flow-cnt:0", ON)]
    done(nic, "rps-flow-cnt:0", ON, errno.EOPNOTSUPP)
    again = want(nic, rfs(), after_ns=TIMES.loan_refused_ns)
    assert again == [("threaded", BORROWED)]


def test_where_the_policy_forbids_it_it_is_written_and_refused() -> None:
    assert want(on(NEVER), rfs()) == [("rps-flow-cnt:0", ON)]


def test_a_switch_waits_for_moves_and_is_held_by_their_loan(nic: SteppedNic) -> None:
    wanted = to(0, Mode.STRICT)
    assert written(nic(wanted)) == [("threaded", BORROWED)]
    done(nic, "threaded", BORROWED)
    assert want(nic, rfs(2)) == []
    nic(QueueHeld(1, nic.now_ns))
    nic.written(wanted)
    nic(Asleep(0, nic.now_ns + 200_000), 200_000)
    nic(Released(1, True), 1000)
    end_ns = due_ns(nic.device) or 0
    while nic.device.live:
        nic(TimerDue(), max(end_ns - nic.now_ns, 0))
        if nic.device.loan.asked:  # it lasts no longer for a setting that waits
            done(nic, "threaded", GIVEN_BACK)
        end_ns = due_ns(nic.device) or 0
    nic(TimerDue(), TIMES.loan_rest_ns)
    assert nic.device.loan.asked
    assert done(nic, "threaded", BORROWED) == [("rps-flow-cnt:2", ON)]


def test_a_move_waits_for_the_switch_and_is_held_by_its_loan(nic: SteppedNic) -> None:
    want(nic, rfs(2))
    assert nic(to(0, Mode.STRICT)) == ()
    done(nic, "threaded", BORROWED)
    assert [each for each in nic.commands if isinstance(each, Hold)] == []
    done(nic, "rps-flow-cnt:2", ON)
    assert [each.queue for each in nic.commands if isinstance(each, Hold)] == [1]


def test_a_queue_that_has_a_thread_by_now_needs_none(nic: SteppedNic) -> None:
    switched(nic)
    nic(TimerDue(), TIMES.loan_linger_ns)
    done(nic, "threaded", GIVEN_BACK)
    want(nic, rfs(1))
    nic(PortChanged(PORT))
    assert written(nic(TimerDue())) == [("rps-flow-cnt:1", ON)]


def test_only_a_switch_of_rfs_needs_a_thread() -> None:
    assert switch_loan(rfs(1), LENDS) == "threaded"
    assert switch_loan(rfs(1, OFF), OF_EACH) == "threaded:1"
    assert switch_loan(rfs(1), PORT) is None
    assert switch_loan(rfs(1), NEVER) is None
    assert switch_loan(rfs(1), lent(LENDS, {"threaded"})) is None
    assert switch_loan(rfs(3), LENDS) is None  # there is no such queue now
    assert switch_loan(replace(rfs(1), setting="rps-cpus:1"), LENDS) is None
    assert switch_loan(to(0, Mode.STRICT).action, LENDS) is None


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


def test_a_switch_that_does_not_wait_for_its_thread_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device, "switch_loan", lambda action, port: None)
    found = check_switch(on=True, port=LENDS)
    assert found.broken is not None
    assert found.broken.startswith("I8"), str(found)


def test_threads_that_are_given_back_under_a_switch_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device, "_loan_due_ns", lambda known: known.loan.due_ns(known.times))
    found = check_switch(on=True, port=LENDS)
    assert found.broken is not None
    assert found.broken.startswith("I8"), str(found)
