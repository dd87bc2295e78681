# SPDX-License-Identifier: GPL-2.0-or-later
"""What the daemon may do next: hear an event, carry out a command, be refused, be late, die.

The machine is the real one (`atfnd.move.device`). Its states are kept in a book, by number, and so
is what each event does to them: the same step is asked of it once.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

from atfnd.model import Action, ActionKind, Outcome
from atfnd.move import device
from atfnd.move.command import Command, DrainEvidence, Ended, Hold, Release, Unwatch, Watch, Write
from atfnd.move.device import NicMoves
from atfnd.move.event import (
    Event,
    EvidenceLost,
    HoldLost,
    QueueHeld,
    Released,
    Reset,
    Seen,
    TimerDue,
    Wanted,
    Written,
)
from atfnd.move.loan import BORROWED
from atfnd.move.verdict import Mode
from tests.move import births
from tests.move.world import RINGS, B, Scene, World, Writing

__all__ = ["Daemon"]

Steps = Iterator[tuple[str, World]]
SETTING = Action.of_setting("nic", "rps-cpus:0", None)


class Daemon:
    """One run: the book of the machine's states, and what may happen around it.
    `order_only`: I3 and I4 are not looked at, so that what they are for is seen."""

    def __init__(
        self, first: NicMoves, wanted: Wanted, scene: Scene, order_only: bool = False
    ) -> None:
        self.wanted, self.scene, self.order_only = wanted, scene, order_only
        self._states: list[NicMoves] = []
        self._numbers: dict[NicMoves, int] = {}
        self._steps: dict[tuple[int, type[Event], Event, int], tuple[int, tuple[Command, ...]]] = {}
        world = World(self._number(first), scene.route, threads=not scene.lends)
        self.first = self._tell(world, wanted)

    def device(self, world: World) -> NicMoves | None:
        """The machine of a state of the world."""
        return None if world.machine is None else self._states[world.machine]

    def moves(self, world: World) -> Steps:
        """Every next step of the daemon, and of the clock."""
        if world.machine is not None:
            if world.writing is not None:
                yield from self._answer(world)
            elif world.todo:
                yield from self._carry_out(world)
            else:
                yield from self._event_arrives(world)
            yield from self._die(world)
        elif world.writing is not None and not world.writing.path:
            yield "the dead daemon's write is done", world._replace(writing=None)
        yield from self._cut(world)
        yield from self._tick(world)

    def _carry_out(self, world: World) -> Steps:
        command, rest = world.todo[0], world.todo[1:]
        world = world._replace(todo=rest)
        match command:
            case Hold():
                yield from self._hold(world, command)
            case Release():
                unbroken = bool(world.quiesced[command.queue])
                freed = _quiesced(world, command.queue, 0)
                freed = freed._replace(cut=freed.cut - {command.queue})
                after = self._tell(freed, Released(command.queue, unbroken))
                yield f"{RINGS[command.queue]} is released", after
            case Write(action=action) if action == SETTING:
                yield "a setting is written", self._turned(world)
            case Write(action=action) if action.setting is not None:
                yield from self._lend(world, action)
            case Write():
                yield from self._write(world, command)
            case Ended():
                said = command.verdict.value
                world = world._replace(verdict=said, unawaited=births.unheard(world, self.scene))
                yield f"the move ended: {said}", self._over(world)
            case _:
                yield type(command).__name__, world

    def _hold(self, world: World, hold: Hold) -> Steps:
        name = RINGS[hold.queue]
        if not world.threads:
            world = world._replace(wrong="I8: a ring without a thread is to be quiesced")
        if world.now < hold.until_ns:
            quiesced = _quiesced(world, hold.queue, hold.until_ns)
            yield f"{name} is quiesced", self._tell(quiesced, QueueHeld(hold.queue, world.now))
        if self._may("refused hold", world) or world.now >= hold.until_ns:
            after = self._tell(_fault(world), HoldLost(hold.queue, "refused"))
            yield f"{name} cannot be quiesced", after

    def _lend(self, world: World, action: Action) -> Steps:
        """Threads are borrowed, or given back."""
        on = action.value == BORROWED
        if not on and any(world.quiesced):
            world = world._replace(wrong="I8: threads are given back while a ring is quiesced")

        def answer(world: World, code: int) -> World:
            outcome = Outcome(action, world.now, code, None, "refused")
            return self._tell(world, Written(outcome, world.now, world.now))

        yield (
            ("threads poll now" if on else "interrupts poll now"),
            answer(world._replace(threads=on), 0),
        )
        if self._may("refused loan", world):
            yield "who polls stays as it is", answer(_fault(world), errno.EIO)

    def _turned(self, world: World) -> World:
        at = self.device(world)
        if at is not None and at.live:
            return world._replace(wrong="I5: a setting is written while a move is live")
        return self._tell(
            world, Written(Outcome(SETTING, world.now, 0, None, ""), world.now, world.now)
        )

    def _write(self, world: World, write: Write) -> Steps:
        scene = self.scene
        if world.writes:
            world = world._replace(wrong="I2: a second write of one move")
        world = world._replace(writes=world.writes + 1, listening=scene.birth is None)
        targets = self.wanted.targets or frozenset()
        needed = (set(scene.path) | targets) - (self.wanted.origins or frozenset())
        if (
            not self.order_only
            and not world.excused
            and not births.unborn(world, scene)
            and any(not world.quiesced[ring] for ring in needed)
        ):
            world = world._replace(wrong="I3, I4: a write with a ring that is not quiesced")
        if scene.late:
            writing = Writing(())
            yield "the write begins", world._replace(writing=writing, drift=scene.path)
            return
        yield "the write begins", world._replace(writing=Writing(scene.path))
        if self._may("refused write", world):
            writing = Writing((), errno.EIO)
            yield "the write is refused", _fault(world)._replace(writing=writing)
            if scene.lost is not None:
                writing = Writing(scene.lost, errno.EIO, lost=True)
                yield "the write loses the rule", _fault(world)._replace(writing=writing)
        if self._may("dropped write", world):
            writing = Writing(())
            yield "the write will have no effect", _fault(world)._replace(writing=writing)

    def _answer(self, world: World) -> Steps:
        writing = world.writing
        if writing is None or writing.path:
            return
        action = self.wanted.action
        location = None if writing.lost else action.location
        if action.kind is ActionKind.DELETE and not writing.errno:
            location = None
        outcome = Outcome(action, world.now, writing.errno, location, "refused")
        done = world._replace(writing=None, ruled=not writing.errno)
        yield "the write returns", self._tell(done, Written(outcome, world.now, world.now))

    def _event_arrives(self, world: World) -> Steps:
        if world.mail:
            after = world._replace(mail=None)
            yield f"it hears that {world.mail}", self._tell(after, world.mail)
            if self._may("lost event", world):
                yield "an event is lost", self._tell(_fault(after), EvidenceLost())
        if self._may("a setting", world):
            yield "a setting is wanted", self._tell(_fault(world), Wanted(SETTING, Mode.STRICT))
        if world.born is not None:
            after, event = world._replace(born=None), births.reported(world)
            yield "a connection is reported", after if event is None else self._tell(after, event)
            if self._may("lost event", world):
                yield "its event is lost", self._tell(_fault(after), EvidenceLost())
        if world.via_new and world.verdict is None:
            key = self.wanted.subject
            after = self._tell(world._replace(via_new=False), Seen(key, B, world.now))
            yield "a packet on the new ring is reported", after
        if world.reset_unreported:
            yield (
                "the reset is reported",
                self._tell(world._replace(reset_unreported=False), Reset()),
            )
        for ring in sorted(world.cut):
            after = world._replace(cut=world.cut - {ring})
            yield "the end of a hold is reported", self._tell(after, HoldLost(ring, "it ended"))
        at = self.device(world)
        due = None if at is None else device.due_ns(at)
        if due is not None and due <= world.now:
            yield f"it is {world.now}", self._tell(world, TimerDue())

    def _die(self, world: World) -> Steps:
        if self._may("crash", world):
            dead = _fault(world)._replace(machine=None, todo=(), mail=None, excused=True)
            dead = dead._replace(
                via_new=False, reset_unreported=False, born=None, awaited=False, marked=None
            )
            yield "the daemon is killed", dead

    def _cut(self, world: World) -> Steps:
        """The spinner dies: its queue polls again, and nobody knows yet."""
        for ring, until in enumerate(world.quiesced):
            if until and self._may("broken hold", world):
                yield f"the hold of {RINGS[ring]} dies", _ended_by_itself(_fault(world), ring)

    def _tick(self, world: World) -> Steps:
        """No packet stays in the pipe over a tick, and no reset stays unreported. Threads are
        borrowed within one. A hold ends at its deadline by itself."""
        if self.scene.lends and any(map(_turns, world.todo)):
            return
        if world.now < self.scene.ticks and not any(world.pipe) and not world.reset_unreported:
            later = births.later(world, self.scene)
            if later is None:
                return
            world = later._replace(now=world.now + 1)
            for ring, until in enumerate(world.quiesced):
                if until and world.now >= until:
                    world = _ended_by_itself(world, ring)
            yield f"the clock goes to {world.now}", world

    def _over(self, world: World) -> World:
        """Nothing is reported any more: only what is in flight is of interest."""
        over = world._replace(
            mail=None, listening=False, via_new=False, reset_unreported=False, cut=frozenset(),
            born=None, awaited=False, marked=None,
        )  # fmt: skip
        state, todo = self.device(world), [each for each in world.todo if not _turns(each)]
        if state is None or state.live or state.waiting or todo:
            return over._replace(wrong="a move that has ended goes on")
        asked = any(_turns(each) for each in world.todo)
        if world.threads and self.scene.lends and not asked and device.due_ns(state) is None:
            return over._replace(wrong="FailOpen: threads are borrowed for ever")
        return over._replace(machine=0, now=self.scene.ticks, todo=())

    def _may(self, fault: str, world: World) -> bool:
        return fault in self.scene.faults and world.faults < self.scene.most_faults

    def _number(self, state: NicMoves) -> int:
        number = self._numbers.setdefault(state, len(self._states))
        if number == len(self._states):
            self._states.append(state)
        return number

    def _tell(self, world: World, event: Event) -> World:
        if world.machine is None:
            raise ValueError("the daemon is dead")
        asked = world.machine, type(event), event, world.now
        if asked not in self._steps:
            state, commands = device.step(self._states[world.machine], event, world.now)
            kept = tuple(c for c in commands if not isinstance(c, Watch | Unwatch))
            self._steps[asked] = self._number(state), kept
        number, commands = self._steps[asked]
        listening = world.listening or any(isinstance(c, DrainEvidence) for c in commands)
        todo = tuple(c for c in commands if not isinstance(c, DrainEvidence))
        awaited = world.awaited or any(
            isinstance(c, DrainEvidence) and c.hands_on for c in commands
        )
        return world._replace(
            machine=number, todo=world.todo + todo, listening=listening, awaited=awaited
        )


def _turns(command: Command) -> bool:
    return isinstance(command, Write) and command.action.setting is not None


def _fault(world: World) -> World:
    return world._replace(faults=world.faults + 1)


def _quiesced(world: World, ring: int, until: int) -> World:
    quiesced = (*world.quiesced[:ring], until, *world.quiesced[ring + 1 :])
    return world._replace(quiesced=quiesced)


def _ended_by_itself(world: World, ring: int) -> World:
    cut = world.cut | {ring} if world.machine is not None else world.cut
    return _quiesced(world, ring, 0)._replace(cut=cut, excused=True)
