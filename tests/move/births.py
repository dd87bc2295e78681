# SPDX-License-Identifier: GPL-2.0-or-later
"""Connections that are established while a rule for them is written, beside the NIC's own steps.

Of a connect our ACK leaves after the instant `established`, and no data come before it. Of a
listener the packet that establishes a connection is reported with the ring it came through, and the
real code (`ports.exposed`) says whether that concerns the port's rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from atfnd.engine.filters import port_filters
from atfnd.engine.table.memory import Memory
from atfnd.model import Accepted, Action, ActionKind, FlowKey
from atfnd.model.reason import Code
from atfnd.move.command import Write
from atfnd.move.event import Established, Event, Wanted
from atfnd.move.verdict import Mode
from tests.engine.test_birth import memory
from tests.move.world import A, B, R, Scene, World, faulty
from tests.values import NIC, flow

__all__ = ["EXPECTED", "KEY", "PORT", "accept", "answer", "data", "later", "listens"]
__all__ += ["may_send", "reported", "unborn", "unheard", "wanted"]

KEY = FlowKey(6, b"\x0a\0\0\1", 443, b"\x0a\0\0\2", 1000)
PORT = KEY._replace(remote=bytes(4), remote_port=0)
EXPECTED = 2  # the peer of a connect answers later

Steps = Iterator[tuple[str, World]]


def wanted(key: FlowKey = KEY) -> Wanted:
    """A rule to ring B for a connect that RSS delivers to ring A, or for a listener's port."""
    rss = frozenset({A, B, R}) if key.listens else frozenset({A})
    action = Action(ActionKind.INSERT, "nic", key, None, A, B, Code.UNSAID(), "")
    first_data = 9 if key.listens else EXPECTED
    return Wanted(action, Mode.STRICT, rss, rss, first_data_ns=first_data)


def listens(scene: Scene) -> bool:
    """It is about a listener's port: many flows, which are not watched."""
    return scene.birth is not None and scene.birth.expected is None


def may_send(world: World, scene: Scene) -> bool:
    """The peer may: it has sent its ACK, or got ours."""
    birth = scene.birth
    return birth is None or birth.expected is None or bool(world.established)


def answer(world: World, scene: Scene) -> Steps:
    """The SYN of a connect was answered."""
    if may_send(world, scene) or scene.birth is None or scene.birth.expected is None:
        return
    after: World | None = world
    if world.now <= scene.birth.expected:
        after = faulty(world._replace(excused=True), scene, "nearer peer")
    if after is not None:
        reported = Established(KEY, world.now) if _hears(world) else None
        yield f"established at {world.now}", after._replace(established=world.now, born=reported)


def accept(world: World, scene: Scene, ring: int, packet: int) -> World:
    """A packet of an accepted connection is delivered: the first one establishes it. Where it is
    not the next in order, which queue it came through says nothing of those before it."""
    if not listens(scene) or world.established:
        return world
    reported = Accepted(world.now, 1, KEY, 100 + ring if in_order(packet) else None)
    born = reported if _hears(world) else None
    return world._replace(established=world.now, born=born)


def in_order(packet: int) -> bool:
    """Nothing of the connection's that was sent before it is missing: an ACK has no length."""
    return packet < 2


def reported(world: World) -> Event | None:
    """What the daemon makes of a connection that was established (`Born._accepted`)."""
    if not isinstance(world.born, Accepted):
        return world.born
    exposed = port_filters.exposed(world.born, NIC, None, _known(world.ruled))
    return Established(PORT, None) if PORT in exposed else None


@lru_cache(maxsize=2)
def _known(ruled: bool) -> Memory:
    """The port's entry is there before its rule."""
    known = memory()
    location, queue = (7, B) if ruled else (None, None)
    known.table.put(flow(0, key=PORT, location=location, target_queue=queue))
    return known


def unborn(world: World, scene: Scene) -> bool:
    """No data can be in flight; of a listener nobody knows better yet."""
    birth = scene.birth
    return birth is not None and (birth.expected is None or not world.established)


def later(world: World, scene: Scene) -> World | None:
    """Before the clock goes on. None: it may not, for a write is over by the instant that was
    expected, or slower than ever; an accepted connection is reported within a tick; and the end
    of what is written is to be seen."""
    if scene.birth is None:
        return world
    begun = world.writing is not None or any(isinstance(each, Write) for each in world.todo)
    unwritten = begun or (_hears(world) and not world.writes)
    if unwritten and world.now >= scene.ticks - 1:
        return None
    if listens(scene) and world.born is not None:
        return None
    if begun and world.now == EXPECTED and not listens(scene):
        return faulty(world._replace(excused=True), scene, "slow write")
    return world


def unheard(world: World, scene: Scene) -> bool:
    """Of a listener: a connection was under way, and it was not reported yet."""
    return listens(scene) and (world.born is not None or not world.established)


def data(packet: int, scene: Scene) -> bool:
    """The packet carries some, so that its place among others matters."""
    return packet > 0 or not listens(scene)


def _hears(world: World) -> bool:
    return world.machine is not None and world.verdict is None
