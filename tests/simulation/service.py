# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon as it is, in the world: `daemon.supervisor.Supervisor` on a loop in virtual time.

Its engine, executor, journals and chores are the real ones; what it asks the kernel, the world
answers (kernel.py). It may be killed at any operation, and started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from atfnd.daemon.chores import Pace
from atfnd.daemon.interface_rules import Given
from atfnd.daemon.served import Served
from atfnd.daemon.supervisor import Supervisor
from atfnd.daemon.wanted_reports import asked
from atfnd.engine.engine import Engine
from atfnd.errors import OperatorError
from atfnd.model import FlowKey, Match, Restored, SteeringMethod
from atfnd.move.learn import Record
from atfnd.observe.nics.interfaces import Interfaces
from atfnd.observe.nics.watch import NicWatch
from atfnd.policy.file.load import load
from atfnd.program.host_settings import HOST
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.operator_journal import OperatorJournal
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.program.restore import restored, take_back
from tests.simulation.disk import Disk, WatchedJournal
from tests.simulation.kernel import NICS, Kernel
from tests.simulation.loop import WorldLoop
from tests.simulation.machine import WorldObserver
from tests.simulation.nic import WorldNic
from tests.simulation.world import Killed, World

__all__ = ["Answer", "Service"]

PACE = Pace(0.2, 1.0, 2.0)
TIMERS_MOST = 28  # one for each chore and what it waits for, one for each NIC whose moves wait
PROBED = bytes((192, 0, 2, 2)), bytes.fromhex("20010db8") + bytes(11) + b"\2"  # nobody's
PATIENCE_NS = 60_000_000_000  # an order takes less


class Answer(NamedTuple):
    """Of an order that was done."""

    said: Any


class Service:
    """`run_dir` holds journals and policy. Dead until `start`."""

    def __init__(
        self, world: World, disk: Disk, run_dir: Path, kernel: Kernel, policy: str
    ) -> None:
        self._world, self._disk, self._run_dir, self._kernel = world, disk, run_dir, kernel
        self._policy_file = run_dir / "atfnd.yaml"
        self.policy(policy)
        self.alive = False
        self._closing: list[FilterJournal | UndoJournal | OperatorJournal] = []
        self.written: set[tuple[Match, int]] = set()  # by any run of it
        self.supervisor: Supervisor | None = None
        self.undone: list[Restored] | None = None  # at the last stop; None: it undid nothing
        kernel.opened = self._opened
        kernel.balancers.journal = lambda: getattr(self, "undo_journal", None)
        kernel.host.is_ours = partial(self._is_ours, HOST)

    # ---- life and death

    def start(self) -> None:
        """As `atfnd run --nic 'eth*' --nic 'ren*'`."""
        self._guarded(self._start)

    def _start(self) -> None:
        world, kernel = self._world, self._kernel
        world.dead = False
        self._closing.clear()
        world.note("start", "the daemon starts")
        world.operation("start")
        read = partial(load, self._policy_file)
        policy, given = read(), Given(read, ())
        self.alive = True
        self._loop = WorldLoop(world, kernel.descriptors)
        self._open_journals()
        if self._disk.failed_ns is not None or self._disk.was_full:
            kernel.balancers.restarted()
        self._interfaces = Interfaces(NICS, NicWatch)
        watches = self._interfaces.start()
        self._observer = WorldObserver(
            kernel.machine, asked(policy, kernel.topology()), 10**9, kernel.descriptors
        )
        self.supervisor = supervisor = Supervisor(
            self._interfaces, self._observer, "", policy, self.journal, self.undo_journal,
            self.orders, given,
        )  # fmt: skip
        supervisor.pace = PACE
        self._stop = asyncio.Event()
        running = supervisor.run(watches, self._stop, self._close_api, self._run_dir / "atfnd.sock")
        self._task = self._loop.create_task(running)

    async def _close_api(self) -> None:
        """Answers that are under way take a while."""
        await asyncio.to_thread(int)

    def _open_journals(self) -> None:
        self._closing.clear()
        self._closing.append(journal := WatchedJournal(self._run_dir / "filters.journal"))
        self._closing.append(undo_journal := UndoJournal(self._run_dir / "originals.journal"))
        self._closing.append(orders := OperatorJournal(self._run_dir / "orders.journal"))
        self.journal, self.undo_journal, self.orders = journal, undo_journal, orders
        for each in self._closing:
            if each.trouble is not None:
                self._world.broken("journal", each.trouble)

    def die(self) -> None:
        """As killed: the kernel ends what it held, files stay as they are."""
        if not self.alive:
            return
        self.alive = False
        world, self.supervisor = self._world, None
        world.dead, was = True, world.dead
        self._kernel.forget()
        for task in asyncio.all_tasks(self._loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine: Any = task.get_coro()
            with suppress(BaseException):
                coroutine.close()  # what its `finally` would write is refused: it is dead
        with self._disk.aside():
            for each in self._closing:
                each.close()
            self._closing.clear()
        observer: WorldObserver | None = getattr(self, "_observer", None)
        if observer in self._kernel.machine.observers and observer is not None:
            observer.close()
        self._loop.set_exception_handler(lambda loop, context: None)
        self._loop.close()
        world.dead = was

    def _guarded(self, call: Callable[[], object]) -> None:
        """Until it is killed. OSError: the file system ends it, as it ends the daemon."""
        try:
            call()
            self._reap()
        except Killed:
            self.die()
        except (OSError, OperatorError) as error:
            self._world.note("ended", f"the daemon ends: {error}")
            if not self._disk.full and self._disk.failed_ns != self._world.now_ns:
                self._world.broken("crash", f"it ends with {error!r}")
            self.die()

    def _reap(self) -> None:
        """Pass on what ended it. When it was asked to end, it has closed what it had open."""
        if self.alive and self._task.done():
            self._task.result()
            assert self.supervisor is not None
            if timers := self._loop.timers():
                self._world.broken("leak", f"it ends, and {timers} timers go on")
            if self.supervisor.restoring:
                self.undone = restored(self.journal, self.undo_journal)
            self._interfaces.close()
            self._observer.close()
            if left := self._kernel.descriptors.still_open():
                self._world.broken("leak", f"it ends, and {len(left)} descriptors are open")
            self._world.note("stop", "the daemon stops")
            self.die()

    # ---- what it is asked

    def order(self, verb: str, *arguments: Any) -> Answer | None:
        """As `atfnctl VERB NIC`. None: not all of it was done, or the daemon is dead."""
        if not self.alive:
            self.start()
        answer: list[Answer] = []
        if self.alive:
            self._guarded(partial(self._order, verb, arguments, answer))
        return answer[0] if answer else None

    def _order(self, verb: str, arguments: Sequence[Any], answer: list[Answer]) -> None:
        assert self.supervisor is not None
        source: Served = self.supervisor.source
        asked: Coroutine[Any, Any, Any] = getattr(source, verb)(*arguments)
        done = self._loop.create_task(asked)
        self._loop.run_until(self._world.now_ns)
        limit_ns = self._world.now_ns + PATIENCE_NS
        while not done.done() and not self._task.done() and self._world.now_ns < limit_ns:
            self._loop.run_until(self._world.now_ns + 1_000_000)
        if not done.done():
            self._world.broken("order", f"{verb} has no answer")
        try:
            answer.append(Answer(done.result()))
        except OperatorError as refusal:
            self._world.note(f"{verb} refused", f"{verb}: {refusal.message}")
        except KeyError:
            self._world.note(f"{verb} of none", f"{verb}: there is no such NIC")
        except OSError as refusal:  # the API says 409 (serve/api/routes.py); the daemon goes on
            if self._disk.full or self._disk.failed_ns == self._world.now_ns:
                raise
            self._world.note(f"{verb} refused", f"{verb}: {refusal.strerror}")

    def policy(self, text: str) -> None:
        """Write another policy; `reload` puts it in force."""
        self._policy_file.write_text(text)

    def reload(self) -> None:
        """SIGHUP."""
        if self.alive and self.supervisor is not None:
            self.supervisor.hangup.set()

    def stop(self) -> None:
        """SIGTERM: it has ended afterwards."""
        self.undone = None
        if self.alive:
            self._stop.set()
            limit_ns = self._world.now_ns + PATIENCE_NS
            while self.alive and self._world.now_ns < limit_ns:
                self._guarded(partial(self._loop.run_until, self._world.now_ns + 1_000_000))
            if self.alive:
                self._world.broken("stop", "it does not stop")

    def restore_offline(self) -> list[Restored] | None:
        """As `atfnd restore`, while no daemon runs. None: it did not come to its end."""
        self._world.dead = False
        self.alive = True
        self._loop = WorldLoop(self._world, self._kernel.descriptors)
        done: list[Restored] = []

        def restore() -> None:
            self._open_journals()
            done.extend(restored(self.journal, self.undo_journal))
            take_back(self.undo_journal)
            done.append(Restored("", "", 0, ""))

        try:
            restore()
        except (Killed, OSError) as error:
            self._world.note("restore ended", f"restore ends: {error!r}")
        self.die()
        return done[:-1] if done and not done[-1].nic else None

    # ---- time

    def run_until(self, until_ns: int) -> None:
        """Let time pass."""
        if self.alive:
            self._guarded(partial(self._loop.run_until, until_ns))
        self._world.run_until(max(until_ns, self._world.now_ns))

    def next_ns(self) -> int | None:
        """When it may do something by itself. None: not before something happens to it."""
        return self._loop.next_ns() if self.alive else None

    @property
    def engine(self) -> Engine:
        assert self.supervisor is not None
        return self.supervisor._engine

    def restores_at_stop(self) -> bool:
        """The policy asks for that: the one in force, or that of a reload which is not over yet."""
        there = self.supervisor
        if there is None:
            return False
        reloads = there.hangup.is_set() or there._reload._one.locked()
        policy = load(self._policy_file) if reloads else there._in_force.policy
        return policy.on_stop == "restore"

    def armed(self, nic: str) -> bool:
        """It may write to this NIC."""
        view = self.engine.views.get(nic)  # None: it could not be read, and is not watched
        return view is not None and view.armed

    def paused(self, nic: str) -> bool:
        """It runs, and took everything of ours out of this NIC."""
        view = self.engine.views.get(nic) if self.alive else None
        return view is not None and view.paused

    def moving(self) -> set[FlowKey]:
        """What is being written, or waits for its turn."""
        assert self.supervisor is not None
        moves = (session.moves for session in self.supervisor._sessions.values())
        return {key for each in moves if each is not None for key in each.flows()}

    def taught(self, nic: str, key: FlowKey) -> Record:
        """What moves of this flow taught (docs/internals/ordering.md)."""
        assert self.supervisor is not None
        moves = self.supervisor._sessions[nic].moves
        records = None if moves is None else moves._mover.device.records
        return Record(0) if records is None else records.get(key, Record(0))

    def leftovers(self) -> Iterator[str]:
        """What never ends, once all is quiet."""
        now_ns = self._world.now_ns
        assert self.supervisor is not None
        for name, session in self.supervisor._sessions.items():
            if session.moves is not None:
                device = session.moves._mover.device
                old = [m for m in device.live.values() if now_ns - m.began_ns > PATIENCE_NS // 10]
                if old or device.settings:
                    yield f"a move of {name} never ends"
                actuator = next(each for nic, each in self._kernel.actuator if nic.name == name)
                if actuator.watched.keys() - device.live.keys():
                    yield f"a flow of {name} is watched for ever"
        yield from self._grown()

    def _grown(self) -> Iterator[str]:
        """What would be more with every flow that comes and goes."""
        engine, loop = self.engine, self._loop
        memory, table, moving = engine.memory, engine.memory.table, self.moving()
        if (timers := loop.timers()) > TIMERS_MOST:
            yield f"the loop waits for {timers} timers"
        ours = self._kernel.descriptors.still_open()
        if (idle := len(ours - loop.readers())) > len(self._kernel.actuator):
            yield f"nothing reads {idle} descriptors"
        if unjudged := {each.key for each in engine._unjudged_ports()} - moving:
            yield f"the ports {unjudged} are never judged by the new policy"
        for name, known in memory.nics.items():
            ports = set() if known.listeners is None else {*known.listeners.sockets}
            later = {
                each for each in known.spending.later if each.listens and table.get(each) is None
            }
            if gone := later - ports:
                yield f"{name} remembers when filters of {gone} may be tried, and nobody listens"
        for name, session in self.supervisor._sessions.items() if self.supervisor else ():
            records = () if session.moves is None else session.moves._mover.device.records
            flows = {each for each in records if isinstance(each, FlowKey)} - moving
            if gone := {each for each in flows if table.get(each) is None}:
                yield f"{name} remembers moves of {gone}, which have no entry"

    def threads(self) -> set[int]:
        """Those that it remembers, and that use no flow of the table."""
        memory = self.engine.memory
        return {tid for tid in memory.threads if not memory.table.of_thread(tid)}

    def _opened(self, nic: WorldNic) -> None:
        nic.ours.on_write = partial(self._before, nic)
        nic.ours.on_tried = lambda match, queue: self.written.add((match, queue))
        nic.ours.is_ambiguous = self.written.__contains__
        nic.is_ours = lambda setting, value: (
            self._lives_anew(nic) or self._is_ours(nic.name, setting, value)
        )
        nic.noticed = lambda setting: setting in self.undo_journal.manual(nic.name)
        nic.counted = self._kernel.machine.spend

    def wrote(self, nic: str, setting: str, value: str) -> bool:
        """By the journal, this value is what it wrote."""
        journal = getattr(self, "undo_journal", None)  # None: it has never been there
        held = None if journal is None else journal.held(nic).get(setting)
        return held is not None and held.ours(value)

    def _lives_anew(self, nic: WorldNic) -> bool:
        """It has come up anew since atfnd wrote to it: what it has is as found."""
        life = " ".join(map(str, (nic.ifindex, *(ring.napi_id for ring in nic.rings))))
        return self.undo_journal.life(nic.name) not in (None, life)

    def _is_ours(self, nic: str, setting: str, value: str) -> bool:
        """False: it was ours, and this value is another program's."""
        if not hasattr(self, "undo_journal"):  # it has never been there
            return True
        held = self.undo_journal.held(nic).get(setting)
        if held is None:
            return setting not in self.undo_journal.manual(nic) | self._relied_on(nic)
        return held.ours(value)

    def _relied_on(self, nic: str) -> set[str]:
        """The CPUs of queues that flows are led to."""
        session = None if self.supervisor is None else self.supervisor._sessions.get(nic)
        if session is None or not session.met or not session.view.armed:
            return set()
        if session.view.method is SteeringMethod.NONE or self._world.seen["disk full"]:
            return set()
        return {f"queue-cpu:{q.index}" for q in session.view.queues if q.cpu is not None}

    def _before(self, nic: WorldNic, match: Match, queue: int) -> None:
        self.written.add((match, queue))
        if not self.journal.names(nic.name, match):
            nic.world.broken("journal", f"{match} is written, and the journal does not name it")
        key = match.key()
        if (
            key is not None
            and key.local not in PROBED
            and self.engine.memory.table.get(key) is None
        ):
            nic.world.broken("outlived", f"{key} is written, and has no entry")
