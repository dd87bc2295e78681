# SPDX-License-Identifier: GPL-2.0-or-later
"""Undo proves itself: after it a NIC reads as it was found, in a thousand schedules by chance.

The journals, the decisions, the machine of the moves, the writes and the undo are the real ones; a
NIC in memory refuses, is slow, and the daemon is killed at any byte of a journal and around any
write. Another program puts filters and settings there meanwhile, and these stay. A failure shows
its seed and the schedule.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from atfnd.daemon.undoing import Undoing
from atfnd.engine import audit
from atfnd.engine.filters import strays
from atfnd.engine.filters.lost import lost
from atfnd.engine.placement import steer
from atfnd.engine.table import retire
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Spending
from atfnd.model import (
    Action,
    ActionKind,
    Actuator,
    Filter,
    FlowKey,
    Match,
    Mode,
    Outcome,
    Plan,
    Restored,
    SocketUse,
    Thread,
)
from atfnd.move.command import Ended
from atfnd.move.device import NicMoves
from atfnd.move.event import Asleep, Event, FlowClosed, Idle, Polled, Reset, TimerDue, Wanted
from atfnd.move.mover import Mover
from atfnd.move.plan import in_order, origins
from atfnd.move.port import Port, Ring
from atfnd.move.timer import Times
from atfnd.program import restore as offline
from atfnd.program.actuator import apply
from atfnd.program.journals import record_file
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.operator_journal import OperatorJournal
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.serve.log.event_log import EventLog
from tests.move.driven import driven
from tests.nic.fake_nic import FakeNic
from tests.values import NIC, RULE, key, memory_of, one_rule, seen

__all__: list[str] = []

SEEDS = range(1000)
STEPS = 40
FLOWS = 5
HIS_QUEUE = 4  # no flow of ours belongs there
RING = Ring(256, 0, 0, False, 1e6, True)
PORT = Port(Actuator.IN_PLACE, False, frozenset(), (RING,) * 5, 10_000)
SETTINGS = ("rss", "rps-cpus:0", "rps-cpus:1")


class Killed(BaseException):
    """kill -9, here and now."""


class Slots(FakeNic):
    """A NIC that somebody may be killed at, before or after each write."""

    def __init__(self, chance: Random) -> None:
        super().__init__(queues=5, slots=12)
        self.values.update({each: f"as found {each}" for each in SETTINGS})
        self.chance = chance
        self.unique = chance.random() < 0.7  # it refuses a match that it has
        self.dies_in: int | None = None  # writes

    def dies(self) -> bool:
        if self.dies_in is None:
            return False
        self.dies_in -= 1
        if self.dies_in > 0:
            return False
        self.dies_in = None
        return True

    def obeys(self) -> None:
        """It does what it is asked for from now on."""
        self.refuses_nothing()
        self.dies_in = None

    def refuses_nothing(self) -> None:
        self._refusals.clear()
        self.loses = self.does_it_anyway = False

    def _around(self, write: Callable[[], None]) -> None:
        if self.dies():
            raise Killed
        write()
        if self.dies():
            raise Killed

    def insert(self, match: Match, queue: int, location: int | None = None) -> int:
        if location is None and self.unique and any(r.match == match for r in self.table.values()):
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
        at: list[int] = []
        self.elsewhere = None
        if location is not None and not self.loses and self.chance.random() < 0.1:
            self.elsewhere = next((n for n in range(12) if n not in self.table), None)
        insert = super().insert
        self._around(lambda: at.append(insert(match, queue, location)))
        return at[0]

    def delete(self, location: int) -> None:
        delete = super().delete
        self._around(lambda: delete(location))

    def write_setting(self, name: str, value: str) -> None:
        write_setting = super().write_setting
        self._around(lambda: write_setting(name, value))


class MoveActuator:
    """What the moves ask for, in simulated time. Every queue drains at once, or never."""

    def __init__(self, world: World, write: Callable[[Action], Outcome]) -> None:
        self._world, self.write = world, write
        self.watched: set[FlowKey] = set()
        self._draining: dict[int, int] = {}

    def now_ns(self) -> int:
        self._world.now_ns += 100
        return self._world.now_ns

    def hold(self, queue: int, until_ns: int, drains: frozenset[int]) -> int:
        del queue, until_ns, drains
        if self._world.chance.random() < 0.1:
            raise OSError(errno.EBUSY, "another program has the CPU")
        return self.now_ns()

    def in_force(self, queue: int) -> bool:
        del queue
        return self._world.chance.random() < 0.95

    def release(self, queue: int) -> bool:
        del queue
        self._draining.clear()
        return True

    def watch(
        self,
        key: FlowKey,
        origins: frozenset[int],
        targets: frozenset[int],
        through: frozenset[int],
        cookie: int | None,
    ) -> None:
        del origins, targets, through, cookie
        self.watched.add(key)

    def unwatch(self, key: FlowKey) -> None:
        self.watched.discard(key)

    def delivered_ns(self, key: FlowKey) -> int | None:
        del key
        return 0 if self._world.chance.random() < 0.7 else None

    def stands(self, key: FlowKey, location: int, queue: int) -> bool:
        rule = self._world.nic.table.get(location)
        return rule is not None and (rule.match, rule.queue) == (Match.of(key), queue)

    def drain_evidence(self, queue: int, from_ns: int, hands_on: bool) -> None:
        self._draining[queue] = from_ns

    def evidence(self, until_ns: int) -> Sequence[Event]:
        world = self._world
        if not self._draining or world.chance.random() < 0.1:
            world.now_ns = max(world.now_ns, until_ns)
            return ()
        world.now_ns = max(world.now_ns, *self._draining.values()) + 1
        reported = [Asleep(queue, world.now_ns) for queue in self._draining]
        return [*reported, *(Polled(queue, world.now_ns, 0, 64) for queue in self._draining)]


class Run:
    """One run of the daemon, from its start to its end: the loop's part in few lines."""

    def __init__(self, world: World) -> None:
        self._world, nic = world, world.nic
        self.journal = FilterJournal(world.folder / "filters.journal")
        self.undo_journal = UndoJournal(world.folder / "originals.journal")
        self.orders = OperatorJournal(world.folder / "orders.journal")
        self.memory = memory_of(FlowTable(100), one_rule(1000, 10**12, world.mode))
        self.undoing = Undoing(self.journal, self.undo_journal, EventLog())
        armed, paused = self.orders.armed(nic.name) is True, self.orders.paused(nic.name)
        self.view = replace(NIC, queues=nic.queues(), armed=armed and not paused, paused=paused)
        self._was_armed = armed
        self._begin()
        self._adopt()

    def _begin(self) -> None:
        times = Times(hold_down_ns=1000, move_every_ns=100)
        self.actuator = MoveActuator(self._world, self._write)
        self.mover = Mover(self.actuator, NicMoves(PORT, times))

    def close(self) -> None:
        for each in (self.journal, self.undo_journal, self.orders):
            each.close()

    # ---- as daemon/executor.py

    def _write(self, action: Action) -> Outcome:
        self._world.now_ns += self._world.chance.choice((10, 10, 5_000_000))
        if (late := audit.outlived(action, self.memory, self._world.now_ns)) is not None:
            return late
        return apply(self._world.nic, self.journal, self.undo_journal, action)

    def _wanted(self, action: Action) -> Wanted:
        mode = self.memory.in_force.order(action.rule_name)
        if action.key is None:
            return Wanted(action, mode, origins(action, None, None))
        rss = frozenset({action.key.remote[-1] % 4})
        return Wanted(action, mode, origins(action, rss, None), rss, action.live)

    def carry_out(self, plan: Plan) -> None:
        if not self.view.armed:
            return
        for action in in_order(plan):
            if action.key is not None and not action.live:
                self.tell(FlowClosed(action.key))
            self.tell(self._wanted(action))

    def tell(self, *events: Event) -> None:
        self.report(driven(self.mover, *events))

    def report(self, said: Sequence[Outcome | Ended]) -> None:
        for each in said:
            if isinstance(each, Outcome):
                strays.record(each, self.memory)
                if (stray := audit.record(each, self.memory)) is not None:
                    strays.note(stray, self.memory)

    def _still(self) -> None:
        self.mover.release_all()
        self.memory.nics["nic"].spending = Spending()
        self._begin()

    # ---- as daemon/nics.py

    def _adopt(self) -> None:
        uses = {Match.of(use.key): use for use in self._world.uses()}
        known = {Match.of(flow.key) for flow in self.memory.table.steered("nic")}
        ours = self.journal.ours("nic", self._world.nic.filters())
        ours = [rule for rule in ours if rule.match not in known]
        _, plan = audit.adopt(self.view, ours, uses, self.memory, self._world.now_ns)
        self.carry_out(plan)

    def check_filters(self) -> None:
        now_ns, rules = self._world.now_ns, self._world.nic.filters()
        gone = lost(self.view, rules, self.memory, disturbed=False)
        for flow in [*gone, *audit.check_filters(self.view, rules, self.memory, now_ns)]:
            self.journal.release("nic", Match.of(flow.key))

    # ---- as daemon/operator.py

    def arm(self) -> None:
        self.orders.say("arm", "nic")
        self.view = replace(self.view, armed=True, paused=False)
        self._adopt()
        self.carry_out(steer.take_up(self.view, self.memory, self._world.now_ns))

    def disarm(self) -> None:
        self.view = replace(self.view, armed=False, paused=False)
        self._still()
        self.orders.say("disarm", "nic")

    def pause(self) -> list[Restored]:
        if not self.view.paused:
            self._was_armed = self.view.armed
        self.view = replace(self.view, armed=False, paused=True)
        self.orders.say("pause", "nic")
        return self._take_out()

    def resume(self) -> None:
        if self.view.paused:
            self.orders.say("resume", "nic")
            self.undo_journal.take_back("nic")
            self.view = replace(self.view, armed=self._was_armed, paused=False)
            self.carry_out(steer.take_up(self.view, self.memory, self._world.now_ns, manual=True))

    def restore(self) -> list[Restored]:
        self.disarm()
        return self._take_out()

    def _take_out(self) -> list[Restored]:
        self._still()
        with suppress(OSError):
            self.check_filters()
        nic = self._world.nic
        return self.undoing.take_out(nic, self.view, "undone", self._withdraw, self._taken_out)

    def _withdraw(self) -> Plan:
        return retire.withdraw(self.view, self.memory, "undone")

    def _taken_out(self, outcomes: Sequence[Outcome]) -> None:
        self.report(outcomes)
        retire.taken_out("nic", outcomes, self.memory)


class World:
    """A NIC, sockets, another program, and the daemon that runs or does not."""

    def __init__(self, seed: int, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.chance = Random(seed)
        self.folder, self.now_ns = folder, 1_000_000
        self.nic = Slots(self.chance)
        self.mode = self.chance.choice((*Mode, Mode.BOUNDED, Mode.BOUNDED))  # which waits longest
        self.run: Run | None
        self.alive: set[int] = set()
        self.theirs: dict[int, Filter] = {}
        self.found = dict(self.nic.values)
        self.said: list[str] = []
        self.seen: set[str] = set()  # kinds of what happened
        self._his = iter(range(100, 10_000))
        patch.setattr(record_file, "_write_whole", self._write_whole)
        patch.setattr(offline, "open_nic", lambda name: self.nic)
        self.run = Run(self)

    def _write_whole(self, file: int, line: bytes) -> None:
        """A journal's line: a part of it is there, or all of it, when somebody is killed."""
        if self.nic.dies():
            os.write(file, line[: self.chance.randrange(len(line) + 1)])
            raise Killed
        os.write(file, line)
        if self.nic.dies():
            raise Killed

    def uses(self) -> Iterator[SocketUse]:
        return (SocketUse(1000 + n, key(n), None, None, None, 0) for n in self.alive)

    # ---- what may happen while it runs

    def used(self, run: Run) -> None:
        """A socket is used on a CPU: often of a thread that takes others along."""
        number, cpu = self.chance.randrange(FLOWS), self.chance.randrange(4)
        self.alive.add(number)
        thread = Thread(number % 3, number % 3, "app", None)
        rx_cpu = self.chance.choice((number % 4, None, cpu))
        event = seen(number, cpu, rx_cpu=rx_cpu, off_since_ns=self.now_ns, thread=thread)
        run.carry_out(steer.seen(event, run.view, RULE, run.memory, self.now_ns))

    def closed(self, run: Run) -> None:
        if self.alive:
            number = self.chance.choice(sorted(self.alive))
            self.alive.discard(number)
            run.carry_out(retire.gone(1000 + number, run.memory))

    def waited(self, run: Run) -> None:
        self.now_ns += self.chance.choice((100, 10_000, 2_000_000_000))
        idle = [Idle(key, self.now_ns - 10**9) for key in sorted(run.actuator.watched)]
        run.tell(*(each for each in idle if self.chance.random() < 0.5), TimerDue())
        run.carry_out(steer.due({"nic": run.view}, run.memory, self.now_ns))

    def audited(self, run: Run) -> None:
        plan = audit.check_sockets(self.uses(), {"nic": run.view}, run.memory, self.now_ns)
        run.carry_out(plan)

    def looked(self, run: Run) -> None:
        run.check_filters()
        moving = run.mover.device
        busy = {*moving.live, *(subject for subject in moving.waiting)}
        used = {use.key for use in self.uses()}
        run.carry_out(strays.due(run.memory, busy.__contains__, lambda _, flow: flow in used))

    def turned(self, run: Run) -> None:
        """A setting, or a queue's CPU."""
        name, value = self.chance.choice(SETTINGS), f"ours {self.chance.randrange(3)}"
        action = Action.of_setting("nic", name, value)
        if self.chance.random() < 0.5:
            queue, cpu = self.chance.randrange(4), self.chance.randrange(4)
            action = Action(ActionKind.QUEUE_CPU, "nic", None, None, queue, cpu, "", "", queue)
        if run.view.armed:
            apply(self.nic, run.journal, run.undo_journal, action)

    def reset(self, run: Run) -> None:
        run.tell(Reset())

    def armed(self, run: Run) -> None:
        run.arm()

    def disarmed(self, run: Run) -> None:
        run.disarm()

    def paused(self, run: Run) -> None:
        self.proven(run.pause)

    def resumed(self, run: Run) -> None:
        run.resume()

    def restored(self, run: Run) -> None:
        self.proven(run.restore)

    def stopped(self, run: Run) -> None:
        run.close()
        self.run = None

    def killed(self, run: Run) -> None:
        """Now, or at one of the next writes."""
        if self.chance.random() < 0.3:
            raise Killed
        self.nic.dies_in = self.chance.randrange(1, 12)

    def refused(self, run: Run) -> None:
        del run
        call = self.chance.choice(
            ("insert", "insert", "delete", "filters", "filter", "write_setting")
        )
        code = self.chance.choice((errno.EBUSY, errno.EIO, errno.ENOSPC, errno.EINVAL))
        self.nic.refuses_nothing()
        self.nic.does_it_anyway = code in (errno.EBUSY, errno.EIO) and self.chance.random() < 0.5
        self.nic.loses = self.chance.random() < 0.3
        self.nic.refuse(call, *(code,) * self.chance.randrange(1, 4))

    # ---- what may happen at any time

    def theirs_came(self) -> None:
        """Another program puts a filter there: its own, or one for a flow that we steer."""
        free = [n for n in range(12) if n not in self.nic.table]
        if len(free) > 2:
            match = Match.of(key(self.chance.randrange(FLOWS + 5)))
            if all(rule.match != match for rule in self.nic.table.values()):
                self.theirs[free[0]] = self.nic.put(free[0], match, HIS_QUEUE)

    def theirs_went(self) -> None:
        if self.theirs:
            location = self.chance.choice(sorted(self.theirs))
            del self.theirs[location], self.nic.table[location]

    def ours_went(self) -> None:
        ours = sorted(self.nic.table.keys() - self.theirs)
        if ours:
            del self.nic.table[self.chance.choice(ours)]

    def ours_became_his(self) -> None:
        ours = sorted(self.nic.table.keys() - self.theirs)
        if ours:
            location = self.chance.choice(ours)
            match = self.nic.table[location].match
            self.theirs[location] = self.nic.put(location, match, HIS_QUEUE)

    def set_by_him(self) -> None:
        name, value = self.chance.choice(sorted(self.nic.values)), str(next(self._his))
        self.nic.values[name] = self.found[name] = value

    # ---- and what must be so

    def proven(self, undo: Callable[[], list[Restored]]) -> None:
        """It says that all is as it was, and it is; or it says what is not, and does it later."""
        done = undo()
        if all(each.done for each in done):
            self.as_found(done)
        else:
            self.seen.add("refused undo")
            self.nic.obeys()
            done = undo()
            assert all(each.done for each in done), done
            self.as_found(done)

    def as_found(self, done: object) -> None:
        rules = self.nic.table
        assert rules == self.theirs, (rules, self.theirs, done)
        moved = {k: (v, self.found[k]) for k, v in self.nic.values.items() if v != self.found[k]}
        assert not moved, (moved, done)

    def offline(self) -> list[Restored]:
        journal = FilterJournal(self.folder / "filters.journal")
        undo_journal = UndoJournal(self.folder / "originals.journal")
        try:
            return offline.restored(journal, undo_journal)
        finally:
            journal.close()
            undo_journal.close()

    def one(self) -> None:
        at_any_time = (
            self.theirs_came, self.theirs_went, self.ours_went, self.ours_became_his,
            self.set_by_him,
        )  # fmt: skip
        if self.run is not None and not self.said:
            self.happens("armed", self.run.arm)
        elif self.chance.random() < 0.1:
            step: Callable[[], None] = self.chance.choice(at_any_time)
            self.happens(step.__name__, step)
        elif self.run is None:
            if self.chance.random() < 0.4:
                self.happens("offline", lambda: self.proven(self.offline))
            else:
                self.happens("start", self.start)
        else:
            often = (self.used,) * 24 + (self.waited,) * 12 + (self.closed,) * 5
            some = (self.audited, self.looked, self.turned, self.refused) * 2
            rare = (
                self.reset, self.disarmed, self.paused, self.resumed, self.restored, self.stopped,
                self.killed, self.armed, self.armed, self.armed,
            )  # fmt: skip
            running, chosen = self.run, self.chance.choice((*often, *some, *rare))
            self.happens(chosen.__name__, lambda: chosen(running))

    def happens(self, what: str, step: Callable[[], object]) -> None:
        self.said.append(what)
        self.seen.add(what)
        try:
            step()
        except Killed:
            self.said.append("(killed)")
            self.seen.add("(killed)")
            self.nic.dies_in = None
            if self.run is not None:
                self.run.close()
            self.run = None
        except OSError as refusal:  # as of a NIC that does not list its filters: told, and it stays
            self.said.append(str(refusal))

    def start(self) -> None:
        self.run = Run(self)


def test_after_an_undo_a_nic_reads_as_it_was_found() -> None:
    happened: set[str] = set()
    for seed in SEEDS:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as name, pytest.MonkeyPatch.context() as p:
            world = World(seed, Path(name), p)
            try:
                for _ in range(STEPS):
                    world.one()
                world.nic.obeys()
                running = world.run
                if running is not None:
                    world.proven(running.restore)
                    running.close()
                world.proven(world.offline)
            except AssertionError as wrong:
                raise AssertionError(f"seed {seed}: {world.said}: {wrong}") from wrong
            happened |= world.seen
    assert {"restored", "paused", "offline", "(killed)", "refused undo"} <= happened
