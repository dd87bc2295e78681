# SPDX-License-Identifier: GPL-2.0-or-later
"""`serve_on` of an interface rule: to which CPUs the queues of a NIC may be delivered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from atfnd.engine.command import actions_of
from atfnd.engine.engine import Engine
from atfnd.engine.event import (
    Armed,
    CpusChanged,
    CpusRead,
    Event,
    MethodDue,
    NicAttached,
    OriginalsRead,
    QueuesLooked,
    SettingsDue,
    SocketReported,
)
from atfnd.engine.table.flow_table import FlowTable
from atfnd.model import ANY_CPU, Action, ActionKind, InterfaceRule, Mode, NicView, ServeOn, Topology
from atfnd.model.topology import cpu_list
from tests.diagnose.machines import topology
from tests.values import NIC, RULE, memory_of, one_rule, seen

SECOND_NS = 1_000_000_000
STRICT = replace(RULE, order=Mode.STRICT)
NOT_0, LOW, HIGH = ServeOn(frozenset({0})), ServeOn(frozenset({0, 1}), False), frozenset({6, 7})


def machine(*isolated: int, offline: Iterable[int] = ()) -> Topology:
    """Of eight CPUs."""
    cpus = (
        replace(cpu, isolated=cpu.index in isolated, online=cpu.index not in offline)
        for cpu in topology().cpus
    )
    return replace(topology(), cpus=tuple(cpus))


class Daemon:
    """A NIC of four queues that does what the engine decides. `cpus`: where it was found."""

    def __init__(self, serve_on: ServeOn, *cpus: str, there: Topology | None = None) -> None:
        self.engine = Engine(memory_of(FlowTable(64), one_rule(0, 30 * SECOND_NS, Mode.STRICT)))
        self.engine.memory.nics.clear()
        settings = {f"queue-cpu:{n}": allowed for n, allowed in enumerate(cpus)}
        queues = tuple(
            replace(q, irq=40 + q.index, cpu=int(cpu) if cpu.isdecimal() else None)
            for q, cpu in zip(NIC.queues, cpus, strict=True)
        )
        self.now_ns, self.found = SECOND_NS, dict(settings)
        self.done = list[Action]()
        self.put_in_force(serve_on)
        nic = replace(NIC, queues=queues, settings=settings)
        self.takes(
            NicAttached(nic, armed=True),
            CpusRead(there or machine()),
            MethodDue("nic"),
            Armed("nic"),
        )

    @property
    def nic(self) -> NicView:
        return self.engine.views["nic"]

    def put_in_force(self, serve_on: ServeOn) -> None:
        rule = InterfaceRule("*", "f:1", True, None, 0, serve_on=serve_on)
        memory = self.engine.memory
        memory.in_force = replace(memory.in_force, interfaces=(rule,))
        for known in memory.nics.values():
            known.view = replace(known.view, serve_on=serve_on)

    def takes(self, *events: Event) -> list[Action]:
        """What is done about queues."""
        done = []
        for event in events:
            for command in self.engine.handle(event, self.now_ns):
                for action in actions_of(command):
                    if action.kind is ActionKind.QUEUE_CPU:
                        done.append(action)
                        self.put(action)
        return done

    def put(self, action: Action) -> None:
        known, setting = self.engine.memory.nics["nic"], f"queue-cpu:{action.queue}"
        queues = (
            replace(q, cpu=action.new) if q.index == action.queue else q for q in self.nic.queues
        )
        settings = {**self.nic.settings, setting: str(action.new)}
        known.view = replace(self.nic, queues=tuple(queues), settings=settings)
        known.lent.sent.clear()
        self.done.append(action)

    def arm(self) -> list[Action]:
        return self.takes(SettingsDue("nic"), OriginalsRead("nic", self.found))

    def uses(self, number: int, cpu: int) -> list[Action]:
        self.now_ns += SECOND_NS
        event = seen(number, cpu, rx_cpu=7, off_since_ns=self.now_ns)
        return self.takes(SocketReported("nic", event, STRICT))

    def looks(self) -> list[Action]:
        self.now_ns += 5 * SECOND_NS
        return self.takes(QueuesLooked(frozenset(range(8))))

    def on(self) -> str:
        return cpu_list(q.cpu for q in self.nic.queues if q.cpu is not None)


@pytest.mark.parametrize(
    ("serve_on", "found", "isolated", "on"),
    [
        (ANY_CPU, ("0", "1", "2", "3"), (), "0-3"),
        (NOT_0, ("0", "1", "2", "3"), (), "1-4"),  # only the one that is astray moves
        (NOT_0, ("0-7",) * 4, (), "1-2,4,6"),
        (LOW, ("0", "1", "2", "3"), (), "0-1"),
        (LOW, ("0-7",) * 4, (), "0-1"),
        (ServeOn(HIGH), ("4", "5", "6", "7"), (), "0,2,4-5"),
        (ServeOn(HIGH, False), ("0-7",) * 4, (6, 7), "6-7"),  # named, so isolated or not
        (ServeOn(HIGH), ("0-7",) * 4, (0, 1), "2-5"),  # not named
        (ServeOn(HIGH, False), ("0", "1", "2", "3"), (), "6-7"),
    ],
)
def test_arming_puts_queues_where_they_may_be(
    serve_on: ServeOn, found: tuple[str, ...], isolated: tuple[int, ...], on: str
) -> None:
    daemon = Daemon(serve_on, *found, there=machine(*isolated))
    done = daemon.arm()
    assert daemon.on() == on
    assert daemon.takes(SettingsDue("nic")) == daemon.looks() == []
    if found[0].isdecimal():
        assert all("serve_on is" in action.why for action in done)


def test_what_is_not_ours_stays() -> None:
    daemon = Daemon(LOW, "0", "1", "2", "3")
    known = daemon.engine.memory.nics["nic"]
    known.view = replace(known.view, manual=frozenset({"queue-cpu:2"}))
    daemon.arm()
    daemon.looks()
    assert daemon.on() == "0-2"


def test_where_no_cpu_is_left_queues_stay() -> None:
    daemon = Daemon(ServeOn(frozenset({99}), False), "0", "1", "2", "3")
    assert daemon.arm() == daemon.looks() == []


def test_no_queue_follows_its_owner_out_of_there() -> None:
    daemon = Daemon(LOW, "0", "1", "0", "1")
    daemon.arm()
    daemon.uses(1, 0)
    assert [action.new for action in daemon.uses(1, 1)] == [1]
    assert daemon.uses(1, 5) == []
    for _ in range(3):
        daemon.looks()
    assert {action.new for action in daemon.done} == {0, 1}


def test_another_policy_moves_them_out_and_back() -> None:
    daemon = Daemon(ANY_CPU, "0", "1", "2", "3")
    assert daemon.arm() == []
    for serve_on, on in ((NOT_0, "1-4"), (LOW, "0-1"), (ANY_CPU, "0-3")):
        daemon.put_in_force(serve_on)
        daemon.takes(OriginalsRead("nic", daemon.found))
        for _ in range(4):
            daemon.looks()
        assert daemon.on() == on


def test_no_cpu_outside_stands_in_for_one_that_goes_offline() -> None:
    daemon = Daemon(LOW, "0", "1", "0", "1")
    daemon.arm()
    daemon.takes(CpusRead(machine(offline={1})), CpusChanged("nic"))
    assert daemon.on() == "0"
    daemon.takes(CpusRead(machine(offline={0, 1})), CpusChanged("nic"))
    assert daemon.on() not in ("0", "1")  # somewhere
