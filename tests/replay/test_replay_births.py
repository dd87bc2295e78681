# SPDX-License-Identifier: GPL-2.0-or-later
"""Births that were recorded, and what a policy decides by them: ports, connects, ends."""

from __future__ import annotations

from dataclasses import replace

from atfnd.model import (
    ActionKind,
    Connected,
    Connecting,
    FlowKey,
    Listening,
    Mode,
    NicView,
    Policy,
    Process,
    SocketGone,
    Thread,
)
from atfnd.replay.recording import (
    FORMAT,
    Line,
    Looked,
    RecordedBirth,
    RecordedBirths,
    RecordedListeners,
    RecordedMachine,
    Socket,
)
from atfnd.replay.replay import Replay
from tests.replay.test_replay import POLICY, SECOND_NS, audited, used
from tests.serve.published import topology
from tests.values import NIC, RULE, key

__all__: list[str] = []

ORDERED = replace(POLICY, flows=(replace(RULE, order=Mode.STRICT),))
SERVER = Thread(7, 7, "server", None)
PORT = key(0)._replace(remote=bytes(4), remote_port=0)
EXACT = replace(NIC, armed=False, caps=replace(NIC.caps, exact_wins=True))


def opened(at_ns: int, cpu: int = 2, port: FlowKey = PORT) -> RecordedBirths:
    return RecordedBirths(
        at_ns, (RecordedBirth(Listening(at_ns, 1, port, 9, SERVER, cpu, True), {"nic": None}),)
    )


def ports(at_ns: int, *came: int, gone: tuple[int, ...] = ()) -> Looked:
    """A look at ports; connections by number come, which RSS has on queue 3, and go."""
    sockets = tuple(Socket(1000 + n, key(n), 103, "nic", 3) for n in came)
    return Looked(at_ns, True, sockets, tuple((1000 + n, key(n)) for n in gone))


def played_of(nic: NicView, policy: Policy, *lines: Line) -> Replay:
    replay = Replay(policy)
    for line in (RecordedMachine(0, (nic,), topology(), FORMAT), *lines):
        replay.take(line)
    return replay


def inserted(policy: Policy, *lines: Line) -> list[tuple[int, FlowKey | None, int | None]]:
    decided = played_of(EXACT, policy, *lines).decided
    inserts = (each for each in decided if each.action.kind is ActionKind.INSERT)
    return [(each.at_ns, each.action.key, each.action.new) for each in inserts]


def test_a_port_has_one_rule_and_its_connections_none() -> None:
    """They come by it where they are used, or have one each by a policy that keeps no order."""
    lines = opened(1), ports(2), used(1, 2, 3), used(2, 2, 4), ports(5, 1, 2)
    assert inserted(ORDERED, *lines) == [(2, PORT, 2)]
    assert inserted(POLICY, *lines) == [(3, key(1), 2), (4, key(2), 2)]


def test_a_port_waits_until_no_live_connection_would_move() -> None:
    lines = opened(1), ports(2, 1), ports(3, gone=(1,)), ports(4)
    assert inserted(ORDERED, *lines) == [(3, PORT, 2)]


def test_listeners_that_were_there_serve_who_uses_their_connections() -> None:
    lines = (
        RecordedListeners(1, {"nic": (Listening(1, 1, PORT, 9),)}),
        ports(2),
        used(1, 2, 3),
        ports(4),
    )
    assert inserted(ORDERED, *lines) == [(3, key(1), 2), (4, PORT, 2)]


def test_whose_a_port_is_may_depend_on_the_recorded_process() -> None:
    policy = replace(ORDERED, flows=(replace(ORDERED.flows[0], users=frozenset({1000})),))
    heard = opened(1).events[0]
    for uid, count in ((1000, 1), (0, 0)):
        births = RecordedBirths(1, (heard._replace(process=Process(uid=uid)),))
        assert len(inserted(policy, births, ports(2))) == count


def connects(number: int, at_ns: int, *more: RecordedBirth) -> RecordedBirths:
    """A thread connects on CPU 2; RSS has it on queue 3."""
    event = Connecting(at_ns, 1000 + number, key(number), 9, SERVER, 2)
    return RecordedBirths(at_ns, (RecordedBirth(event, {"nic": 3}), *more))


def answered(number: int, at_ns: int) -> RecordedBirth:
    return RecordedBirth(Connected(at_ns, 1000 + number, key(number), 1_000_000))


def test_a_connect_to_a_remote_that_is_known_is_placed_at_its_birth() -> None:
    before = connects(1, 1), RecordedBirths(2, (answered(1, 2),))
    to = key(1)._replace(local_port=444)
    again = RecordedBirth(Connecting(3, 5, to, 9, SERVER, 2), {"nic": 3})
    assert inserted(ORDERED, *before, RecordedBirths(3, (again,))) == [(3, to, 2)]
    assert inserted(POLICY, *before, RecordedBirths(3, (again,))) == []
    late = RecordedBirth(Connected(4, 5, to, 1_000_000))
    assert (
        inserted(ORDERED, *before, RecordedBirths(4, (again, late))) == []
    )  # it was answered by then


def test_what_is_born_lives_until_its_socket_ends() -> None:
    to = key(1)._replace(local_port=444)
    lines = (
        connects(1, 1), RecordedBirths(2, (answered(1, 2),)),
        RecordedBirths(3, (RecordedBirth(Connecting(3, 5, to, 9, SERVER, 2), {"nic": 3}),)),
        audited(4), RecordedBirths(5, (RecordedBirth(Connected(5, 5, to, 9)),)), audited(6),
        RecordedBirths(7, (RecordedBirth(SocketGone(7, 5)),)),
    )  # fmt: skip
    reported = [
        (each.at_ns, each.action.kind) for each in played_of(EXACT, ORDERED, *lines).decided
    ]
    assert reported == [(3, ActionKind.INSERT), (7, ActionKind.DELETE)]


def test_a_nic_that_is_read_again_keeps_the_queues_where_they_were_moved() -> None:
    strict = [used(1, 2, SECOND_NS), used(1, 0, 2 * SECOND_NS)]
    more = replace(EXACT, caps=replace(EXACT.caps, why="proven"), foreign=1)
    again = RecordedMachine(3 * SECOND_NS, (more,), topology(), FORMAT)
    replay = played_of(EXACT, ORDERED, *strict, again, used(2, 0, 4 * SECOND_NS))
    kinds = [each.action.kind for each in replay.decided]
    assert kinds[:2] == [ActionKind.INSERT, ActionKind.QUEUE_CPU]
    assert ActionKind.QUEUE_CPU not in kinds[2:]
