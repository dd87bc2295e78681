# SPDX-License-Identifier: GPL-2.0-or-later
"""Which mechanism moves a flow, and what is said when none does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.model import ActionKind, Actuator, FlowKey
from atfnd.move.choose import Choice, choose
from atfnd.move.event import Wanted
from atfnd.move.port import Port, Stage
from atfnd.move.timer import Times
from atfnd.move.verdict import Mechanism, Mode
from tests.move.check import PORT, wanted

TIMES = Times()
K2 = PORT._replace(actuator=Actuator.SHORT_GAP)
ANY = FlowKey(17, bytes(4), 53, bytes(4), 0)


def chosen(move: Wanted, port: Port = PORT, *demoted: Mechanism) -> Choice:
    return choose(move, port, TIMES, 1_000, frozenset(demoted))


def ring(**changes: object) -> Port:
    """PORT with other rings."""
    changed = PORT.rings[0]._replace(**changes)  # type: ignore[arg-type]
    return PORT._replace(rings=(changed,) * 3)


def on(*cpus: int, port: Port = PORT) -> Port:
    """The rings of a port are polled on these CPUs."""
    rings = zip(port.rings, cpus, strict=True)
    return port._replace(rings=tuple(each._replace(cpu=cpu) for each, cpu in rings))


REFUSALS = [
    (PORT._replace(asynchronous=True), "this NIC does not say when a filter takes effect"),
    (PORT._replace(stages=None), "between the queue's poll and the socket is not known"),
    (PORT._replace(stages=frozenset({Stage.RPS})), "RPS hands packets to other CPUs"),
    (PORT._replace(stages=frozenset({Stage.CPUMAP})), "(cpumap), so a poll's end is not yet"),
    (K2._replace(holds_max=1), "queues 1, 2 would have to be quiesced at once, and 1 can be"),
    (on(0, 0, 1), "queue 0 has to drain on CPU 0, which a quiesced queue keeps"),
    (on(0, 1, 0, port=K2), "queue 0 has to drain on CPU 0"),
    (on(0, 0, 1, port=K2._replace(holds_max=2)), "queue 0 has to drain on CPU 0"),
    (on(0, 1, 1, port=K2), "queue 2 has to drain on CPU 1"),
    (ring(no_hold="its NAPI is not threaded"), "queue 1 cannot be quiesced: its NAPI is not"),
    (ring(gro_flush_timeout_ns=20_000), "queue 0 holds packets in GRO (gro_flush_timeout)"),
    (ring(gro_flush_timeout_ns=None), "whether queue 0 holds packets in GRO is not known"),
    (ring(busy_poll=True), "an application may busy-poll queue 0"),
    (ring(busy_poll=None), "is not known"),
    (K2._replace(rings=(*PORT.rings[:2], PORT.rings[2]._replace(busy_poll=True))), "queue 2"),
    (ring(rx_usecs=None), "(rx-usecs) is not known"),
    (PORT._replace(write_ns=None), "how long writing a filter takes here is not known yet"),
    (ring(thread=None), "queue 0 has no NAPI thread, whose sleep would prove it empty"),
    (
        PORT._replace(write_ns=49_980_000),
        "be quiesced for 50.000 ms, and a move takes 50.000 ms",
    ),
]


@pytest.mark.parametrize(("port", "why"), REFUSALS, ids=[why for _, why in REFUSALS])
def test_strict_refuses_and_names_the_condition(port: Port, why: str) -> None:
    choice = chosen(wanted(), port)
    assert choice.mechanism is None
    assert why in str(choice.why)
    assert chosen(wanted()._replace(mode=Mode.BOUNDED), port).mechanism is Mechanism.GAP


def test_strict_holds_where_every_condition_is_met() -> None:
    through = on(0, 1, 2, port=K2._replace(holds_max=2))
    for port in (PORT, K2, on(0, 1, 0), through):
        assert chosen(wanted(), port).mechanism is Mechanism.HOLD


def test_strict_refuses_what_is_not_known_of_the_flow() -> None:
    assert "queues its packets come" in str(chosen(wanted()._replace(origins=None)).why)
    assert "RSS's queue is not known" in str(chosen(wanted()._replace(rss=None), K2).why)
    assert "queue 1 is gone" in str(chosen(wanted(), PORT._replace(rings=PORT.rings[:1])).why)
    delete = wanted(ActionKind.DELETE)._replace(rss=None)
    assert "queues its packets come" in str(chosen(delete).why)


def test_strict_refuses_what_goes_to_several_queues() -> None:
    """Which of them has drained proves nothing of the others."""
    several = wanted()._replace(rss=frozenset({1, 2}))
    delete = several._replace(action=replace(wanted(ActionKind.DELETE).action))
    assert delete.targets == frozenset({1, 2})
    why = chosen(delete, PORT._replace(holds_max=2)).why
    said = "by which of 2 queues RSS delivers it is not known, and it would go to more than one"
    assert f"hold: {said} queue" in str(why)


def test_birth_needs_a_rule_that_is_there_before_the_data() -> None:
    port = PORT._replace(write_ns=100, stages=frozenset({Stage.RPS}))
    new = wanted(ActionKind.INSERT)
    assert chosen(new._replace(first_data_ns=1_100), port).mechanism is Mechanism.BIRTH
    late = chosen(new._replace(first_data_ns=1_099), port)
    assert "data may come within 0.000 ms, sooner than the filter" in str(late.why)
    assert "birth: data may be in flight" in str(chosen(wanted(), port).why)
    late = chosen(new._replace(first_data_ns=1_100), port._replace(asynchronous=True))
    assert "birth: this NIC does not say when a filter takes effect" in str(late.why)


@pytest.mark.parametrize("stage", Stage, ids=lambda stage: stage.name)
def test_a_queue_follows_only_where_delivery_is_inline(stage: Stage) -> None:
    action = replace(wanted().action, kind=ActionKind.QUEUE_CPU, key=None, queue=0)
    follow = Wanted(action, Mode.BOUNDED, frozenset({0}))
    assert chosen(follow).mechanism is Mechanism.FOLLOW
    choice = chosen(follow, PORT._replace(stages=frozenset({stage})))
    assert choice.mechanism is None
    assert "follow: " in str(choice.why)


def test_a_queue_whose_interrupt_is_deferred_follows_with_a_thread_only() -> None:
    """A timer polls it on the CPU that it was on, whatever CPU the interrupt would go to."""
    action = replace(wanted().action, kind=ActionKind.QUEUE_CPU, key=None, queue=0)
    follow = Wanted(action, Mode.STRICT, frozenset({0}))
    by_timer = chosen(follow, ring(defers=True, thread=None))
    assert by_timer.mechanism is None
    assert "follow: queue 0 defers its interrupt (napi_defer_hard_irqs)" in str(by_timer.why)
    at_once = follow._replace(mode=Mode.IMMEDIATE)
    assert chosen(at_once, ring(defers=True, thread=None)).mechanism is None
    assert chosen(at_once, ring(defers=False, thread=None)).mechanism is Mechanism.NONE
    assert "is not known" in str(chosen(follow, ring(defers=None, thread=False)).why)
    assert chosen(follow, ring(defers=False, thread=False)).mechanism is Mechanism.FOLLOW
    assert chosen(follow, ring(defers=True, thread=True)).mechanism is Mechanism.FOLLOW


def test_a_flow_open_to_any_remote_has_no_gap_to_wait_for() -> None:
    action = replace(wanted().action, key=ANY)
    move = Wanted(action, Mode.BOUNDED, frozenset({0, 1, 2}), frozenset({0, 1, 2}))
    assert chosen(move).mechanism is Mechanism.HOLD
    assert "its gaps cannot be seen" in str(chosen(move, ring(busy_poll=True)).why)


def test_what_failed_a_flow_is_not_tried_again() -> None:
    bounded = wanted()._replace(mode=Mode.BOUNDED)
    assert chosen(bounded, PORT, Mechanism.HOLD).mechanism is Mechanism.GAP
    none = chosen(bounded, PORT, Mechanism.HOLD, Mechanism.GAP)
    assert none.mechanism is None
    assert "hold: it failed this flow before" in str(none.why)


def test_immediate_asks_for_nothing() -> None:
    anything = PORT._replace(asynchronous=True, stages=None)
    assert chosen(wanted()._replace(mode=Mode.IMMEDIATE), anything).mechanism is Mechanism.NONE
    assert chosen(wanted()._replace(live=False), anything).mechanism is Mechanism.NONE
