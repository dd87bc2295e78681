# SPDX-License-Identifier: GPL-2.0-or-later
"""What a NIC may do next by itself: arrival, DMA, polls, GRO, the effect of a rule, a reset; and
what the peer of a connect may: answer."""

from __future__ import annotations

from collections.abc import Iterator

from atfnd.move.event import Asleep, HandedOn, Polled
from tests.move import births
from tests.move.world import RINGS, A, B, Poll, R, Scene, World, put

__all__ = ["BUDGET", "moves"]

BUDGET = 4
Steps = Iterator[tuple[str, World]]


def moves(world: World, scene: Scene) -> Steps:
    """Every next step of the NIC."""
    if births.may_send(world, scene):
        yield from _arrive(world, scene)
    yield from births.answer(world, scene)
    yield from _new(world, scene)
    for ring in (A, R):
        yield from _dma(world, ring)
        yield from _begin(world, ring, scene)
        yield from _end(world, ring, scene)
        yield from _sleep(world, ring, scene)
    yield from _flush(world, scene)
    yield from _backlog(world, scene)
    yield from _effect(world)
    yield from _reset(world, scene)


def _arrive(world: World, scene: Scene) -> Steps:
    if world.next < scene.packets:
        packet, to = world.next, world.route
        world = world._replace(next=packet + 1)
        if to == B:
            world = world._replace(ring=put(world.ring, B, (*world.ring[B], packet)))
        else:
            world = world._replace(pipe=put(world.pipe, to, (*world.pipe[to], packet)))
        yield f"packet {packet} is classified to {RINGS[to]}", world


def _new(world: World, scene: Scene) -> Steps:
    """The new ring at its worst: no delay of its own, for a later poll of it is as good."""
    if world.ring[B] and not world.quiesced[B]:
        packets, world = world.ring[B], world._replace(ring=put(world.ring, B, ()))
        yield f"B delivers {packets}", _deliver(world, scene, B, packets)


def _dma(world: World, ring: int) -> Steps:
    if world.pipe[ring]:
        first, *rest = world.pipe[ring]
        full = put(world.ring, ring, (*world.ring[ring], first))
        after = world._replace(pipe=put(world.pipe, ring, tuple(rest)), ring=full)
        yield f"packet {first} is in ring {RINGS[ring]}", after


def _begin(world: World, ring: int, scene: Scene) -> Steps:
    """A poll takes all there is, or stops short and says budget - 1, for it is made to move to
    another CPU (F2). An empty ring is polled for the flows of others, where somebody listens."""
    if world.quiesced[ring] or world.polls[ring] is not None:
        return
    packets, name = world.ring[ring], RINGS[ring]
    if packets or (ring in (A, *scene.path[:-1]) and _listened(world)):
        yield f"a poll of {name} takes {packets or 'nothing'}", _polling(world, ring, None, 0)
    if len(packets) > 1:
        after = _polling(world, ring, 1, BUDGET - 1)
        yield f"a poll of {name}, made to move, takes {packets[0]}", after


def _listened(world: World) -> bool:
    """One end of a poll waits to be reported at a time."""
    return world.machine is not None and world.listening and world.mail is None


def _polling(world: World, ring: int, count: int | None, work: int) -> World:
    packets = world.ring[ring]
    taken, rest = (packets, ()) if count is None else (packets[:count], packets[count:])
    polls = (*world.polls[:ring], Poll(taken, work), *world.polls[ring + 1 :])
    return world._replace(ring=put(world.ring, ring, rest), polls=polls)


def _end(world: World, ring: int, scene: Scene) -> Steps:
    poll = world.polls[ring]
    if poll is None or world.quiesced[ring]:
        return
    packets = world.gro[ring] + poll.taken
    kept = packets[-1:] if scene.gro else ()
    world = world._replace(
        polls=(*world.polls[:ring], None, *world.polls[ring + 1 :]),
        gro=put(world.gro, ring, kept),
    )
    world = _deliver(world, scene, ring, packets[: len(packets) - len(kept)])
    if _listened(world):
        world = world._replace(mail=Polled(ring, world.now, poll.work, BUDGET))
    yield f"the poll of {RINGS[ring]} ends at {world.now}, work {poll.work} of {BUDGET}", world


def _sleep(world: World, ring: int, scene: Scene) -> Steps:
    """A look at the thread of a ring that somebody listens to finds it asleep, the ring empty. A
    ring that is polled from its interrupt is never seen so."""
    if not world.threads:
        return
    if ring not in (A, *scene.path[:-1]) or not _listened(world) or world.quiesced[ring]:
        return
    if not world.ring[ring] and not world.gro[ring] and world.polls[ring] is None:
        asleep = Asleep(ring, world.now)
        yield f"{RINGS[ring]} is seen asleep at {world.now}", world._replace(mail=asleep)


def _flush(world: World, scene: Scene) -> Steps:
    for ring in (A, R):
        if world.gro[ring] and world.polls[ring] is None:
            kept, after = world.gro[ring], world._replace(gro=put(world.gro, ring, ()))
            after = _deliver(after, scene, ring, kept)
            yield f"GRO of {RINGS[ring]} is flushed by its timer", after


def _backlog(world: World, scene: Scene) -> Steps:
    """The softirq of another CPU delivers what RFS gave it, and the daemon's spinner sees when what
    was there at some instant is gone. RFS leaves a flow on its CPU while packets of it wait there,
    so one backlog is as good as several."""
    if world.backlog:
        (ring, packet), rest = world.backlog[0], world.backlog[1:]
        marked = world.marked
        if marked is not None and marked[1] is not None:
            marked = marked[0], tuple(each for each in marked[1] if each[1] != packet)
        after = world._replace(backlog=rest, marked=marked)
        yield f"a backlog delivers {packet}", _reaches(after, scene, ring, (packet,))
    if world.machine is None or not world.awaited or world.mail is not None:
        return
    at, waits = world.marked or (0, None)
    if waits is None and at < world.now:
        yield "the backlogs are read", world._replace(marked=(world.now, world.backlog))
    if waits == ():
        heard = world._replace(mail=HandedOn(at), marked=(at, None))
        yield "the backlogs have delivered what they had", heard


def _deliver(world: World, scene: Scene, ring: int, packets: tuple[int, ...]) -> World:
    """Up to the socket, or into a backlog."""
    if ring in scene.hands_on:
        more = tuple((ring, packet) for packet in packets)
        return world._replace(backlog=(*world.backlog, *more))
    return _reaches(world, scene, ring, packets)


def _reaches(world: World, scene: Scene, ring: int, packets: tuple[int, ...]) -> World:
    for packet in packets:
        world = births.accept(world, scene, ring, packet)
        overtaken = world.overtaken or (births.data(packet, scene) and packet < world.last)
        last = max(packet, world.last)
        via_new = world.via_new or (ring == B and not births.listens(scene))
        world = world._replace(last=last, overtaken=overtaken, via_new=via_new)
    return world


def _effect(world: World) -> Steps:
    if world.writing is not None and world.writing.path:
        to, *rest = world.writing.path
        writing = world.writing._replace(path=tuple(rest))
        yield f"the rule now sends to {RINGS[to]}", world._replace(route=to, writing=writing)
    elif world.drift:
        to, *rest = world.drift
        after = world._replace(route=to, drift=tuple(rest))
        yield f"late, the rule now sends to {RINGS[to]}", after


def _reset(world: World, scene: Scene) -> Steps:
    """Rings and rules go; a reset waits for polls under way (napi_disable), quiesced ones too."""
    if "reset" in scene.faults and world.faults < scene.most_faults and not any(world.polls):
        empty: tuple[tuple[int, ...], ...] = ((), (), ())
        world = world._replace(pipe=empty, ring=empty, gro=empty, route=R, drift=())
        unreported = world.machine is not None and world.verdict is None
        world = world._replace(faults=world.faults + 1, reset_unreported=unreported, excused=True)
        yield "the NIC is reset", world
