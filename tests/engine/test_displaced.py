# SPDX-License-Identifier: GPL-2.0-or-later
"""Queues that the kernel or irqbalance took from their CPUs: where the engine has them put."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from atfnd.engine.command import Command, CountAsOurs, WriteSettings
from atfnd.engine.engine import Engine
from atfnd.engine.event import (
    CpusChanged,
    CpusRead,
    Event,
    InterruptsSpared,
    MovesReported,
    NicAttached,
    NicLost,
    NicRenamed,
    QueuesLoosened,
    TakenOut,
)
from atfnd.engine.placement.queues import LINK_FLAP, OFFLINE, ONLINE, UNASKED
from atfnd.engine.table.memory import Memory
from atfnd.model import Action, ActionKind, Cpu, Node, Outcome, Policy, Queue, Topology
from tests.engine.standing import like
from tests.engine.test_homeless import without
from tests.values import NIC, RULE

__all__: list[str] = []

QUEUES = tuple(Queue(n, 100 + n, 40 + n, n, False, None) for n in range(4))


class Host:
    """One armed NIC, a queue on each of CPUs 0 to 3; CPUs 2 and 3 are siblings. All that is asked
    for is done, unless it is `refused`."""

    def __init__(self, dedicated: frozenset[int] = frozenset()) -> None:
        memory = Memory.of(Policy((), (RULE,), "auto", 64, 0, ()))
        memory.in_force = replace(memory.in_force, dedicated=dedicated)
        self.engine, self.name = Engine(memory), "nic"
        self.view, self.refused = replace(NIC, queues=QUEUES), False
        self.engine.handle(NicAttached(self.view, armed=True), 0)

    def changes(self, **values: object) -> None:
        self.view = replace(self.view, **values)  # type: ignore[arg-type]
        for event in like(self.view):
            self.engine.handle(event, 0)

    def tell(self, event: Event) -> list[tuple[int | None, int | None, str]]:
        """Returns which queue is put on which CPU, and why."""
        return [(each.queue, each.new, each.why) for each in self._done(self._handle(event))]

    def offline(self, *cpus: int) -> list[tuple[int | None, int | None, str]]:
        self.engine.handle(CpusRead(without(*cpus)), 0)
        return self.tell(CpusChanged(self.name))

    def _handle(self, event: Event) -> Sequence[Command]:
        commands = self.engine.handle(event, 0)
        counted = {each for c in commands if isinstance(c, CountAsOurs) for each in c.settings}
        written = {f"queue-cpu:{each.queue}" for each in _actions(commands)}
        assert counted == written  # else the write would find another program's value there
        return commands

    def _done(self, commands: Sequence[Command]) -> list[Action]:
        actions = _actions(commands)
        assert {each.kind for each in actions} <= {ActionKind.QUEUE_CPU}
        for action in () if self.refused else actions:
            queues = [
                replace(q, cpu=action.new) if q.index == action.queue else q
                for q in self.view.queues
            ]
            self.changes(queues=tuple(queues))
            self.engine.handle(MovesReported((Outcome(action, 0, 0, None, ""),)), 0)
        return actions


def _actions(commands: Sequence[Command]) -> list[Action]:
    return [each for c in commands if isinstance(c, WriteSettings) for each in c.plan]


@pytest.fixture
def host() -> Host:
    return Host()


def test_a_queue_leaves_its_cpu_and_returns_with_it(host: Host) -> None:
    assert host.offline() == []
    assert host.offline(3) == [(3, 2, OFFLINE)]
    assert host.offline(3, 7) == []  # it has a CPU, and its own is not back yet
    assert host.offline() == [(3, 3, ONLINE)]
    assert host.offline() == []


def test_it_returns_to_its_first_cpu_however_often_it_had_to_leave(host: Host) -> None:
    assert host.offline(3) == [(3, 2, OFFLINE)]
    assert [(queue, cpu) for queue, cpu, _ in host.offline(2, 3)] == [(2, 0), (3, 1)]
    assert sorted(host.offline()) == [(2, 2, ONLINE), (3, 3, ONLINE)]


def test_it_does_not_stop_elsewhere_on_its_way_back(host: Host) -> None:
    """The CPU that it went to goes offline as its own comes back."""
    host.offline(3)
    assert (3, 3, ONLINE) in (moves := host.offline(2))
    assert [queue for queue, _, _ in moves].count(3) == 1


def test_distances_of_nodes_and_dedicated_cpus_are_known() -> None:
    host = Host(dedicated=frozenset({2}))
    assert host.offline(3) == [(3, 0, OFFLINE)]
    host, cpus = Host(), [Cpu(n, n != 3, n, 0, n, (n,), (n,)) for n in range(4)]
    far = (
        Node(0, (0,), {0: 10, 3: 40}),
        Node(1, (1,), {1: 10, 3: 30}),
        Node(2, (2,), {2: 10, 3: 20}),
    )
    host.engine.handle(CpusRead(Topology(tuple(cpus), far)), 0)
    assert host.tell(CpusChanged("nic")) == [(3, 2, OFFLINE)]


def test_where_the_kernel_refuses_it_returns_nevertheless(host: Host) -> None:
    host.refused = True
    assert host.offline(3) == [(3, 2, OFFLINE)]
    host.changes(queues=(*QUEUES[:3], replace(QUEUES[3], cpu=None)))
    assert host.offline() == [(3, 3, ONLINE)]


def test_what_another_program_placed_stays(host: Host) -> None:
    host.changes(manual=frozenset({"queue-cpu:3"}))
    assert host.offline(2, 3) == [(2, 0, OFFLINE)]
    assert host.tell(QueuesLoosened("nic", {3: 3, 1: 1})) == [(1, 1, LINK_FLAP)]


def test_a_queue_that_was_put_back_is_not_taken_away_when_its_cpu_returns(host: Host) -> None:
    """A restore puts a queue where it was found: where it came from then is history."""
    host.offline(3)
    host.engine.handle(TakenOut("nic", ()), 0)
    assert host.offline() == []


def test_a_nic_that_is_not_armed_is_left_alone(host: Host) -> None:
    host.changes(armed=False)
    assert host.offline(3) == []
    assert host.tell(QueuesLoosened("nic", {1: 1})) == []
    assert host.tell(InterruptsSpared("nic", frozenset({41}), {"queue-cpu:1": "1"})) == []
    host.changes(armed=True)
    assert host.offline() == []


@pytest.mark.parametrize("attached", [True, False])
def test_a_nic_that_is_renamed_takes_along_where_its_queues_were(
    host: Host, attached: bool
) -> None:
    host.offline(3)
    host.engine.handle(NicRenamed("nic", "new"), 0)
    assert host.engine.views.keys() == {"new"}
    host.view, host.name = replace(host.view, name="new"), "new"
    host.engine.handle(NicAttached(host.view, armed=True) if attached else NicLost("new"), 0)
    assert host.offline() == ([(3, 3, ONLINE)] if attached else [])


def test_one_that_is_gone_leaves_nothing_behind(host: Host) -> None:
    host.offline(3)
    host.engine.handle(NicLost("nic"), 0)
    host.engine.handle(NicAttached(host.view, armed=True), 0)
    assert host.offline() == []


def test_queues_go_back_where_a_flap_took_them_from(host: Host) -> None:
    host.changes(queues=tuple(replace(queue, cpu=None) for queue in QUEUES))
    moves = host.tell(QueuesLoosened("nic", {1: 3, 2: 0, 9: 1}))
    assert moves == [(1, 3, LINK_FLAP), (2, 0, LINK_FLAP)]
    assert host.tell(QueuesLoosened("nic", {})) == []


def test_what_irqbalance_moved_before_it_was_asked_goes_back(host: Host) -> None:
    moved = {"queue-cpu:0": "0", "queue-cpu:1": "1", "queue-cpu:2": "0-3", "xps-cpus:1": "1"}
    host.changes(queues=tuple(replace(queue, cpu=3) for queue in QUEUES))
    assert host.tell(InterruptsSpared("nic", frozenset({41, 42, 43}), moved)) == [(1, 1, UNASKED)]
    assert host.tell(InterruptsSpared("nic", frozenset({43}), moved)) == []
