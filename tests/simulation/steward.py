# SPDX-License-Identifier: GPL-2.0-or-later
"""A stand-in for the daemon, until the engine drives the world: it decides nothing by itself.

It carries out what a schedule orders, with the real parts: `Mover` and `Device` for moves,
`program.actuator.apply` with real journals for writes, `Undo` and `setting.undo` for a restore,
adoption by the journal after a start. It may be killed at any operation, and started again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from atfnd.model import Action, ActionKind, Filter, FlowKey, Match, Outcome, Restored
from atfnd.model.reason import Code
from atfnd.model.toeplitz import rss_queue
from atfnd.move.command import Ended
from atfnd.move.device import NicMoves
from atfnd.move.event import Event, EvidenceLost, FlowClosed, PortChanged, Reset, TimerDue, Wanted
from atfnd.move.mover import Mover
from atfnd.move.timer import Times
from atfnd.move.verdict import Mode
from atfnd.program import setting
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.program.undo import Undo
from tests.move.driven import driven
from tests.simulation.actuator import WorldActuator
from tests.simulation.disk import Disk
from tests.simulation.nic import WorldNic
from tests.simulation.world import Killed, World

__all__ = ["TIMES", "Steward"]

LOOK_NS = 2_000_000
TIMES = Times(
    hold_max_ns=5_000_000, arm_ns=20_000_000, quiet_ns=1_000_000, verify_ns=20_000_000,
    late_ns=5_000_000, follow_ns=20_000_000, hold_down_ns=1_000_000, hold_down_max_ns=50_000_000,
    timer_max_ns=10_000_000, move_every_ns=100_000,
)  # fmt: skip


@dataclass(slots=True)
class _Placed:
    """A filter that this run knows to be its own."""

    location: int
    queue: int


class Steward:
    """`run_dir` holds the journals. Dead until `start`."""

    def __init__(
        self,
        world: World,
        disk: Disk,
        run_dir: Path,
        nics: Callable[[], list[WorldNic]],
        ended: Callable[[WorldNic, Ended], None],
    ) -> None:
        self._world, self._disk, self._run_dir = world, disk, run_dir
        self._nics, self._ended = nics, ended
        self.alive = False
        self.placed: dict[tuple[str, FlowKey], _Placed] = {}
        self.movers: dict[str, Mover] = {}
        self.actuator: dict[str, WorldActuator] = {}
        self.written: set[tuple[Match, int]] = set()  # by any run of it

    # ---- life and death

    def start(self) -> None:
        """Open the journals, take over what they name."""
        self._guarded(self._start)

    def _start(self) -> None:
        self._world.dead = False
        self._world.note("start", "the daemon starts")
        self._world.operation("start")
        self.journal = FilterJournal(self._run_dir / "filters.journal")
        try:
            self.undo_journal = UndoJournal(self._run_dir / "originals.journal")
        except BaseException:
            self.journal.close()
            raise
        self.alive = True
        for trouble in (self.journal.trouble, self.undo_journal.trouble):
            if trouble is not None:
                self._world.broken("journal", trouble)
        for nic in self._nics():
            if nic.table.present:
                self._take(nic)

    def _take(self, nic: WorldNic) -> None:
        actuator = WorldActuator(nic, self.journal, self.undo_journal)
        self.actuator[nic.name] = actuator
        nic.ours.on_write = partial(self._before, nic)
        nic.ours.on_tried = lambda match, queue: self.written.add((match, queue))
        nic.ours.is_ambiguous = self.written.__contains__
        rules = nic.filters()
        if nic.table.up and (left := unnamed(self.journal, nic)):
            nic.world.broken("journal", f"{len(left)} filters of ours in {nic.name} are not in it")
        for rule in self.journal.ours(nic.name, rules):
            if rule.match is not None and rule.queue is not None:
                self.placed[nic.name, rule.match.key()] = _Placed(rule.location, rule.queue)
        self.movers[nic.name] = Mover(actuator, NicMoves(nic.port(None), TIMES))

    def _before(self, nic: WorldNic, match: Match, queue: int) -> None:
        self.written.add((match, queue))
        if not self.journal.names(nic.name, match):
            nic.world.broken("journal", f"{match} is written, and the journal does not name it")

    def die(self) -> None:
        """As killed: the kernel ends what it held, files stay as they are."""
        if self.alive:
            with self._disk.aside():
                self.journal.close()
                self.undo_journal.close()
        self.alive = False
        for actuator in self.actuator.values():
            actuator.close()
        self.actuator.clear()
        self.movers.clear()
        self.placed.clear()

    def _guarded(self, call: Callable[[], object]) -> None:
        """Until it is killed. OSError: the file system ends it, as it ends the daemon."""
        try:
            call()
        except Killed:
            self.die()
        except OSError as error:
            self._world.note("ended", f"the daemon ends: {error}")
            self.die()

    # ---- what it is asked to do

    def order(self, call: Callable[..., None], *arguments: object) -> None:
        """Do one of the following, unless it is killed on the way; started first, if it is dead."""
        if not self.alive:
            self.start()
        if self.alive:
            self._guarded(self.catch_up)
        if self.alive:
            self._guarded(partial(call, *arguments))

    def catch_up(self) -> None:
        """A new name that the disk refused is written now."""
        self.journal.catch_up()
        self.undo_journal.catch_up()

    def want(self, nic: WorldNic, key: FlowKey, queue: int, mode: Mode) -> None:
        """A flow, or all of a port, belongs on this queue."""
        if nic.name not in self.movers or queue >= len(nic.rings):
            return
        there, rss = self.placed.get((nic.name, key)), self._without(nic, key)
        if there is None:
            action = Action(ActionKind.INSERT, nic.name, key, None, None, queue, Code.UNSAID(), "")
            origins = rss
        else:
            kind = ActionKind.REWRITE
            action = Action(
                kind, nic.name, key, there.location, there.queue, queue, Code.UNSAID(), ""
            )
            origins = frozenset({there.queue})
        self._tell(nic, Wanted(action, mode, origins, rss))

    def withdraw(self, nic: WorldNic, key: FlowKey, live: bool, mode: Mode) -> None:
        """No filter for this flow any more: its socket is gone, or RSS is to deliver it."""
        there = self.placed.get((nic.name, key))
        if there is None or nic.name not in self.movers:
            return
        action = Action(
            ActionKind.DELETE,
            nic.name,
            key,
            there.location,
            there.queue,
            None,
            Code.UNSAID(),
            "",
            live=live,
        )
        gone = () if live else (FlowClosed(key),)
        origins, rss = frozenset({there.queue}), self._without(nic, key)
        self._tell(nic, *gone, Wanted(action, mode, origins, rss, live))

    def set_(self, nic: WorldNic, name: str, value: str) -> None:
        """A setting of this NIC."""
        if nic.name in self.movers:
            action = Action.of_setting(nic.name, name, value)
            self._tell(nic, Wanted(action, Mode.STRICT), TimerDue())

    def follow(self, nic: WorldNic, queue: int, cpu: int) -> None:
        """A queue is delivered on another CPU."""
        if nic.name in self.movers and queue < len(nic.rings):
            old = nic.rings[queue].cpu
            kind, at = ActionKind.QUEUE_CPU, frozenset({queue})
            action = Action(kind, nic.name, None, None, old, cpu, Code.UNSAID(), "", queue=queue)
            self._tell(nic, Wanted(action, Mode.STRICT, at))

    def reset(self, nic: WorldNic) -> None:
        """The kernel told that the NIC was reset, or its link went."""
        if nic.name in self.movers:
            self._tell(nic, Reset())
            self.check(nic)

    def lost(self, nic: WorldNic) -> None:
        """The NIC is gone: so is all that was known of it."""
        if nic.name in self.movers:
            self._forget(nic.name)
        for match in self.journal.left.get(nic.name, {}):
            self.journal.release(nic.name, match)
        for each in self.undo_journal.held(nic.name):
            self.undo_journal.forget(nic.name, each)

    def came(self, nic: WorldNic) -> None:
        """There is a NIC of this name."""
        if nic.name not in self.movers:
            self._take(nic)

    def renamed(self, nic: WorldNic, new: str) -> None:
        """The interface has another name."""
        self._forget(nic.name)
        self.journal.rename(nic.name, new)
        self.undo_journal.rename(nic.name, new)
        nic.name = nic.ours.name = new
        self._take(nic)

    def restore(self, nic: WorldNic) -> list[Restored]:
        """Everything of ours out of it, as `pause` and `atfnd restore` do."""
        if nic.name in self.movers:
            self._tell(nic, Reset())
            self._forget(nic.name)
        self._world.operation("restore")
        undo = Undo(nic, self.journal, self.undo_journal)
        outcomes = undo.filters(Code.KERNEL("restore"))
        done = [
            Restored(nic.name, "filter", each.errno, each.left) for each in outcomes if each.errno
        ]
        undone = setting.undo(nic, self.undo_journal)
        done += (Restored(nic.name, *each) for each in undone)
        done += undo.differences(undone)
        self.undo_journal.take_back(nic.name)
        self._world.note(
            "restored", f"{nic.name} is restored: {'; '.join(map(str, done)) or 'all'}"
        )
        self._take(nic)
        return done

    def check(self, nic: WorldNic) -> None:
        """Read the filters: one that is not there is not ours any more."""
        if nic.name not in self.movers or not nic.table.up:
            return
        rules = {rule.location: rule for rule in nic.filters()}
        for (name, key), there in list(self.placed.items()):
            found, match = rules.get(there.location), Match.of(key)
            same = found is not None and (found.match, found.queue) == (match, there.queue)
            if name == nic.name and not same and key not in self.movers[name].device.live:
                del self.placed[name, key]
                self.journal.release(name, match)

    def lost_evidence(self, nic: WorldNic) -> None:
        if nic.name in self.movers:
            self._tell(nic, EvidenceLost())

    # ---- time

    def due_ns(self) -> int | None:
        """When it wants to look again."""
        dues = [mover.due_ns() for mover in self.movers.values()]
        if any(actuator.watched for actuator in self.actuator.values()):
            dues.append(self._world.now_ns + LOOK_NS)
        return min((due for due in dues if due is not None), default=None)

    def look(self) -> None:
        """Take in what was observed."""
        self._guarded(self._look)

    def _look(self) -> None:
        for nic in self._nics():
            if nic.name in self.movers:
                seen = self.actuator[nic.name].evidence(self._world.now_ns)
                self._tell(nic, *seen, TimerDue())

    def _tell(self, nic: WorldNic, *events: Event) -> None:
        mover, actuator = self.movers[nic.name], self.actuator[nic.name]
        port = nic.port(actuator.write_ns())
        facts = () if port == mover.device.port else (PortChanged(port),)
        for said in driven(mover, *facts, *events):
            if isinstance(said, Ended):
                self._ended(nic, said)
            else:
                self._report(nic, said)

    def _report(self, nic: WorldNic, outcome: Outcome) -> None:
        """As the Flow-to-Core table hears of a write."""
        action = outcome.action
        if action.key is None:
            return
        at, there = (nic.name, action.key), outcome.location
        if action.kind is ActionKind.DELETE:
            if not outcome.errno:
                self.placed.pop(at, None)
        elif there is None:
            self.placed.pop(at, None)
        elif not outcome.errno or outcome.found:
            queue = outcome.queue if outcome.found else action.new
            self.placed[at] = _Placed(there, queue or 0)

    def leftovers(self) -> Iterator[str]:
        """What never ends, once all is quiet."""
        for name, mover in self.movers.items():
            if mover.device.live or mover.device.waiting or mover.device.settings:
                yield f"a move of {name} never ends"
            if self.actuator[name].watched:
                yield f"a flow of {name} is watched for ever"

    def _forget(self, name: str) -> None:
        self.actuator.pop(name).close()
        del self.movers[name]
        for at in [at for at in self.placed if at[0] == name]:
            del self.placed[at]

    def misled(self, nic: WorldNic, key: FlowKey | None) -> bool:
        """This flow is not under the filter of its port any more, and no look has shown it: the
        stand-in reads filters at a reset only, the daemon at each audit."""
        port = None if key is None else self.placed.get((nic.name, _port_of(key)))
        ours = {entry.location for entry in nic.our_entries()}
        return port is not None and port.location not in ours

    def _without(self, nic: WorldNic, key: FlowKey) -> frozenset[int] | None:
        """The queues that a flow comes through whenever it has no filter of its own: its port's, or
        those of RSS."""
        port = _port_of(key)
        filter_ = self.placed.get((nic.name, port))
        if filter_ is not None and key != port:
            return frozenset({filter_.queue})
        rss = nic.rss()
        queue = rss_queue(rss, key, rss.transforms[0]) if rss.named else None
        return frozenset(rss.table) if queue is None else frozenset({queue})


def _port_of(key: FlowKey) -> FlowKey:
    return FlowKey(key.protocol, key.local, key.local_port, bytes(len(key.remote)), 0)


def unnamed(journal: FilterJournal, nic: WorldNic) -> list[Filter]:
    """Filters of ours in a NIC that a journal does not say to be ours."""
    rules = [Filter(e.location, e.match, e.queue) for e in nic.our_entries()]
    named = journal.ours(nic.name, rules)
    return [rule for rule in rules if rule not in named]
