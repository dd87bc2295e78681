# SPDX-License-Identifier: GPL-2.0-or-later
"""What a daemon knows of a NIC or a move ends with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from atfnd.engine.command import Begin, ReportEnd
from atfnd.engine.engine import Engine
from atfnd.engine.event import (
    BirthHeard,
    BirthsHeard,
    CpusChanged,
    EntriesDue,
    EntriesLeftAlone,
    EntriesLooked,
    EntriesWritten,
    Event,
    FiltersLeft,
    FiltersListed,
    HeirFound,
    InterruptsSpared,
    ListenersFound,
    MovesDropped,
    MovesReported,
    NicAttached,
    NicLost,
    NicRead,
    NicRenamed,
    Offer,
    OriginalsRead,
    PortsLooked,
    QueuesLoosened,
    SettingsDue,
    SocketReported,
    TakenOut,
    TakenUp,
    UndoDue,
)
from atfnd.engine.table.flow_table import Writing
from atfnd.engine.table.memory import Memory
from atfnd.errors import OperatorError
from atfnd.kernel.netlink.rtnl import Link
from atfnd.model import (
    Action,
    ActionKind,
    Connecting,
    Filter,
    Listening,
    Match,
    Mode,
    Outcome,
    Policy,
)
from atfnd.model.reason import Code
from atfnd.move.command import Ended
from atfnd.move.verdict import Mechanism, Verdict
from atfnd.observe.nics import interfaces
from atfnd.observe.nics.interfaces import Interfaces
from tests.values import NIC, RULE, THREAD, flow, key, seen

__all__: list[str] = []

PORT = key(0)._replace(remote=bytes(4), remote_port=0)


def an_engine(*entries: int) -> Engine:
    engine = Engine(Memory.of(Policy((), (RULE,), "auto", 64, 0, ())))
    engine.handle(NicAttached(NIC, armed=True), 0)
    for number in entries:
        engine.memory.table.put(flow(number))
    return engine


@pytest.mark.parametrize("location", [None, 5])
def test_a_ports_filter_that_cannot_be_moved_is_said_so_once(location: int | None) -> None:
    """One that is not in the NIC yet is put off for longer, and is news."""
    engine, news = an_engine(), list[bool]()
    for number in range(3):
        engine.memory.table.put(flow(0, key=PORT, location=location, target_queue=1))
        engine.memory.table.writes(PORT, Writing.PORT)
        action = Action(ActionKind.REWRITE, "nic", PORT, location, 1, 2, Code.UNSAID(), "")
        why = Code.TOO_MANY_HOLDS(f"0, 1, {number}", 2)
        ended = Ended(PORT, action, Mechanism.NONE, Verdict.DEFERRED, why, 0, 0)
        commands = engine.handle(MovesReported((ended,)), 0)
        news += [each.news for each in commands if isinstance(each, ReportEnd)]
    assert news == ([True] * 3 if location is None else [True, False, False])


class TestGone:
    def test_nothing_is_left_and_what_is_said_of_it_later_changes_nothing(self) -> None:
        engine, served = an_engine(1), Listening(10, 77, PORT, 1, THREAD, 2)
        other = replace(NIC, keeps_rfs=True, orders=frozenset({Mode.IMMEDIATE}), name="other")
        engine.handle(NicAttached(other, armed=True), 0)
        engine.handle(ListenersFound("nic", (served,)), 0)
        engine.handle(NicLost("nic"), 0)
        assert engine.memory.nics.keys() == {"other"}
        action = Action(ActionKind.DELETE, "nic", key(1), 4, 1, None, Code.UNSAID(), "")
        ended = Ended(key(1), action, Mechanism.NONE, Verdict.DEFERRED, Code.REPLACED(), 0, 0)
        rule = Filter(4, Match.of(key(1)), 1)
        connect = Connecting(1, 9, key(9), 1, THREAD, 2)
        late: list[Event] = [
            NicRead(NIC), NicLost("nic"), TakenUp("nic"), MovesDropped("nic", (key(1),)),
            SocketReported("nic", seen(1, 2), RULE), FiltersListed("nic", (rule,), False),
            FiltersLeft("nic", (rule,), ()), ListenersFound("nic", (served,)),
            MovesReported((Outcome(action, 0, 0, 4, ""), ended)), PortsLooked({"nic": {}}, ()),
            BirthsHeard((BirthHeard(served, "nic"),)),
            BirthsHeard((BirthHeard(connect, offers=(Offer("nic", RULE, 1),)),)),
            SettingsDue("nic"), OriginalsRead("nic", {}), EntriesLooked("nic"), EntriesDue("nic"),
            EntriesWritten("nic", NIC.rss, ()), EntriesLeftAlone("nic"), HeirFound(action, 9),
            UndoDue("nic", Code.KERNEL("why")), TakenOut("nic", ()), CpusChanged("nic"),
            NicRenamed("nic", "new"), QueuesLoosened("nic", {0: 0}),
            InterruptsSpared("nic", frozenset({30}), {}),
        ]  # fmt: skip
        for event in late:
            assert not any(isinstance(each, Begin) for each in engine.handle(event, 1)), event
            assert engine.views == {"other": other}
            assert engine.memory.nics["other"].listeners is None
            assert list(engine.memory.table) == []


class TestArrivals:
    """Interfaces of a machine that are not what they are asked to be."""

    @pytest.fixture
    def wanted(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Interfaces]:
        self.here, self.labs = {1: Link("eth0", None)}, set[str]()
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

    def test_one_that_cannot_be_watched_is_reported_once(self, wanted: Interfaces) -> None:
        self.refuses["eth0"] = "it is a bond"
        assert self.come(wanted) == ([], [("eth0", "it is a bond")])
        assert self.come(wanted) == self.come(wanted) == ([], [])
        self.refuses["eth0"] = "it is a bridge"
        assert self.come(wanted) == ([], [("eth0", "it is a bridge")])
        self.here = {}
        assert self.come(wanted) == ([], [])
        self.here = {2: Link("eth0", None)}
        assert self.come(wanted) == ([], [("eth0", "it is a bridge")])
        self.refuses.clear()
        assert self.come(wanted) == (["eth0"], [])
        assert self.come(wanted, "eth0") == ([], [])

    def test_a_lab_comes_back(self, wanted: Interfaces) -> None:
        assert self.come(wanted, "eth0") == ([], [])
        self.labs = {"lab:lab", "lab:other"}
        assert self.come(wanted, "eth0", "lab:lab") == ([], [])
        assert self.come(wanted, "eth0") == (["lab:lab"], [])
