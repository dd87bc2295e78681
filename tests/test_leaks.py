# SPDX-License-Identifier: GPL-2.0-or-later
"""What a daemon knows of a NIC or a move ends with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from atfnd.daemon import Daemon
from atfnd.decide.memory import Memory, Settling
from atfnd.decide.retire import nic_gone
from atfnd.decide.strays import Strays
from atfnd.decide.table import FlowTable
from atfnd.errors import OperatorError
from atfnd.model import FlowKey, FlowState, Match
from atfnd.observe import interfaces
from atfnd.observe.interfaces import Interfaces
from atfnd.observe.nics import NicWatch
from atfnd.serve.eventlog import EventLog
from tests.values import NIC, flow, key

__all__: list[str] = []

PORT = key(0)._replace(remote=bytes(4), remote_port=0)


def a_daemon(*entries: int) -> Any:
    daemon: Any = Daemon.__new__(Daemon)
    daemon.memory, daemon.log = Memory(FlowTable(64), Settling(100, 10**12)), EventLog()
    daemon._moving, daemon._living, daemon._births = {}, {}, None
    daemon._unborn, daemon._asked, daemon._homes = set(), set(), {}
    daemon._strays = Strays()
    for number in entries:
        daemon.memory.table.put(flow(number))
    return daemon


def a_watch(name: str = "nic", new: str | None = None) -> Any:
    watch: Any = NicWatch.__new__(NicWatch)
    watch.view = replace(NIC, name=name)
    watch.name_now = lambda: new
    return watch


def moving(*flows: FlowKey) -> SimpleNamespace:
    return SimpleNamespace(flows=lambda: list(flows), close=lambda: None)


class TestDroppedMoves:
    """The NIC is disarmed, paused or gone: what waits to be moved there is not."""

    def test_a_birth_ends_with_its_move(self) -> None:
        daemon = a_daemon(1, 2)
        daemon._unborn, daemon._asked = {key(1), key(7)}, {PORT}
        daemon._moving["nic"] = moving(key(1), PORT)
        daemon._still(a_watch())
        assert (daemon._unborn, daemon._asked) == ({key(7)}, set())  # one of another NIC's
        assert [each.key for each in daemon.memory.table] == [key(2)]

    def test_a_later_move_that_is_deferred_leaves_its_entry(self) -> None:
        daemon = a_daemon()
        daemon.memory.table.put(flow(1, location=5, state=FlowState.STEERED))
        daemon._unborn = {key(1)}
        daemon._moving["nic"] = moving(key(1))
        daemon._still(a_watch())
        daemon.memory.table.put(flow(1))  # a later rule of it was lost
        assert not daemon._was_born(key(1), failed=True)
        assert daemon.memory.table.get(key(1)) is not None


class TestGone:
    def test_all_its_flows_are_forgotten(self) -> None:
        """Also those without a rule: they come by another name, and are to be told of again."""
        daemon = a_daemon(1)
        daemon.memory.table.put(flow(2, location=5, state=FlowState.STEERED))
        daemon.memory.table.put(flow(3, nic="other"))
        daemon.memory.overflowed[key(4)] = flow(4, state=FlowState.OVERFLOW)
        gone = nic_gone("nic", daemon.memory)
        assert {each.key for each in gone} == {key(1), key(2), key(4)}
        assert [each.key for each in daemon.memory.table] == [key(3)]
        assert daemon.memory.overflowed == {}

    @pytest.mark.parametrize("new", [None, "new"])
    def test_so_is_where_its_queues_were(self, new: str | None) -> None:
        """One that is renamed takes that along."""
        daemon = a_daemon(1)
        released, forgotten = [], set[int]()
        watch = a_watch("nic", new)
        daemon.watches = {"nic": watch}
        daemon._homes = {("nic", 0): 3, ("other", 0): 1}
        daemon.memory.table.put(flow(2, location=5, state=FlowState.STEERED))
        daemon.arming = SimpleNamespace(gone=lambda watch: None)
        renamed = SimpleNamespace(rename=lambda old, new: None)
        daemon.originals = renamed
        daemon.journal = SimpleNamespace(
            release=lambda name, match: released.append(match),
            rename=renamed.rename,
            left={"nic": {Match.of(key(2)): 5}},
        )
        daemon.observer = SimpleNamespace(forget=forgotten.update)
        daemon._detach = daemon._take = lambda *watch: None
        daemon._watch = lambda: None
        daemon._holds_for = lambda new, watch: None
        daemon.interfaces = SimpleNamespace(open=lambda name: watch)
        daemon._gone(watch)
        there = {(new, 0): 3} if new else {}
        assert daemon._homes == {("other", 0): 1} | there
        assert forgotten == {1001, 1002}
        assert len(released) == (0 if new else 1)


class TestArrivals:
    """Interfaces of a machine that are not what they are asked to be."""

    @pytest.fixture
    def wanted(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Interfaces]:
        self.here, self.labs = {1: "eth0"}, set[str]()
        self.refuses: dict[str, str] = {}

        def open_nic(name: str) -> Any:
            if name in self.refuses:
                raise OperatorError(self.refuses[name])
            return name

        monkeypatch.setattr(interfaces, "links", lambda: self.here)
        monkeypatch.setattr(interfaces, "open_nic", open_nic)
        monkeypatch.setattr(interfaces, "lab_is_there", lambda name: name in self.labs)
        watch: Any = lambda nic: nic  # noqa: E731
        made = Interfaces(["eth0", "lab:lab"], watch)
        yield made
        made.close()

    def come(self, wanted: Interfaces, *watched: str) -> tuple[list[Any], list[tuple[str, str]]]:
        said: list[tuple[str, str]] = []
        found = list(wanted.come(watched, lambda name, why: said.append((name, why))))
        return found, said

    def test_one_that_cannot_be_watched_is_told_once(self, wanted: Interfaces) -> None:
        self.refuses["eth0"] = "it is a bond"
        assert self.come(wanted) == ([], [("eth0", "it is a bond")])
        assert self.come(wanted) == self.come(wanted) == ([], [])
        self.refuses["eth0"] = "it is a bridge"
        assert self.come(wanted) == ([], [("eth0", "it is a bridge")])
        self.here = {}
        assert self.come(wanted) == ([], [])
        self.here = {2: "eth0"}
        assert self.come(wanted) == ([], [("eth0", "it is a bridge")])
        self.refuses.clear()
        assert self.come(wanted) == (["eth0"], [])
        assert self.come(wanted, "eth0") == ([], [])

    def test_a_lab_comes_back(self, wanted: Interfaces) -> None:
        assert self.come(wanted, "eth0") == ([], [])
        self.labs = {"lab:lab", "lab:other"}
        assert self.come(wanted, "eth0", "lab:lab") == ([], [])
        assert self.come(wanted, "eth0") == (["lab:lab"], [])
