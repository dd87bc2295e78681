# SPDX-License-Identifier: GPL-2.0-or-later
"""Whatever is wanted, refused, lost or raised: strict keeps order, and nothing stays quiesced."""

from __future__ import annotations

import errno

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from atfnd.model import Action, ActionKind, Outcome
from atfnd.move.command import Ended
from atfnd.move.device import NicMoves
from atfnd.move.event import (
    Event,
    EvidenceLost,
    FlowClosed,
    Polled,
    PortChanged,
    Reset,
    TimerDue,
    Wanted,
)
from atfnd.move.mover import Mover
from atfnd.move.port import Stage
from atfnd.move.timer import Times
from atfnd.move.verdict import Mechanism, Mode, Verdict
from tests.move.check import PORT
from tests.move.driven import driven
from tests.move.simulated import FLOWS, PORT_WRITE_NS, QUEUES, SimulatedNic
from tests.values import key

TIMES = Times(arm_ns=2_000_000, quiet_ns=100_000, verify_ns=1_000_000, follow_ns=1_000_000)
RINGS = tuple(ring._replace(size=256, service_pps=1e6) for ring in PORT.rings)
LIKELY = PORT._replace(rings=RINGS, write_ns=PORT_WRITE_NS)


def mover(nic: SimulatedNic) -> Mover:
    return Mover(nic, NicMoves(LIKELY, TIMES))


def to(nic: SimulatedNic, number: int, queue: int, mode: Mode = Mode.STRICT) -> Wanted:
    flow = key(number)
    old = nic.route[flow]
    action = Action(ActionKind.REWRITE, "nic", flow, number, old, queue, "", "")
    return Wanted(action, mode, frozenset({old}), frozenset({nic.rss[flow]}))


def ends(said: list[Outcome | Ended]) -> list[Ended]:
    return [each for each in said if isinstance(each, Ended)]


def until_ended(moves: Mover, nic: SimulatedNic, *events: Event) -> list[Ended]:
    """Tell events, then what is observed, until nothing is under way."""
    ended = ends(driven(moves, *events))
    while (due_ns := moves.due_ns()) is not None:
        observed = nic.evidence(min(due_ns, nic.time_ns + 100_000))
        ended += ends(driven(moves, *observed, *nic.idle(), TimerDue()))
    return ended


class Moving(RuleBasedStateMachine):
    """Four flows over three queues; every mode, and everything that may go wrong."""

    @initialize(seed=st.integers(0, 1 << 16), strict=st.booleans())
    def begin(self, seed: int, strict: bool) -> None:
        self.nic, self.strict = SimulatedNic(seed), strict
        self.moves = mover(self.nic)
        self.turned = 0
        self.verdicts: set[Verdict] = set()

    def tell(self, *events: Event) -> None:
        self.verdicts |= {end.verdict for end in ends(driven(self.moves, *events))}

    @rule(number=st.integers(0, FLOWS - 1), queue=st.integers(0, QUEUES - 1),
          mode=st.sampled_from(Mode))  # fmt: skip
    def want(self, number: int, queue: int, mode: Mode) -> None:
        self.nic.silent.discard(key(number))
        self.tell(to(self.nic, number, queue, Mode.STRICT if self.strict else mode))

    @rule(number=st.integers(0, FLOWS - 1))
    def retire(self, number: int) -> None:
        flow = key(number)
        if not any(flow in entry for ring in self.nic.rings for entry in ring):
            self.nic.silent.add(flow)
            action = Action(ActionKind.DELETE, "nic", flow, number, 0, None, "", "")
            self.tell(FlowClosed(flow), Wanted(action, Mode.STRICT, live=False))

    @rule()
    def turn_a_setting(self) -> None:
        self.turned += 1
        action = Action.of_setting("nic", "rps-cpus:0", None)
        self.tell(Wanted(action, Mode.STRICT))

    @rule(ns=st.integers(1, 3_000_000))
    def observe(self, ns: int) -> None:
        self.tell(*self.nic.evidence(self.nic.time_ns + ns), *self.nic.idle(), TimerDue())

    @rule(queue=st.integers(0, QUEUES - 1))
    def stall_or_not(self, queue: int) -> None:
        self.nic.stalled ^= {queue}

    @rule(event=st.sampled_from([EvidenceLost(), Reset()]))
    def lose(self, event: Event) -> None:
        self.tell(event)

    @rule(talking=st.booleans(), code=st.sampled_from([0, errno.EIO, errno.ENOSPC]),
          hold=st.booleans(), dies=st.booleans())  # fmt: skip
    def mood(self, talking: bool, code: int, hold: bool, dies: bool) -> None:
        nic = self.nic
        nic.talking, nic.refuse, nic.refuse_hold, nic.break_hold = talking, code, not hold, dies

    @rule(stages=st.sampled_from([frozenset(), frozenset({Stage.RPS})]))
    def otherwise(self, stages: frozenset[Stage]) -> None:
        self.tell(PortChanged(LIKELY._replace(stages=stages)))

    @precondition(lambda self: self.moves.due_ns() is None)
    @rule()
    def a_journal_that_cannot_be_written(self) -> None:
        self.nic.lost_journal = True
        self.nic.refuse_hold = False
        if self.nic.route[key(0)] != 0:
            self.strict = False  # what a dead daemon has begun is not its to prove
            self.moves = mover(self.nic)  # for which no flow rests
            with pytest.raises(OSError, match="journal"):
                driven(self.moves, to(self.nic, 0, 0, Mode.IMMEDIATE))
            self.moves = mover(self.nic)
            self.nic.watched.clear()
        self.nic.lost_journal = False

    @invariant()
    def strict_keeps_order_or_says_that_it_did_not(self) -> None:
        broken = any(move.broken for move in self.moves.device.live.values())
        said = self.verdicts & {Verdict.UNPROVEN, Verdict.VIOLATED, Verdict.RESYNC}
        assert broken or said or not self.strict or not any(self.nic.overtaken.values())

    @invariant()
    def nothing_stays_quiesced(self) -> None:
        assert not self.nic.quiesced

    @invariant()
    def a_setting_waits_for_moves(self) -> None:
        written = [a for a in self.nic.written if a.kind is ActionKind.SETTING]
        device = self.moves.device
        assert len(written) + len(device.settings) <= self.turned
        assert not (device.turning and device.live)

    def teardown(self) -> None:
        if hasattr(self, "moves"):
            self.nic.stalled.clear()
            until_ended(self.moves, self.nic, TimerDue())
            assert not self.moves.device.live
            assert not self.moves.device.waiting
            assert not self.moves.device.settings
            assert not self.nic.watched


TestMoving = Moving.TestCase
TestMoving.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("seed", range(20))
def test_strict_moves_under_load_are_proven_and_in_order(seed: int) -> None:
    nic = SimulatedNic(seed)
    moves = mover(nic)
    for queue in (1, 2, 0, 2):
        [end] = until_ended(moves, nic, to(nic, 0, queue))
        assert (end.mechanism, end.verdict) == (Mechanism.HOLD, Verdict.PROVEN)
    assert not any(nic.overtaken.values())


def test_immediate_moves_off_a_stalled_ring_reorder_and_say_so() -> None:
    nic = SimulatedNic(1)
    moves = mover(nic)
    nic.stalled = {0}
    nic.pass_time(100_000)
    said = ends(driven(moves, to(nic, 0, 1, Mode.IMMEDIATE)))
    nic.evidence(nic.time_ns + 100_000)
    nic.pass_time(100_000)
    nic.stalled = set()
    while not said:
        said = ends(driven(moves, *nic.evidence(nic.time_ns + 50_000), TimerDue()))
    assert said[0].verdict is Verdict.VIOLATED
    assert said[0].violations == nic.overtaken[key(0)] > 0


def test_a_ring_that_does_not_drain_is_given_up_and_called_unproven() -> None:
    nic = SimulatedNic(1)
    nic.stalled = {0}
    [end] = until_ended(mover(nic), nic, to(nic, 0, 1))
    assert end.verdict is Verdict.UNPROVEN
    assert "not drained within" in str(end.why)
    assert end.took_ns >= TIMES.hold_max_ns


CALLS = ["now_ns", "watch", "hold", "in_force", "write", "drain_evidence", "evidence", "release"]


@pytest.mark.parametrize("call", CALLS)
def test_whatever_raises_nothing_stays_quiesced(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nic = SimulatedNic(1)
    real = getattr(nic, call)

    def once(*arguments: object) -> object:
        monkeypatch.setattr(nic, call, real)
        real(*arguments)
        raise RuntimeError("a bug")

    moves = mover(nic)
    monkeypatch.setattr(nic, call, once)
    with pytest.raises(RuntimeError, match="a bug") as raised:
        driven(moves, to(nic, 0, 1))
    assert not nic.quiesced
    assert raised.tb  # which keeps what was under way: it was ended, not collected


class Unattended(SimulatedNic):
    """Its first hold is refused, and so late that the move's time is over: nobody ran us."""

    refusals = 1

    def hold(self, queue: int, until_ns: int, drains: frozenset[int]) -> int:
        if self.refusals:
            self.refusals -= 1
            self.time_ns = until_ns + 1
            raise OSError(errno.ETIMEDOUT, "others have the CPU")
        return super().hold(queue, until_ns, drains)


def test_an_answer_goes_to_the_move_that_asked() -> None:
    nic = Unattended(0)
    first, second = until_ended(mover(nic), nic, to(nic, 0, 1), to(nic, 3, 1), TimerDue())
    assert (first.verdict, second.verdict) == (Verdict.DEFERRED, Verdict.PROVEN)
    assert not nic.quiesced


@pytest.mark.parametrize("seed", range(20))
def test_what_somebody_else_deletes_is_not_late_by_us(seed: int) -> None:
    """Packets go to RSS's queue, which is the old one, in the middle of a proven move."""
    nic = SimulatedNic(seed)
    moves = mover(nic)
    said = ends(driven(moves, to(nic, 0, 1)))
    while key(0) not in nic.seen:
        nic.pass_time(10_000)
    nic.stalled = {1}
    nic.pass_time(10_000)
    nic.pass_time(10_000)
    nic.somebody_deletes(key(0))
    for _ in range(10):
        nic.pass_time(10_000)
    nic.stalled = set()
    for _ in range(10):
        nic.pass_time(10_000)
    [ended] = [*said, *until_ended(moves, nic, *nic.evidence(nic.time_ns))]
    assert ended.verdict in (Verdict.RESYNC, Verdict.PROVEN)
    assert ended.violations == 0
    assert not any(record.strikes for _, record in moves.device.records.items())
    assert nic.overtaken[key(0)] == 0 or ended.verdict is Verdict.RESYNC


def test_a_long_burst_of_evidence_is_not_copied_at_each_of_its_events() -> None:
    """It was: the daemon stood still for minutes after a hold beside a busy queue."""
    nic = SimulatedNic(1)
    moves = mover(nic)
    assert driven(moves, *(Polled(0, at_ns, 1, 64) for at_ns in range(200_000))) == []
