# SPDX-License-Identifier: GPL-2.0-or-later
"""An application with an epoll that does not know IRQ suspension, its values set from outside and
read back inside: a real process, a real journal, and the daemon's part that writes."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atfnd.daemon import assisting
from atfnd.daemon.assisting import Assisting
from atfnd.engine.engine import Engine
from atfnd.engine.ownership.owner import Owned
from atfnd.engine.table.memory import RulesInForce
from atfnd.kernel.system import epoll as system
from atfnd.model import (
    EpollId,
    EpollParams,
    Outcome,
    Policy,
    Reception,
    ReceptionMode,
    Restored,
    Thread,
)
from atfnd.observe.processes import cgroup
from atfnd.program.epoll import EPOLLS
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.program.restore import restored
from atfnd.serve.log.event_log import EventLog
from tests.replay.test_replay import POLICY
from tests.standing import like
from tests.values import NIC, RULE, flow
from tests.writers import writer

__all__: list[str] = []

SUSPENDED = Reception(ReceptionMode.SUSPENDED, 20_000, 100, 20_000_000)
ASSISTS = replace(RULE, reception=SUSPENDED, assist="epoll")
PARAMS = struct.Struct("=IHBx")  # struct epoll_params

APPLICATION = """
import fcntl, os, select, socket, sys
used, other = select.epoll(), select.epoll()
one, two = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socketpair()
used.register(one.fileno()), other.register(two[0].fileno())
inode = os.fstat(one.fileno()).st_ino
print(inode, used.fileno(), other.fileno(), flush=True)
for line in sys.stdin:
    if line.strip() == "set":
        fcntl.ioctl(used.fileno(), 0x40088A01, bytes([9, 0, 0, 0, 8, 0, 0, 0]))
    elif line.strip() == "anew":
        used.close()
    print(*(fcntl.ioctl(each.fileno(), 0x80088A02, bytes(8)).hex()
            for each in (used, other) if not each.closed), flush=True)
"""


class Served:
    """The application. `used` watches a socket of a flow, `other` does not."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", APPLICATION],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.inode, self.used, self.other = map(int, self._line().split())
        self.pid = self.process.pid
        self.born = cgroup.born(self.pid) or 0

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def says(self, order: str = "get") -> list[str]:
        """What it reads of its epolls that are open."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
        found = (PARAMS.unpack(bytes.fromhex(each)) for each in self._line().split())
        return [" ".join(map(str, each)) for each in found]

    @property
    def setting(self) -> str:
        return EpollId(self.pid, self.born, self.used).setting

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


class World:
    """A daemon that serves a NIC with one owned queue."""

    def __init__(self, app: Served, path: Path) -> None:
        self.app, self.path, self.log = app, path, EventLog()
        self.outcomes: list[Outcome] = []
        self.fresh()

    def fresh(self) -> None:
        """A run of the daemon begins."""
        self.journal = UndoJournal(self.path)
        session = SimpleNamespace(view=NIC, inode_of=lambda key: self.app.inode)
        self.sessions: Any = {NIC.name: session}
        executor = writer(self.sessions, self.journal, self.log, self.outcomes.append)
        self.engine: Engine = executor._engine
        self.assisting = Assisting(executor, self.sessions, self.journal, self.log)
        self.policy(replace(POLICY, flows=(ASSISTS,)))
        thread = Thread(self.app.pid, self.app.pid, "app", None)
        self.engine.memory.table.put(flow(1, rule_name=RULE.name, thread=thread))
        self.stands(armed=True)
        self.own(self.app.pid)

    def policy(self, policy: Policy) -> None:
        self.engine.memory.in_force = RulesInForce.of(policy)

    def own(self, tid: int) -> None:
        self.engine.memory.nics[NIC.name].owned = {2: Owned(("thread", tid), 0)}

    def stands(self, *, armed: bool) -> None:
        view = replace(NIC, armed=armed)
        self.sessions[NIC.name].view = view
        for event in like(view):
            self.engine.handle(event, 0)

    @property
    def held(self) -> set[str]:
        return set(self.journal.held(EPOLLS))

    def restore(self) -> list[Restored]:
        """`atfnd restore`, without a daemon."""
        self.journal.close()
        self.journal = UndoJournal(self.path)
        filters: Any = SimpleNamespace(left={})
        return restored(filters, self.journal)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.log.after(0, 100)]


@pytest.fixture
def app() -> Iterator[Served]:
    made = Served()
    yield made
    made.end()


@pytest.fixture
def world(app: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(assisting, "_RESTS_NS", 0)
    made = World(app, tmp_path / "journal")
    yield made
    made.journal.close()


NONE, OURS, ITS_OWN = "0 0 0", "0 64 1", "9 8 0"


def test_the_epoll_of_a_flow_prefers_busy_polling_and_no_other_one(world: World) -> None:
    world.assisting.look()
    assert world.app.says() == [OURS, NONE]
    assert world.held == {world.app.setting}
    world.assisting.look()
    assert len(world.outcomes) == 1


def test_what_the_application_chose_itself_is_kept_and_put_back(world: World) -> None:
    world.app.says("set")
    world.assisting.look()
    assert world.app.says() == ["9 8 1", NONE]
    assert world.assisting.pause() == []  # an armed NIC needs it
    world.stands(armed=False)
    (done,) = world.assisting.pause()
    assert done.done
    assert world.app.says() == [ITS_OWN, NONE]
    assert world.held == set()


def test_a_process_that_owns_no_such_queue_any_more_gets_its_values_back(world: World) -> None:
    world.assisting.look()
    world.own(1)
    world.assisting.look()
    assert world.app.says() == [NONE, NONE]
    world.own(world.app.pid)
    world.assisting.look()
    assert world.app.says() == [OURS, NONE]
    world.policy(replace(POLICY, flows=(replace(ASSISTS, assist="none"),)))
    world.assisting.look()
    assert world.app.says() == [NONE, NONE]


def test_a_nic_that_is_not_armed_assists_nobody(world: World) -> None:
    world.stands(armed=False)
    world.assisting.look()
    assert world.app.says() == [NONE, NONE]


def test_restore_puts_back_what_a_killed_daemon_left(world: World) -> None:
    world.assisting.look()
    (done,) = world.restore()
    assert done.done
    assert world.app.says() == [NONE, NONE]
    assert world.held == set()


def test_what_the_application_sets_later_is_left_alone_until_a_resume(world: World) -> None:
    world.assisting.look()
    world.app.says("set")
    for _ in range(2):
        world.assisting.look()
    assert world.app.says() == [ITS_OWN, NONE]
    assert world.kinds().count("manual") == 1
    world.assisting.take_back()
    world.assisting.look()
    assert world.app.says() == ["9 8 1", NONE]
    world.app.says("set")
    world.restore()
    assert world.app.says() == [ITS_OWN, NONE]


def test_what_an_undo_finds_changed_is_not_written_afterwards_either(world: World) -> None:
    world.assisting.look()
    world.app.says("set")
    world.own(1)
    world.assisting.look()
    world.own(world.app.pid)
    world.assisting.look()
    assert world.app.says() == [ITS_OWN, NONE]


def test_a_process_and_an_epoll_that_are_gone_are_forgotten(world: World) -> None:
    world.assisting.look()
    assert world.app.says("anew") == [NONE]
    world.assisting.look()
    assert world.held == set()
    gone = EpollId(world.app.pid, world.app.born - 1, world.app.used).setting
    for setting in (gone, EpollId(1 << 22, 1, 3).setting):
        world.journal.note(EPOLLS, setting, NONE)
    world.assisting.look()
    assert world.held == set()


def test_a_life_that_has_ended_is_not_written_to(app: Served) -> None:
    before = EpollId(app.pid, app.born - 1, app.used)
    assert system.read_params(before) is None
    with pytest.raises(KeyError):
        system.write_params(before, EpollParams(0, 64, True))
    assert system.read_params(EpollId(app.pid, app.born, 0)) is None  # a pipe
    assert system.read_params(EpollId(app.pid, app.born, 1000)) is None
    assert app.says() == [NONE, NONE]


def test_a_refusal_is_said_once_and_tried_again_when_it_is_armed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(epoll: EpollId) -> int:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as refusing:
        refusing.setattr(system, "_getfd", refuse)
        for _ in range(3):
            world.assisting.look()
    assert world.kinds() == ["refused"]
    world.assisting.look()
    assert world.app.says() == [NONE, NONE]
    world.assisting.arm()
    world.assisting.look()
    assert world.app.says() == [OURS, NONE]


def test_a_process_is_looked_into_once_in_ten_seconds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assisting, "_RESTS_NS", 10**13)
    looked: list[int] = []

    def watching(pid: int, inodes: set[int]) -> list[int]:
        looked.append(pid)
        return []

    monkeypatch.setattr(assisting, "watching", watching)
    for _ in range(3):
        world.assisting.look()
    assert looked == [world.app.pid]
