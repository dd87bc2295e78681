# SPDX-License-Identifier: GPL-2.0-or-later
"""What a daemon asks the kernel for, answered by the world: the doors that are replaced.

Behind these names the daemon under test is the real one, with its loop, chores and log.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from atfnd.errors import OperatorError
from atfnd.kernel.netlink.rtnl import Link
from atfnd.model import Cpu, CpuTime, Event, FlowKey, Node, Outcome, Queue, Topology
from atfnd.move.command import Ended
from atfnd.move.mover import Mover, Steps
from atfnd.move.port import Port
from atfnd.policy.file.placement import wrong_cpus
from atfnd.policy.match.matching import Sources
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.serve.log.journald import line_of
from tests.simulation.actuator import WorldActuator
from tests.simulation.balancer import Balancers
from tests.simulation.forwarded import Forwards
from tests.simulation.host import Host
from tests.simulation.loop import Descriptors
from tests.simulation.machine import NETNS, Machine, WorldBirths
from tests.simulation.nic import WorldInterface, WorldNic

__all__ = ["NICS", "Kernel"]

NICS = "eth*", "ren*"
WRITE_NS = 500_000  # of CPU time of the daemon, with all that leads to a write


class _Changes:
    """Stands for `kernel.netlink.requests.Changes`: hears of links until it is closed."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._changed = kernel, set[int]()
        self._fileno = kernel.descriptors.open()
        kernel.listeners.append(self)

    def hear(self, index: int) -> None:
        self._changed.add(index)
        self._kernel.descriptors.readable(self._fileno, True)

    def fileno(self) -> int:
        return self._fileno

    def drain(self) -> set[int]:
        changed, self._changed = self._changed, set()
        self._kernel.descriptors.readable(self._fileno, False)
        return changed

    def close(self) -> None:
        self._kernel.descriptors.close(self._fileno)
        self._kernel.listeners.remove(self)


class _NamespaceLinks:
    """Stands for `observe.nics.namespace_links.NamespaceLinks`: without tunnels."""

    def __init__(self, nics: Callable[[], Iterable[WorldNic]]) -> None:
        self._nics = nics

    def look(self) -> None: ...

    def addresses(self, ifindex: int) -> set[bytes]:
        return {nic.address for nic in self._nics() if nic.ifindex == ifindex}

    def tunnel(self, nic: int, local: bytes, remote: bytes | None) -> None: ...

    def close(self) -> None: ...


class _Cpus:
    """Stands for `observe.machine.topology.CpuWatch`: one node, one last-level cache."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._changes = kernel, _Changes(kernel)
        kernel.listeners.remove(self._changes)
        kernel.cpu_listeners.append(self._changes)
        self._last = kernel.topology()

    def fileno(self) -> int:
        return self._changes.fileno()

    def changed(self) -> bool:
        return self._changes.drain() != set()

    def known(self) -> Topology:
        return self._last

    def read(self) -> Topology:
        self._last = self._kernel.topology()
        return self._last

    def close(self) -> None:
        self._kernel.cpu_listeners.remove(self._changes)
        self._kernel.descriptors.close(self._changes.fileno())


class _SocketLookup:
    """Stands for `observe.sockets.socket_lookup.SocketLookup`."""

    def __init__(self, kernel: Kernel) -> None:
        self._machine = kernel.machine

    def cookie(self, key: FlowKey) -> int | None:
        if key in self._machine.connecting:
            return self._machine.connecting[key]
        sockets = self._machine.sockets.values()
        return next((each.cookie for each in sockets if each.flow.key == key), None)

    def close(self) -> None:
        """Nothing is open."""


class Kernel:
    """`nics` are those that are here; `ended` is called with each move that ends, `said` with each
    line of the log."""

    def __init__(
        self,
        machine: Machine,
        nics: Callable[[], list[WorldNic]],
        ended: Callable[[WorldNic, Ended], None],
        said: Callable[[str, str], None],
    ) -> None:
        self.machine, self._nics, self._ended, self._said = machine, nics, ended, said
        self.caches: tuple[tuple[int, ...], ...] = ()  # the CPUs of each last-level one; (): one
        self.descriptors = Descriptors()
        self.balancers = Balancers(machine.world, nics)
        self.host = Host(machine.world)
        self.forwards = Forwards(machine.world, nics)
        self.forwards.work = machine.forwards
        self.listeners: list[_Changes] = []
        self.cpu_listeners: list[_Changes] = []
        self.actuator: list[tuple[WorldNic, WorldActuator]] = []
        self.opened: Callable[[WorldNic], None] = lambda nic: None
        self.spent_ns = 0  # CPU time of the daemon itself: its writes

    def link_changed(self, nic: WorldNic) -> None:
        """rtnetlink tells all that listen."""
        for each in self.listeners:
            each.hear(nic.ifindex)

    def cpus_changed(self) -> None:
        """A uevent of a CPU."""
        for each in self.cpu_listeners:
            each.hear(0)

    def forget(self) -> None:
        """The process is gone: all that it had open is closed."""
        for _, actuator in self.actuator:
            actuator.close()
        self.actuator.clear()
        self.listeners.clear()
        self.cpu_listeners.clear()
        self.machine.births.clear()
        self.descriptors.close_all()
        self.balancers.died()

    def topology(self) -> Topology:
        every = tuple(cpu.index for cpu in self.machine.cpus)
        caches = {cpu: cache for cache in self.caches or (every,) for cpu in cache}
        online = tuple(cpu.index for cpu in self.machine.cpus if cpu.online)
        cpus = tuple(
            Cpu(cpu.index, cpu.online, 0, 0, cpu.index, (cpu.index,), caches[cpu.index])
            for cpu in self.machine.cpus
        )
        return Topology(cpus, (Node(0, online, {0: 10}),))

    @contextmanager
    def doors(self) -> Iterator[None]:
        """Within, the modules of the daemon ask the world."""
        with ExitStack() as stack:
            for name, answer in self._answers().items():
                stack.enter_context(mock.patch(f"atfnd.{name}", answer))
            yield

    def _answers(self) -> Mapping[str, Any]:
        def changes(netns: str | None) -> _Changes:
            return _Changes(self)

        return {
            "daemon.balancing.running": self.balancers.running,
            "daemon.balancing.spared": self.balancers.spared,
            "daemon.handshakes.Births": lambda: WorldBirths(self.machine, self.descriptors),
            "daemon.flow_rules.cpuset_of": lambda tid: None,
            "daemon.cpu_times.cpu_time": self._cpu_time,
            "daemon.cpu_times.spent_ns": lambda: self.spent_ns,
            "daemon.moving.Mover": self._mover,
            "daemon.moving.NicActuator": self._actuator,
            "daemon.moving.read_port": _read_port,
            "daemon.pairing.ForwardedPackets": self.forwards.open,
            "daemon.pairing.interfaces": self.forwards.interfaces,
            "daemon.pairing.namespace": lambda netns: NETNS,
            "daemon.session.SocketLookup": lambda netns: _SocketLookup(self),
            "daemon.sockets.ended_threads": self._ended_threads,
            "daemon.sockets.sees_every_thread": lambda: True,
            "daemon.supervisor.CpuWatch": lambda: _Cpus(self),
            "daemon.supervisor.sources": lambda policy: Sources(),
            "daemon.trying.cpu_time": self._cpu_time,
            "observe.nics.interfaces.lab_is_there": lambda name: False,
            "observe.nics.interfaces.link_changes": changes,
            "observe.nics.interfaces.link": lambda netns, ifindex: self._link(ifindex),
            "observe.nics.interfaces.links": self._links,
            "observe.nics.interfaces.open_nic": self._open,
            "observe.nics.interfaces.physical": lambda name: True,
            "observe.nics.watch.ethtool_changes": changes,
            "observe.nics.watch.ipsec_policies": lambda netns: (),
            "observe.nics.watch.link_changes": changes,
            "observe.nics.watch.NamespaceLinks.of": lambda netns: _NamespaceLinks(self._nics),
            "policy.file.load.wrong_cpus": lambda contents, possible, machine: wrong_cpus(
                contents, len(self.machine.cpus), machine
            ),
            "program.host_settings.read_budget": self.host.read,
            "program.host_settings.write_budget": self.host.write,
            "program.balance.irqbalance": self.balancers,
            "program.balance.running": self.balancers.running,
            "program.restore.open_nic": self._open,
            "serve.log.event_log.Stderr": lambda: _Log(self._said),
        }

    def _open(self, name: str) -> WorldNic:
        nic = next((n for n in self._nics() if n.kernel_name == name and n.table.present), None)
        if nic is None:
            raise OperatorError(f"no interface {name!r} here")
        nic.open(name)
        self.opened(nic)
        return nic

    def _links(self) -> dict[int, Link]:
        return {nic.ifindex: Link(nic.kernel_name, None) for nic in self._nics()}

    def _link(self, ifindex: int) -> Link:
        if (found := self._links().get(ifindex)) is None:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return found

    def _actuator(
        self,
        nic: WorldNic,
        journal: FilterJournal,
        undo_journal: UndoJournal,
        queues: Callable[[], tuple[Queue, ...]],
    ) -> WorldActuator:
        def closed() -> None:
            self.actuator.remove((nic, actuator))

        actuator = WorldActuator(nic, journal, undo_journal, closed)
        self.actuator.append((nic, actuator))
        return actuator

    def _mover(self, actuator: WorldActuator, device: Any) -> Mover:
        return _ReportingMover(actuator, device, self._moved)

    def _moved(self, nic: WorldNic, said: Outcome | Ended) -> None:
        if isinstance(said, Ended):
            self._ended(nic, said)
        else:
            self.spent_ns += WRITE_NS

    def _ended_threads(self, tids: Collection[int]) -> set[int]:
        return set(tids) - {task.thread.tid for cpu in self.machine.cpus for task in cpu.tasks}

    def _cpu_time(self, threads: Iterable[tuple[int, int]]) -> CpuTime:
        machine = self.machine
        self.forwards.spend()
        machine.spend()
        online = [cpu.index for cpu in machine.cpus if cpu.online]
        busy_ns = {cpu: machine.busy_ns[cpu] for cpu in online}
        softirq_ns = {cpu: machine.softirq_ns[cpu] for cpu in online}
        ran_ns = {tid: machine.ran_ns[tid] for _, tid in threads}
        waited_ns = dict.fromkeys(ran_ns, 0)
        idle_ns = {cpu: machine.world.now_ns - busy_ns[cpu] for cpu in online}
        return CpuTime(machine.world.now_ns, busy_ns, softirq_ns, ran_ns, waited_ns, idle_ns)


class _ReportingMover(Mover):
    """A `Mover` whose results the run hears of."""

    def __init__(
        self,
        actuator: WorldActuator,
        device: Any,
        report: Callable[[WorldNic, Outcome | Ended], None],
    ) -> None:
        super().__init__(actuator, device)
        self._nic, self._report = actuator.nic, report

    def steps(self, *events: Any) -> Steps:
        said = yield from super().steps(*events)
        for each in said:
            self._report(self._nic, each)
        return said


class _Log:
    """Stands for `serve.log.journald.Stderr`."""

    def __init__(self, said: Callable[[str, str], None]) -> None:
        self._said, self.lost = said, 0

    def tell(self, event: Event) -> None:
        self._said(event.kind, line_of(event))


def _read_port(
    view: object,
    interface: WorldInterface,
    write_ns: int | None,
    *,
    borrow: bool,
    manual: Set[str],
    service_pps: object = None,
) -> Port:
    return interface.nic.port(write_ns, borrow=borrow, manual=manual)
