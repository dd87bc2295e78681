# SPDX-License-Identifier: GPL-2.0-or-later
"""NAPI threads are borrowed when a move or a switch of RFS waits for them, and given back soon."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from atfnd.model import Action, ActionKind, Outcome
from atfnd.model.reason import Code
from atfnd.move.choose import switch_loan
from atfnd.move.command import Command, Ended, Hold, Watch, Write
from atfnd.move.device import NicMoves, due_ns
from atfnd.move.event import (
    Asleep,
    PortChanged,
    QueueHeld,
    Released,
    Seen,
    TimerDue,
    Wanted,
    Written,
)
from atfnd.move.loan import BORROWED, GIVEN_BACK
from atfnd.move.port import NO_THREAD, Port, Stage, lent
from atfnd.move.verdict import Mode, Verdict
from tests.move.check import LENDS, PORT
from tests.move.stepped import TIMES, SteppedNic, to
from tests.values import key

OF_EACH = LENDS._replace(
    rings=tuple(ring._replace(loan=f"threaded:{index}") for index, ring in enumerate(LENDS.rings))
)


Switched = list[tuple[str | None, str | None]]


@pytest.fixture
def nic() -> SteppedNic:
    return on(LENDS)


def on(port: Port) -> SteppedNic:
    made = SteppedNic()
    made.device = NicMoves(port, TIMES)
    return made


def switched(commands: tuple[Command, ...]) -> Switched:
    """Which settings were written, with their values."""
    writes = (each.action for each in commands if isinstance(each, Write))
    return [(each.setting, each.value) for each in writes if each.setting is not None]


def held(commands: tuple[Command, ...]) -> list[int]:
    return [each.queue for each in commands if isinstance(each, Hold)]


def done(nic: SteppedNic, value: str, code: int = 0, name: str = "threaded") -> tuple[Command, ...]:
    """The answer to the write of a switch."""
    asked = (*nic.device.loan.asked, *nic.device.turning)
    action = next(each for each in asked if (each.setting, each.value) == (name, value))
    outcome = Outcome(action, nic.now_ns, code, None, "the kernel said no" if code else "")
    return nic(Written(outcome, nic.now_ns, nic.now_ns))


def moved(nic: SteppedNic, wanted: Wanted) -> None:
    """A hold that was begun goes on to its end."""
    nic(QueueHeld(1, nic.now_ns))
    nic.written(wanted)
    nic(Asleep(0, nic.now_ns + 200_000), 200_000)
    nic(Released(1, True), 1000)


def borrowed(nic: SteppedNic, number: int = 0) -> Wanted:
    """A move for which threads are borrowed, from which on it is held."""
    wanted = to(number, Mode.STRICT)
    assert switched(nic(wanted)) == [("threaded", BORROWED)]
    assert held(done(nic, BORROWED)) == [1]
    return wanted


def test_what_is_wanted_before_the_answer_asks_for_nothing_more(nic: SteppedNic) -> None:
    nic(to(0, Mode.STRICT))
    assert nic(to(1, Mode.STRICT)) == ()
    assert held(done(nic, BORROWED)) == [1]


def test_threads_are_given_back_when_no_move_was_held_for_a_while(nic: SteppedNic) -> None:
    moved(nic, borrowed(nic))
    assert switched(nic(TimerDue(), TIMES.loan_linger_ns // 2)) == []
    assert due_ns(nic.device) is not None
    assert switched(nic(TimerDue(), TIMES.loan_linger_ns)) == [("threaded", GIVEN_BACK)]
    assert switched(nic(TimerDue(), TIMES.loan_linger_ns)) == []  # asked for once
    done(nic, GIVEN_BACK)
    assert not nic.device.loan.settings
    assert nic.device.port == LENDS


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EBUSY])
def test_a_thread_that_another_program_took_away_is_counted_on_no_more(
    nic: SteppedNic, code: int
) -> None:
    moved(nic, borrowed(nic))
    nic(PortChanged(LENDS))
    assert switched(nic(to(1, Mode.STRICT), 10_000_000)) == [("threaded", BORROWED)]
    assert held(done(nic, BORROWED, code)) == []
    assert nic.device.port == LENDS
    assert bool(nic.device.loan.settings) is (code == errno.EBUSY)


def test_a_load_that_never_ends_has_threads_for_two_thirds_of_the_time(nic: SteppedNic) -> None:
    wanted, began_ns = borrowed(nic), nic.now_ns
    for number in range(1, 1000):
        moved(nic, wanted)
        wanted = to(number, Mode.STRICT)
        nic(wanted, 10_000_000)
        if nic.device.loan.asked:
            break
    assert nic.now_ns - began_ns <= TIMES.loan_max_ns + 20_000_000
    assert switched(nic.commands) == [("threaded", GIVEN_BACK)]
    assert held(nic.commands) == []
    assert switched(done(nic, GIVEN_BACK)) == []  # its flow waits
    assert (due_ns(nic.device) or 0) <= nic.now_ns + TIMES.loan_rest_ns
    assert switched(nic(to(number + 1, Mode.STRICT), TIMES.loan_rest_ns // 2)) == []
    assert switched(nic(TimerDue(), TIMES.loan_rest_ns // 2)) == [("threaded", BORROWED)]
    assert held(done(nic, BORROWED)) == [1]


def test_a_refusal_is_the_reason_of_what_is_put_off(nic: SteppedNic) -> None:
    nic(to(0, Mode.STRICT))
    done(nic, BORROWED, errno.EBUSY)
    (ended,) = (each for each in nic.commands if isinstance(each, Ended))
    assert ended.verdict is Verdict.DEFERRED
    assert NO_THREAD in str(ended.why)
    assert "the kernel said no" in str(ended.why)
    assert switched(nic(to(0, Mode.STRICT), TIMES.loan_refused_ns // 2)) == []
    assert nic.verdicts() == [Verdict.DEFERRED]
    assert switched(nic(to(0, Mode.STRICT), TIMES.loan_refused_ns)) == [("threaded", BORROWED)]


def test_a_bounded_move_waits_for_a_gap_if_nothing_can_be_borrowed(nic: SteppedNic) -> None:
    assert switched(nic(to(0, Mode.BOUNDED))) == [("threaded", BORROWED)]
    assert Watch(key(0), frozenset({0}), frozenset({1})) in done(nic, BORROWED, errno.EPERM)
    assert nic.verdicts() == []


def test_only_the_queues_of_the_move_borrow_where_each_can() -> None:
    """What is borrowed besides makes the loan no longer."""
    nic = on(OF_EACH)
    first = to(0, Mode.STRICT)
    assert switched(nic(first)) == [("threaded:0", BORROWED), ("threaded:1", BORROWED)]
    assert held(done(nic, BORROWED, name="threaded:0")) == []
    assert held(done(nic, BORROWED, name="threaded:1")) == [1]
    assert nic.device.port.rings[2] == OF_EACH.rings[2]
    began_ns = nic.now_ns
    moved(nic, first)
    assert switched(nic(to(1, Mode.STRICT, old=0, new=2), 10_000_000)) == [("threaded:2", BORROWED)]
    done(nic, BORROWED, name="threaded:2")
    assert nic.device.loan.since_ns == began_ns
    assert {*nic.device.loan.settings} == {"threaded:0", "threaded:1", "threaded:2"}


CANNOT = LENDS._replace(rings=(LENDS.rings[0], LENDS.rings[1]._replace(loan=None), LENDS.rings[2]))


@pytest.mark.parametrize(("port", "verdict"), [(LENDS, Verdict.PROVEN), (CANNOT, Verdict.UNPROVEN)])
def test_a_move_stays_proven_when_its_threads_are_given_back(
    nic: SteppedNic, port: Port, verdict: Verdict
) -> None:
    """A queue that cannot borrow is not taken for one that did."""
    moved(nic, borrowed(nic))
    nic(PortChanged(port))
    nic(Seen(key(0), 1, nic.now_ns))
    nic(TimerDue(), TIMES.verify_ns)
    assert nic.verdicts() == [verdict]


def test_a_hold_whose_threads_are_gone_proves_nothing(nic: SteppedNic) -> None:
    wanted = borrowed(nic)
    nic(QueueHeld(1, nic.now_ns))
    nic(PortChanged(LENDS))
    nic.written(wanted)
    nic(Asleep(0, nic.now_ns + 200_000), 200_000)
    nic(Released(1, True), 1000)
    nic(TimerDue(), TIMES.verify_ns)
    assert nic.verdicts() == [Verdict.UNPROVEN]


@pytest.mark.parametrize(
    "port",
    [
        LENDS._replace(stages=frozenset({Stage.RPS})),
        LENDS._replace(asynchronous=True),
        LENDS._replace(rings=tuple(r._replace(rx_usecs=None) for r in LENDS.rings)),
        LENDS._replace(rings=tuple(r._replace(loan=None) for r in LENDS.rings)),
    ],
)
def test_nothing_is_borrowed_where_a_thread_would_not_help(port: Port, nic: SteppedNic) -> None:
    nic.device = nic.device._replace(port=port)
    assert switched(nic(to(0, Mode.STRICT))) == []
    assert nic.verdicts() == [Verdict.DEFERRED]


LATE_NS = 50_000
KEEPS = PORT._replace(
    rings=tuple(
        ring._replace(
            gro_flush_timeout_ns=LATE_NS, defers=True, timeout=f"gro-flush-timeout:{index}"
        )
        for index, ring in enumerate(PORT.rings)
    )
)


def keeping(timeout_ns: int = LATE_NS) -> SteppedNic:
    """Its rings are polled by a timer, and keep packets for it."""
    rings = (ring._replace(gro_flush_timeout_ns=timeout_ns) for ring in KEEPS.rings)
    return on(KEEPS._replace(rings=tuple(rings)))


def test_a_ring_that_has_to_drain_keeps_nothing_for_a_timer_meanwhile() -> None:
    nic, wanted = keeping(), to(0, Mode.STRICT)
    assert switched(nic(wanted)) == [("gro-flush-timeout:0", "0")]
    assert held(done(nic, "0", name="gro-flush-timeout:0")) == [1]
    moved(nic, wanted)
    ended = nic(TimerDue(), TIMES.verify_ns)
    assert nic.verdicts() == [Verdict.QUIET]
    later = nic(TimerDue(), TIMES.loan_linger_ns)
    assert switched(ended + later) == [("gro-flush-timeout:0", str(LATE_NS))]
    done(nic, str(LATE_NS), name="gro-flush-timeout:0")
    assert not nic.device.loan.settings
    assert nic.device.port.rings[0].gro_flush_timeout_ns == LATE_NS
    assert not nic.device.port.rings[0].defers  # not known until it is read


@pytest.mark.parametrize("code", [0, errno.EBUSY])
def test_a_timeout_that_a_policy_writes_meanwhile_is_not_given_back(code: int) -> None:
    nic, wanted = keeping(), to(0, Mode.STRICT)
    nic(wanted)
    done(nic, "0", name="gro-flush-timeout:0")
    moved(nic, wanted)
    asked = Action.of_setting("nic", "gro-flush-timeout:0", "300000")
    nic(Wanted(asked, Mode.STRICT))
    assert switched(nic(TimerDue(), TIMES.verify_ns)) == [("gro-flush-timeout:0", "300000")]
    nic(Written(Outcome(asked, nic.now_ns, code, None, ""), nic.now_ns, nic.now_ns))
    given = switched(nic(TimerDue(), TIMES.loan_linger_ns))
    assert given == ([("gro-flush-timeout:0", str(LATE_NS))] if code else [])


def test_a_timer_that_runs_out_late_prevents_the_move() -> None:
    nic = keeping(TIMES.hold_max_ns // 4 + 1)
    assert switched(nic(to(0, Mode.STRICT))) == []
    assert nic.verdicts() == [Verdict.DEFERRED]


def test_a_timer_that_is_set_already_runs_out_first() -> None:
    """Until then no interrupt says what has come: T_pipe is longer by it."""
    lent_port = lent(KEEPS, {"gro-flush-timeout:0"})
    assert lent_port.rings[0].irq_ns == KEEPS.rings[0].irq_ns + LATE_NS
    assert lent_port.rings[0].defers is False
    assert lent_port.rings[1] == KEEPS.rings[1]


def follows(queue: int = 0) -> Wanted:
    action = Action(ActionKind.QUEUE_CPU, "eth0", None, None, 0, 3, Code.UNSAID(), "", queue)
    return Wanted(action, Mode.STRICT, frozenset({queue}))


def test_a_queue_that_defers_its_interrupt_follows_without_its_timeout() -> None:
    nic = keeping()
    rings = (ring._replace(thread=False) for ring in nic.device.port.rings)
    nic.device = NicMoves(nic.device.port._replace(rings=tuple(rings)), TIMES)
    wanted = follows()
    assert switched(nic(wanted)) == [("gro-flush-timeout:0", "0")]
    written = done(nic, "0", name="gro-flush-timeout:0")
    assert [each.action for each in written if isinstance(each, Write)] == [wanted.action]
    assert nic.device.loan.used_ns == nic.now_ns


# What of a queue is switched under a thread, too.

ON, OFF = "256", "0"
TABLE = Action.of_setting("nic", "rps-sock-flow-entries", "32768")
NEVER = LENDS._replace(rings=tuple(ring._replace(loan=None) for ring in LENDS.rings))


def rfs(queue: int = 0, value: str = ON) -> Action:
    return Action.of_setting("nic", f"rps-flow-cnt:{queue}", value)


def want(nic: SteppedNic, *actions: Action, after_ns: int = 0) -> Switched:
    """What is written once all of these are wanted."""
    commands: tuple[Command, ...] = ()
    nic.now_ns += after_ns
    for each in actions:
        commands += nic(Wanted(each, Mode.STRICT))
    return switched(commands)


def turned(nic: SteppedNic) -> None:
    """RFS of a queue is on, by threads that are lent."""
    assert want(nic, rfs()) == [("threaded", BORROWED)]
    assert switched(done(nic, BORROWED)) == [("rps-flow-cnt:0", ON)]
    assert switched(done(nic, ON, name="rps-flow-cnt:0")) == []


def test_what_is_switched_while_threads_are_given_back_waits_for_the_answer(
    nic: SteppedNic,
) -> None:
    turned(nic)
    assert switched(nic(TimerDue(), TIMES.loan_linger_ns)) == [("threaded", GIVEN_BACK)]
    assert want(nic, rfs(1)) == []
    assert switched(done(nic, GIVEN_BACK)) == []
    rest_ns = (due_ns(nic.device) or 0) - nic.now_ns
    assert rest_ns == TIMES.loan_rest_ns
    assert switched(nic(TimerDue(), rest_ns)) == [("threaded", BORROWED)]
    assert switched(done(nic, BORROWED)) == [("rps-flow-cnt:1", ON)]


def test_what_waits_until_threads_may_be_borrowed_again_is_in_nobodys_way(nic: SteppedNic) -> None:
    turned(nic)
    nic(TimerDue(), TIMES.loan_linger_ns)
    done(nic, GIVEN_BACK)
    assert want(nic, rfs(1)) == []
    assert want(nic, TABLE) == [("rps-sock-flow-entries", "32768")]
    assert switched(done(nic, "32768", name="rps-sock-flow-entries")) == []
    assert [each.action.key for each in nic(to(0, Mode.IMMEDIATE)) if isinstance(each, Write)]
    assert [*nic.device.settings] == [rfs(1)]


@pytest.mark.parametrize("code", [0, errno.EBUSY])
def test_a_borrowed_thread_that_a_policy_asks_for_is_not_given_back(code: int) -> None:
    nic, asked = on(OF_EACH), Action.of_setting("nic", "napi-thread:0", "2")
    assert want(nic, rfs(0)) == [("threaded:0", BORROWED)]
    done(nic, BORROWED, name="threaded:0")
    assert switched(done(nic, ON, name="rps-flow-cnt:0")) == []
    assert want(nic, asked) == [("napi-thread:0", "2")]
    done(nic, "2", code, "napi-thread:0")
    ring = nic.device.port.rings[0]
    assert (ring.thread, ring.loan) == ((True, "threaded:0") if code else (None, None))
    given = switched(nic(TimerDue(), TIMES.loan_linger_ns))
    assert given == ([("threaded:0", GIVEN_BACK)] if code else [])


def test_the_threads_of_all_that_is_switched_are_borrowed_at_once() -> None:
    nic = on(OF_EACH)
    first = to(0, Mode.IMMEDIATE)
    nic(first)
    assert want(nic, rfs(0), rfs(2)) == []
    nic.written(first)
    asked = switched(nic(TimerDue(), TIMES.verify_ns))
    assert asked == [("threaded:0", BORROWED), ("threaded:2", BORROWED)]
    assert switched(done(nic, BORROWED, name="threaded:0")) == []
    both = [("rps-flow-cnt:0", ON), ("rps-flow-cnt:2", ON)]
    assert switched(done(nic, BORROWED, name="threaded:2")) == both


def test_where_nothing_is_lent_it_is_written_and_refused_as_without_threads(
    nic: SteppedNic,
) -> None:
    assert want(nic, rfs()) == [("threaded", BORROWED)]
    assert switched(done(nic, BORROWED, errno.EBUSY)) == [("rps-flow-cnt:0", ON)]
    assert switched(done(nic, ON, errno.EOPNOTSUPP, "rps-flow-cnt:0")) == []
    assert not nic.device.port.rings[0].hands_on
    assert want(nic, rfs(), after_ns=TIMES.loan_refused_ns // 2) == [("rps-flow-cnt:0", ON)]
    done(nic, ON, errno.EOPNOTSUPP, "rps-flow-cnt:0")
    again = want(nic, rfs(), after_ns=TIMES.loan_refused_ns)
    assert again == [("threaded", BORROWED)]


def test_a_switch_waits_for_moves_and_is_held_by_their_loan(nic: SteppedNic) -> None:
    wanted = to(0, Mode.STRICT)
    assert switched(nic(wanted)) == [("threaded", BORROWED)]
    done(nic, BORROWED)
    assert want(nic, rfs(2)) == []
    moved(nic, wanted)
    end_ns = due_ns(nic.device) or 0
    while nic.device.live:
        nic(TimerDue(), max(end_ns - nic.now_ns, 0))
        if nic.device.loan.asked:  # it lasts no longer for a setting that waits
            done(nic, GIVEN_BACK)
        end_ns = due_ns(nic.device) or 0
    nic(TimerDue(), TIMES.loan_rest_ns)
    assert nic.device.loan.asked
    assert switched(done(nic, BORROWED)) == [("rps-flow-cnt:2", ON)]


def test_a_move_waits_for_the_switch_and_is_held_by_its_loan(nic: SteppedNic) -> None:
    want(nic, rfs(2))
    assert nic(to(0, Mode.STRICT)) == ()
    assert held(done(nic, BORROWED)) == []
    assert held(done(nic, ON, name="rps-flow-cnt:2")) == [1]


def test_only_a_switch_of_rfs_needs_a_thread() -> None:
    assert switch_loan(rfs(1), LENDS) == "threaded"
    assert switch_loan(rfs(1, OFF), OF_EACH) == "threaded:1"
    assert switch_loan(rfs(1), PORT) is None
    assert switch_loan(rfs(1), NEVER) is None
    assert switch_loan(rfs(1), lent(LENDS, {"threaded"})) is None
    assert switch_loan(rfs(3), LENDS) is None  # there is no such queue now
    assert switch_loan(replace(rfs(1), setting="rps-cpus:1"), LENDS) is None
    assert switch_loan(to(0, Mode.STRICT).action, LENDS) is None
