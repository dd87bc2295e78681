# SPDX-License-Identifier: GPL-2.0-or-later
"""A NIC as a value: what is in flight of one flow, who polls, what the daemon has heard.

Time is counted in ticks. A packet that was classified reaches its ring before the next tick, so
T_pipe is one tick. Within a tick anything may happen in any order, any number of times.
"""

from __future__ import annotations

from typing import NamedTuple

from atfnd.model import Accepted
from atfnd.move.command import Command
from atfnd.move.event import Asleep, Established, HandedOn, Polled

__all__ = ["RINGS", "A", "B", "Birth", "Poll", "R", "Scene", "World", "Writing", "faulty", "put"]

A, B, R = 0, 1, 2  # the old ring, the new one, RSS's
RINGS = "ABR"
Packets = tuple[int, ...]
Handed = tuple[tuple[int, int], ...]  # packets with the ring that they came through


class Birth(NamedTuple):
    """No data are in flight at first. Of a connect (`expected`): the peer sends some once it was
    established, and that is after this instant, unless the peer is nearer or a write slower than
    ever before, which are faults. Of a listener: packet 0 is the ACK of a handshake, the rest are
    data, and the first that is delivered establishes the connection."""

    expected: int | None = None


class Scene(NamedTuple):
    """What a NIC does, and what may go wrong in it: `faults` at most in one run."""

    name: str
    route: int = A  # of the packets before the write
    path: tuple[int, ...] = (B,)  # and after each step of it
    lost: tuple[int, ...] | None = None  # after a refusal that loses the rule; None: it cannot
    packets: int = 3
    gro: bool = False  # a poll keeps its last packet in GRO until the next one or a timer
    late: bool = False  # the rule takes effect after the write has returned
    faults: frozenset[str] = frozenset()
    most_faults: int = 1
    ticks: int = 6
    hold_max: int = 2  # ticks
    birth: Birth | None = None
    hands_on: frozenset[int] = frozenset()  # rings with RFS: what they deliver waits in a backlog
    begins: int = 0  # the machine may move nothing before (its token bucket)
    lends: bool = False  # rings are polled from interrupts, until threads are borrowed


class Poll(NamedTuple):
    """A poll under way: what it took from the ring, and what it will report."""

    taken: Packets
    work: int


class Writing(NamedTuple):
    """A write under way: where packets will go, step by step, and its answer."""

    path: tuple[int, ...]
    errno: int = 0
    lost: bool = False


class World(NamedTuple):
    """`machine` is the number of a Device in the run's book; None: the daemon is dead."""

    machine: int | None
    route: int
    threads: bool = True  # rings are polled by threads now
    next: int = 0
    pipe: tuple[Packets, ...] = ((), (), ())
    ring: tuple[Packets, ...] = ((), (), ())
    gro: tuple[Packets, ...] = ((), (), ())
    polls: tuple[Poll | None, ...] = (None, None, None)
    backlog: Handed = ()  # of the CPU that RFS hands the flow to: first in, first out
    marked: tuple[int, Handed | None] | None = None  # when backlogs were read, what they still have
    awaited: bool = False  # HandedOn was asked for
    quiesced: tuple[int, ...] = (0, 0, 0)  # until; 0: it polls
    cut: frozenset[int] = frozenset()  # holds that ended by themselves, and nobody heard yet
    last: int = -1  # delivered
    via_new: bool = False  # a packet came through the new ring, and nobody heard yet
    now: int = 1
    listening: bool = False  # to ends of polls: since the write began, or evidence was asked for
    mail: Polled | Asleep | HandedOn | None = None  # not told yet
    todo: tuple[Command, ...] = ()
    writing: Writing | None = None
    drift: tuple[int, ...] = ()  # steps of a rule's effect after its write has returned
    reset_unreported: bool = False
    faults: int = 0  # so many have happened
    writes: int = 0
    established: int = 0  # when; 0: not yet
    born: Established | Accepted | None = None  # not told yet
    ruled: bool = False  # the write was reported to have succeeded
    unawaited: bool = False  # a listener's move ended before its connection was reported
    overtaken: bool = False
    excused: bool = False  # a hold ended by itself, the daemon died, or the NIC was reset
    verdict: str | None = None
    wrong: str | None = None  # an invariant that was broken by a step


def put(rings: tuple[Packets, ...], at: int, packets: Packets) -> tuple[Packets, ...]:
    """`rings` with other packets at one place."""
    return (*rings[:at], packets, *rings[at + 1 :])


def faulty(world: World, scene: Scene, fault: str) -> World | None:
    """The world with one more fault in it. None: not in this scene, or no more."""
    if fault not in scene.faults or world.faults >= scene.most_faults:
        return None
    return world._replace(faults=world.faults + 1)
