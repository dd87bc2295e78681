# SPDX-License-Identifier: GPL-2.0-or-later
"""A whole daemon on NICs of the simulation, in virtual time, to which a test does one thing after
the other. What must hold in every run, `tests/simulation` checks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from atfnd.daemon.supervisor import Supervisor
from atfnd.model import Event, FlowKey, Protocol
from tests.daemons import policy
from tests.simulation.disk import Disk
from tests.simulation.kernel import Kernel
from tests.simulation.machine import Machine, Socket
from tests.simulation.nic import WorldNic
from tests.simulation.service import Service
from tests.simulation.wire import Flow
from tests.simulation.world import World

__all__ = ["Simulated", "simulated", "text_of"]

DRIVER = "hns3"
CPUS = 4  # and as many queues
SECOND_NS = 10**9


def text_of(order: str = "immediate", *, armed: bool = True, more: str = "") -> str:
    """A policy that steers every flow; `more` is in the rule for interfaces."""
    of_nics = f"interfaces: [{{ match: {{ name: '*' }}, armed: {str(armed).lower()}{more} }}]"
    return policy(order=order, t_delete="2s").replace("flows:\n", f"{of_nics}\nflows:\n", 1)


class Simulated:
    """Started, with `eth0`, `eth1` and so on."""

    def __init__(self, folder: Path, stack: ExitStack, count: int, text: str) -> None:
        self.world = World(1)
        self.disk, self.machine = Disk(self.world), Machine(self.world, CPUS)
        self._ifindex = count
        self.here: list[WorldNic] = []
        self.kernel = Kernel(self.machine, lambda: self.here, lambda *_: None, lambda *_: None)
        self.here += [self._nic(f"eth{number}", number + 1) for number in range(count)]
        for each in (self.world.clock(), self.disk.mounted(), self.kernel.doors()):
            stack.enter_context(each)
        self.service = Service(self.world, self.disk, folder, self.kernel, text)
        stack.callback(self.service.die)
        self._opened = 0
        self.starts()

    def _nic(self, name: str, ifindex: int) -> WorldNic:
        made = WorldNic(self.world, name, ifindex, DRIVER, CPUS)
        made.changed_link = self.kernel.link_changed
        return made

    @property
    def daemon(self) -> Supervisor:
        """While it runs."""
        assert self.service.supervisor is not None
        return self.service.supervisor

    def starts(self) -> None:
        """Once more, if it has ended."""
        self.service.start()
        self.goes_on(1)

    def killed(self) -> None:
        """And started again."""
        self.service.die()
        self.starts()

    def goes_on(self, seconds: float = 3) -> None:
        self.service.run_until(self.world.now_ns + int(seconds * SECOND_NS))

    def until(self, condition: Callable[[], object], seconds: float = 60) -> None:
        """Time passes until this is so."""
        for _ in range(int(seconds * 100)):
            if condition():
                return
            self.goes_on(0.01)
        raise AssertionError("it did not come")

    def begin(self, call: Coroutine[Any, Any, Any]) -> Any:
        """A task of the daemon's loop."""
        return self.service._loop.create_task(call)

    def answer(self, call: Coroutine[Any, Any, Any]) -> Any:
        """What the daemon answers, when it does."""
        task = self.begin(call)
        self.until(task.done)
        return task.result()

    def order(self, verb: str, nic: str | None = "eth0") -> Any:
        """As `atfnctl VERB NIC`."""
        for each in self.here if verb == "resume" else ():
            each.changed.clear()  # it may be written over
        return self.answer(getattr(self.daemon.source, verb)(nic))

    def reload(self, text: str) -> None:
        self.service.policy(text)
        self.service.reload()
        self.goes_on()

    def opens(
        self, nic: int = 0, cpu: int = 1, *, rss: bool = False, interval_ns: int = 5_000_000
    ) -> Socket:
        """A thread on this CPU uses one more flow, which RSS delivers there, or elsewhere."""
        at = self.here[nic]
        while True:
            self._opened += 1
            remote = b"\x0a\1" + self._opened.to_bytes(2, "big")
            key = FlowKey(Protocol.UDP, at.address, 443, remote, 1000)
            flow = Flow(self.world, key, interval_ns, self._opened)
            if (at.rss_queue_of(flow) == cpu) is rss:
                task = self.machine.task("app", cpu)
                task.pinned = frozenset({cpu})
                return self.machine.open(flow, at, task)

    def renames(self, **names: str) -> None:
        """All at once, before any of it is heard."""
        for nic in self.here:
            nic.kernel_name = names.get(nic.kernel_name, nic.kernel_name)
        for nic in self.here:
            self.kernel.link_changed(nic)
        self.goes_on()

    def goes_away(self, number: int = 0) -> None:
        """The device is gone."""
        self.here[number].unplug()
        self.goes_on()

    def comes(self, number: int = 0) -> None:
        """A device of that name is there again."""
        self._ifindex += 1
        new = self.here[number] = self._nic(self.here[number].kernel_name, self._ifindex)
        self.kernel.link_changed(new)
        self.goes_on()

    def stands(self) -> dict[str, tuple[bool, bool]]:
        """By NIC: it is armed, and paused."""
        return {name: (nic.armed, nic.paused) for name, nic in self.service.engine.views.items()}

    def filters(self, nic: int = 0) -> int:
        """How many of ours are in it."""
        return len(self.here[nic].our_entries())

    def said(self, *kinds: str) -> list[Event]:
        """In the log of this run."""
        return [each for each in self.daemon.log.after(0, 10_000) if each.kind in kinds]


@contextmanager
def simulated(folder: Path, nics: int = 1, text: str | None = None) -> Iterator[Simulated]:
    """It is killed in the end. `folder` is empty."""
    with ExitStack() as stack:
        yield Simulated(folder, stack, nics, text or text_of())
