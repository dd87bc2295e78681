# SPDX-License-Identifier: GPL-2.0-or-later
"""One scenario for the lab and for the simulation: what atfnd writes to the NIC in it.

`script` is given a side, which has applications, an admin and a daemon; the simulation's is
`WorldSide`, that of the lab is in test_calibration.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from atfnd.model import FlowKey, Match
from atfnd.model import Protocol as Transport
from atfnd.serve.log.event_log import EventLog
from tests.daemons import policy
from tests.simulation.disk import Disk
from tests.simulation.driver import FOREIGN
from tests.simulation.kernel import Kernel
from tests.simulation.machine import Machine, Socket
from tests.simulation.nic import WorldNic
from tests.simulation.service import Service
from tests.simulation.wire import Flow
from tests.simulation.world import World

__all__ = ["CPUS", "WRITES", "Side", "WorldSide", "Writes", "config", "script"]

CPUS = 2  # and as many queues
WRITES = "insert", "rewrite", "delete", "queue-cpu", "setting"
STEP_NS = 5_000_000_000

Writes = dict[str, list[str]]  # by application, or `NIC`: kinds, and where to


class Side(Protocol):
    """Applications are named by letters. Each step waits until the daemon has done what it has
    to."""

    def opens(self, name: str) -> None:
        """It begins to talk, on a CPU where RSS does not deliver it."""

    def migrates(self, name: str) -> None:
        """To the other CPU."""

    def closes(self, name: str) -> None: ...

    def loses_filter(self, name: str) -> None:
        """An admin deletes it."""

    def is_left(self, name: str) -> None:
        """Another policy leaves its port alone."""

    def restores(self) -> None: ...

    def writes(self) -> Writes: ...


def script(side: Side) -> Writes:
    side.opens("a")
    side.opens("b")
    side.migrates("a")
    side.migrates("a")
    side.closes("b")
    side.loses_filter("a")
    side.opens("c")
    side.is_left("c")
    side.opens("d")
    side.restores()
    return side.writes()


def config(order: str, left: int | None) -> str:
    """The policy; `left` is a port that it leaves alone."""
    some = ""
    if left is not None:
        some = f"  - {{ name: left, match: {{ ports: [{left}] }}, placement: leave }}"
    armed = "interfaces: [{ match: { name: '*' }, armed: true }]\nflows:\n"
    return policy(some, order=order, t_delete="2s").replace("flows:\n", armed, 1)


class WorldSide:
    """In the simulation."""

    def __init__(self, order: str, folder: Path) -> None:
        self._order, self.world = order, World(1)
        self.disk, self.machine = Disk(self.world), Machine(self.world, CPUS)
        self.nic = WorldNic(self.world, "eth0", 1, "hns3", CPUS, queues=CPUS)
        self.kernel = Kernel(self.machine, lambda: [self.nic], lambda *_: None, lambda *_: None)
        self.nic.changed_link = self.kernel.link_changed
        text = config(order, None)
        self.service = Service(self.world, self.disk, folder, self.kernel, text)
        self._sockets: dict[str, Socket] = {}

    @contextmanager
    def running(self) -> Iterator[WorldSide]:
        with ExitStack() as stack:
            for each in (self.world.clock(), self.disk.mounted(), self.kernel.doors()):
                stack.enter_context(each)
            self.service.start()
            self._goes_on()
            try:
                yield self
            finally:
                self.service.die()

    def opens(self, name: str) -> None:
        port = 20_000 + ord(name)
        key = FlowKey(Transport.UDP, self.nic.address, port, b"\x0a\x01\0\1", port)
        flow = Flow(self.world, key, 5_000_000, ord(name))
        task = self.machine.task("app", 1 - self.nic.rss_queue_of(flow))
        task.pinned = frozenset({task.cpu.index})
        self._sockets[name] = self.machine.open(flow, self.nic, task)
        self._goes_on()

    def migrates(self, name: str) -> None:
        task = self._sockets[name].task
        self.machine.pin(task, frozenset({1 - task.cpu.index}))
        self._goes_on()

    def closes(self, name: str) -> None:
        self.machine.close(self._sockets[name])
        self._goes_on()

    def loses_filter(self, name: str) -> None:
        match = Match.of(self._sockets[name].flow.key)
        [entry] = [each for each in self.nic.our_entries() if each.match == match]
        self.nic.table.take(entry.location, FOREIGN)
        self._goes_on()

    def is_left(self, name: str) -> None:
        self.service.policy(config(self._order, self._sockets[name].flow.key.local_port))
        self.service.reload()
        self._goes_on()

    def restores(self) -> None:
        self.service.order("restore", "eth0")
        self._goes_on()

    def writes(self) -> Writes:
        assert self.service.supervisor is not None
        log: EventLog = self.service.supervisor.log
        names = {each.flow.key: name for name, each in self._sockets.items()}
        found: defaultdict[str, list[str]] = defaultdict(list)
        for event in log.after(0, 10_000):
            if event.kind in WRITES and not event.what.startswith("xps-cpus"):  # the lab has none
                about = names[event.flow] if event.flow is not None else "NIC"
                found[about].append(event.kind)
        return dict(found)

    def _goes_on(self) -> None:
        self.service.run_until(self.world.now_ns + STEP_NS)
