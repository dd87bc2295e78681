# SPDX-License-Identifier: GPL-2.0-or-later
"""The parts of a daemon, built one by one around a real engine, executor, and journals: on NICs and
with an observer in memory, and without a supervisor.

A test takes the parts that it is about. What stands for the rest is noted or scripted here.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from atfnd.daemon.arming import Arming
from atfnd.daemon.changes import ChangeLog
from atfnd.daemon.executor import Executor
from atfnd.daemon.handshakes import BirthReader
from atfnd.daemon.held_filters import HeldFilters
from atfnd.daemon.in_force import InForce
from atfnd.daemon.nic_records import NicRecords
from atfnd.daemon.nics import ServedNics
from atfnd.daemon.recording import Recorder
from atfnd.daemon.session import NicSession, Sessions
from atfnd.daemon.sockets import SocketReader
from atfnd.daemon.watched_queues import WatchedQueues
from atfnd.engine.engine import Engine
from atfnd.engine.event import CpusRead, Event, NicAttached, NicRead
from atfnd.engine.table.memory import Memory
from atfnd.errors import OperatorError
from atfnd.kernel.interface import Interface
from atfnd.model import Action, Cpu, NicFacts, Outcome, Policy, Queue, SocketUse, Topology
from atfnd.move.event import Wanted
from atfnd.nic import Nic
from atfnd.observe import Observation, Qualify
from atfnd.observe.nics.watch import NicWatch
from atfnd.policy.match.matching import Matching, Sources
from atfnd.program.actuator import apply
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.operator_journal import OperatorJournal
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.serve.log.event_log import EventLog
from tests.nic.fake_nic import FakeNic
from tests.values import RULE

__all__ = ["POLICY", "Parts", "ScriptedNic", "ScriptedObserver", "parts_of"]

POLICY = Policy((), (RULE,), "auto", 64, 0, ())
CPUS = 8


class ScriptedNic(FakeNic):
    """A NIC whose interface the kernel calls `called`; None: it is gone. `napis` is the NAPI id of
    its first queue: a new one is a new life."""

    def __init__(self, name: str = "nic", ifindex: int = 1) -> None:
        super().__init__(name, ifindex=ifindex)
        self.called: str | None = name
        self.napis, self.irqs = 100 * ifindex, 10 * ifindex

    @property
    def interface(self) -> Interface:
        return cast(Interface, _Called(self))

    def queues(self) -> tuple[Queue, ...]:
        return tuple(
            replace(each, napi_id=self.napis + each.index, irq=self.irqs + each.index)
            for each in super().queues()
        )


class _Called:
    """As `kernel.interface.Interface`."""

    def __init__(self, nic: ScriptedNic) -> None:
        self._nic = nic

    def name(self) -> str:
        if self._nic.called is None:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return self._nic.called


class ScriptedObserver:
    """Implements `observe.Observer`: reports `batches`, one a call."""

    name = "scripted"

    def __init__(self) -> None:
        self.batches: list[list[Observation]] = []
        self.sockets: list[SocketUse] = []  # that exist
        self.reported: list[SocketUse] = []  # of those, that it has reported
        self.dropped, self.room = 0, 10**6
        self.watched: dict[int, str] = {}
        self.by_rfs: dict[str, dict[int, int]] = {}
        self.forgotten: set[int] = set()
        self.adopted: dict[int, int] = {}
        self.polls_s: float | None = None

    def fileno(self) -> int:
        return -1

    def poll_interval_s(self) -> float | None:
        return self.polls_s

    def qualify(self, qualify: Qualify) -> None:
        pass

    def watch(self, netns: Sequence[str | None], napis: Mapping[int, str]) -> int:
        self.watched = dict(list(napis.items())[: self.room])
        return len(napis) - len(self.watched)

    def hands_on(self, nic: str, cpus: Mapping[int, int]) -> None:
        self.by_rfs[nic] = dict(cpus)

    def drain(self) -> list[Observation]:
        return self.batches.pop(0) if self.batches else []

    def lost(self) -> int:
        return self.dropped

    def inventory(self) -> list[SocketUse]:
        return list(self.sockets)

    def adopt(self, cpus: Mapping[int, int]) -> None:
        self.adopted |= cpus

    def forget(self, cookies: Collection[int]) -> None:
        self.forgotten |= set(cookies)

    def expect(self, cookie: int, cpu: int, at_ns: int) -> None:
        pass

    def learn(self, cgroup: int, path: str, groups: int) -> None:
        pass

    def audit(self) -> list[SocketUse]:
        return list(self.reported)

    def reads(self, nic: str) -> None:
        return None

    def begin_survey(self) -> bool:
        return False

    def end_survey(self) -> Iterator[Callable[[], Any]]:
        return iter(())

    def close(self) -> None:
        pass


class ScriptedCpus:
    """As `CpuWatch`: CPU 0 and those after it, without those that are `offline`."""

    def __init__(self) -> None:
        self.offline: set[int] = set()

    def known(self) -> Topology:
        return self.read()

    def read(self) -> Topology:
        cpus = (
            Cpu(index=index, online=index not in self.offline, node=0, package=0, core=index,
                smt=(index,), llc=tuple(range(CPUS)), isolated=False, nohz_full=False)
            for index in range(CPUS)
        )  # fmt: skip
        return Topology(cpus=tuple(cpus), nodes=())


class ScriptedInterfaces:
    """As `Interfaces`: `here` are the NICs that can be opened. The policy says `armed` of them."""

    def __init__(self, here: dict[str, ScriptedNic]) -> None:
        self.here, self.armed = here, True
        self.refuses: dict[str, str] = {}
        self.changed: set[int] | None = {1}
        self.links: Any = self  # what drains

    def drain(self) -> set[int] | None:
        return self.changed

    def open(self, name: str) -> NicWatch:
        if name in self.refuses:
            raise OperatorError(self.refuses[name])
        return NicWatch(cast(Nic, self.here[name]))

    def may_have_come(self, changed: object, watched: Collection[str]) -> bool:
        return bool(self.here.keys() - watched)

    def come(
        self, watched: Collection[str], refused: Callable[[str, str], None]
    ) -> Iterator[NicWatch]:
        for name in sorted(self.here.keys() - set(watched)):
            if name in self.refuses:
                refused(name, self.refuses[name])
            else:
                yield self.open(name)


class Moves:
    """As `Moving`, but each action is written at once; those of `waits` are not."""

    def __init__(self, parts: Parts, nic: ScriptedNic) -> None:
        self._parts, self._nic = parts, nic
        self.waits: set[Any] = set()

    def want(self, wanted: Iterable[Wanted]) -> list[Outcome]:
        return [self._apply(each.action) for each in wanted if each.action.key not in self.waits]

    def _apply(self, action: Action) -> Outcome:
        parts = self._parts
        return apply(cast(Nic, self._nic), parts.journal, parts.undo_journal, action)

    def concerns(self, key: object) -> bool:
        return key in self.waits

    def flows(self) -> list[Any]:
        return list(self.waits)

    def tell(self, event: object) -> None:
        pass

    def know(self, *, measure: bool) -> None:
        pass

    def only_known(self, known: object) -> None:
        pass

    def close(self) -> None:
        pass


class Parts:
    """`events` has every event that the engine was given."""

    def __init__(self, folder: Path, policy: Policy, undo: ExitStack) -> None:
        self.folder, self.log, self.in_force = folder, EventLog(), InForce(policy)
        self.nics: dict[str, ScriptedNic] = {}
        self.sessions: Sessions = {}
        self.observer, self.cpus = ScriptedObserver(), ScriptedCpus()
        self.journal = FilterJournal(folder / "filters.journal")
        self.undo_journal = UndoJournal(folder / "originals.journal")
        self.operator_journal = OperatorJournal(folder / "orders.journal")
        for each in (self.journal, self.undo_journal, self.operator_journal):
            undo.callback(each.close)
        undo.callback(self._close_watches)
        self.engine = Engine(Memory.of(policy))
        self.events: list[Event] = []
        handle = self.engine.handle

        def heard(event: Event, now_ns: int) -> Any:
            self.events.append(event)
            return handle(event, now_ns)

        self.engine.handle = heard  # type: ignore[method-assign]
        cpus: Any = self.cpus
        self.executor = Executor(
            self.engine, self.sessions, self.observer, self.journal, self.undo_journal,
            ChangeLog(self.log, self.sessions, self.in_force), self.in_force,
        )  # fmt: skip
        self.executor.take(CpusRead(self.cpus.known()))
        self.matching = Matching(policy, Sources())
        self.recorder = Recorder(self.engine, self.sessions, self.observer, cpus)
        self.births = BirthReader(
            self.engine, self.executor, self.sessions, self.observer, self.matching, self.recorder,
            self.in_force, self.log,
        )  # fmt: skip
        self.sockets = SocketReader(
            self.engine, self.executor, self.sessions, self.observer, self.matching, self.births,
            self.recorder, cpus, self.in_force, self.log,
        )  # fmt: skip
        self.arming = Arming(
            self.engine, self.executor, self.sessions, self.undo_journal, cpus, self.in_force,
            self.log,
        )  # fmt: skip
        self.filters = HeldFilters(self.engine, self.executor, self.sockets, self.journal)
        self.interfaces = ScriptedInterfaces(self.nics)
        interfaces: Any = self.interfaces
        self.served = ServedNics(
            interfaces, self.sessions, self.executor, self.arming, self.filters,
            WatchedQueues(self.sessions, self.observer, self.births, self.log),
            NicRecords(self.journal, self.undo_journal, self.operator_journal), self.engine,
            lambda name: self.interfaces.armed, self.log,
        )  # fmt: skip

    def nic(self, name: str = "nic") -> ScriptedNic:
        """One more NIC of the machine, served by nobody yet."""
        made = self.nics[name] = ScriptedNic(name, len(self.nics) + 1)
        return made

    def serve(self, name: str = "nic", *, armed: bool = True) -> NicSession:
        """One more NIC, served outside a loop."""
        nic = self.nics.get(name) or self.nic(name)
        watch = NicWatch(cast(Nic, nic))
        self.executor.take(NicAttached(watch.facts, armed))
        session = self.sessions[name] = NicSession(watch, self.engine.memory.nics[name])
        watch.reports_to(self._read)
        self.writes_at_once(session)
        return session

    def _read(self, facts: NicFacts) -> None:
        self.executor.take(NicRead(facts))

    def writes_at_once(self, session: NicSession) -> Moves:
        """The moves of this NIC take no time from now on."""
        moves = Moves(self, self.nics[session.watch.nic.name])
        session.moves = cast(Any, moves)
        return moves

    def of(self, kind: type[Event]) -> list[Any]:
        """The events of one kind that the engine was given."""
        return [each for each in self.events if isinstance(each, kind)]

    def kinds(self) -> list[str]:
        """What the log has."""
        return [each.kind for each in self.log.after(0, 999)]

    def _close_watches(self) -> None:
        for session in self.sessions.values():
            session.watch.close()


@contextmanager
def parts_of(folder: Path, policy: Policy = POLICY) -> Iterator[Parts]:
    """Built, and their journals closed in the end."""
    with ExitStack() as undo:
        yield Parts(folder, policy, undo)
