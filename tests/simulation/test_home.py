# SPDX-License-Identifier: GPL-2.0-or-later
"""Where the flows of threads that are not pinned go, on a machine of two last-level caches of four
CPUs each, and what the whole daemon writes for them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from atfnd.model import Distance, FlowKey
from atfnd.model import Protocol as Transport
from tests.daemons import policy
from tests.simulation.disk import Disk
from tests.simulation.kernel import Kernel
from tests.simulation.machine import Machine, Socket, Task
from tests.simulation.nic import WorldNic
from tests.simulation.service import Service
from tests.simulation.wire import Flow
from tests.simulation.world import World

CACHES = (0, 1, 2, 3), (4, 5, 6, 7)
EVERY = (*CACHES[0], *CACHES[1])
SECOND_NS = 1_000_000_000
STAY_NS = 8_000_000  # of eight threads: a thousand migrations a second
INTERVAL_NS = 1_000_000  # between packets

KNOWN_HASH, UNKNOWN_HASH = "ixgbe", "hns3"
WRITES = "insert", "rewrite", "delete", "queue-cpu", "setting"
ARMED = "interfaces: [{ match: { name: '*' }, armed: true }]\nflows:\n"
CONFIG = policy(order="strict", t_delete="2s").replace("flows:\n", ARMED, 1)

Next = Callable[[Task], int]


class Bed:
    """One NIC with a queue for each CPU, an armed daemon, and threads that move as a test says."""

    def __init__(self, folder: Path, stack: ExitStack, driver: str) -> None:
        self.world = World(1)
        self.disk, self.machine = Disk(self.world), Machine(self.world, len(EVERY))
        self.nic = WorldNic(self.world, "eth0", 1, driver, len(EVERY), queues=len(EVERY))
        self.kernel = Kernel(self.machine, lambda: [self.nic], lambda *_: None, lambda *_: None)
        self.kernel.caches = CACHES
        self.nic.changed_link = self.kernel.link_changed
        text = CONFIG.replace("dwell: 20ms", "dwell: 10ms")
        self.service = Service(self.world, self.disk, folder, self.kernel, text)
        self._numbers = itertools.count(1)
        for each in (self.world.clock(), self.disk.mounted(), self.kernel.doors()):
            stack.enter_context(each)
        self.service.start()
        self.goes_on(3)

    def goes_on(self, seconds: float) -> None:
        self.service.run_until(self.world.now_ns + int(seconds * SECOND_NS))

    def serves(self, cpu: int, delivered: tuple[int, ...], task: Task | None = None) -> Socket:
        """A thread on this CPU uses a flow that RSS delivers on another one, of these."""
        task = task or self.machine.task("app", cpu)
        while True:
            number = next(self._numbers)
            key = FlowKey(Transport.UDP, self.nic.address, number, b"\x0a\x01\0\1", number)
            flow = Flow(self.world, key, INTERVAL_NS, number)
            if self.nic.rss_queue_of(flow) in set(delivered) - {cpu}:
                return self.machine.open(flow, self.nic, task)

    def wanders(self, task: Task, to: Next, stay_ns: int = STAY_NS) -> None:
        """It goes there after each stay, of any length, of this one in the mean."""

        def goes() -> None:
            if task.sockets and task.pinned is None:
                self.machine.move(task, self.machine.cpus[to(task)])
                self.wanders(task, to, stay_ns)

        stayed_ns = self.world.random.expovariate(1 / stay_ns)
        self.world.after(max(1000, int(stayed_ns)), goes)

    def by_chance(self, cpus: tuple[int, ...]) -> Next:
        return lambda task: self.world.random.choice([c for c in cpus if c != task.cpu.index])

    def writes(self, since_ns: int = 0) -> Counter[str]:
        """How many writes of each kind there were since then."""
        assert self.service.supervisor is not None
        events = self.service.supervisor.log.after(0, 100_000)
        return Counter(
            each.kind
            for each in events
            if each.kind in WRITES and not each.what.startswith("xps-cpus")
            if each.at_ns >= since_ns
        )

    def home(self, socket: Socket) -> Distance | None:
        found = self.service.engine.memory.table.get(socket.flow.key)
        return None if found is None else found.home


@pytest.fixture
def bed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bed]:
    with ExitStack() as stack:
        made = Bed(tmp_path, stack, getattr(request, "param", KNOWN_HASH))
        stack.callback(made.service.die)
        yield made


def test_a_thread_that_wanders_within_a_cache_has_its_packets_there_and_nothing_is_written(
    bed: Bed,
) -> None:
    socket = bed.serves(0, CACHES[0])
    bed.wanders(socket.task, bed.by_chance(CACHES[0]))
    bed.goes_on(20)
    assert bed.writes() == {}
    assert socket.rx_cpu() in CACHES[0]
    assert bed.home(socket) is None  # reported once, and nothing has to be done
    assert bed.world.seen["SocketSeen"] == 1


def test_packets_that_come_from_another_cache_are_brought_into_that_of_the_thread_once(
    bed: Bed,
) -> None:
    socket = bed.serves(0, CACHES[0])
    bed.wanders(socket.task, bed.by_chance(CACHES[0]))
    bed.goes_on(20)  # that it wanders there is known
    second, known_ns = bed.serves(0, CACHES[1], socket.task), bed.world.now_ns
    assert second.rx_cpu() in CACHES[1]
    bed.goes_on(20)
    assert second.rx_cpu() in CACHES[0]
    assert bed.writes(known_ns).total() == 1


def test_a_thousand_migrations_a_second_over_the_machine_are_left_to_the_kernel(bed: Bed) -> None:
    """To learn that takes a few writes per thread."""
    sockets = [bed.serves(cpu, EVERY) for cpu in EVERY]
    began_ns = bed.world.now_ns
    for socket in sockets:
        bed.wanders(socket.task, bed.by_chance(EVERY))
    bed.goes_on(10)
    assert bed.writes(began_ns).total() <= 12 * len(sockets)
    known_ns, seen = bed.world.now_ns, bed.world.seen["SocketSeen"]
    bed.goes_on(30)
    assert bed.writes(known_ns).total() <= 30
    assert bed.world.seen["SocketSeen"] - seen <= 30
    left = {str(each.left) for each in bed.service.engine.memory.table}
    assert left == {"its thread wanders over CPUs 0-7: left to RSS"}
    assert not bed.nic.our_entries()


@pytest.mark.parametrize("bed", [KNOWN_HASH, UNKNOWN_HASH], indirect=True)
def test_a_thread_that_settles_has_its_packets_on_its_cpu(bed: Bed) -> None:
    """Also if it had a filter that could not be deleted in order while it wandered."""
    socket = bed.serves(0, EVERY)
    ends_ns = bed.world.now_ns + 5 * SECOND_NS
    wander = bed.by_chance(EVERY)
    bed.wanders(
        socket.task, lambda task: wander(task) if bed.world.now_ns < ends_ns else task.cpu.index
    )
    bed.goes_on(5)
    bed.goes_on(30)
    assert socket.rx_cpu() == socket.task.cpu.index


def test_a_thread_that_leaves_as_soon_as_its_packets_come_is_soon_left_alone(bed: Bed) -> None:
    """As under a NAPI thread, which takes the CPU of the thread that it wakes. Where its packets do
    not come, it stays for a second in the mean: that is no reason to bring them."""
    socket = bed.serves(0, EVERY)
    bed.wanders(socket.task, bed.by_chance(CACHES[0]), SECOND_NS)

    def flees() -> None:
        if socket.rx_cpu() == socket.task.cpu.index:
            bed.machine.move(socket.task, bed.machine.cpus[bed.by_chance(CACHES[0])(socket.task)])
        bed.world.after(10_000_000, flees)

    flees()
    bed.goes_on(20)
    known_ns = bed.world.now_ns
    bed.goes_on(60)
    assert bed.writes(known_ns).total() <= 3


def test_a_thread_that_goes_to_and_fro_between_two_cpus_is_soon_left_alone(bed: Bed) -> None:
    """As on two full CPUs, whatever its many packets would pay for."""
    sockets = [bed.serves(0, EVERY)]
    sockets += [bed.serves(0, EVERY, sockets[0].task) for _ in range(9)]
    bed.wanders(sockets[0].task, lambda task: 1 - task.cpu.index, SECOND_NS)
    bed.goes_on(40)
    known_ns = bed.world.now_ns
    bed.goes_on(40)
    assert bed.writes(known_ns).total() <= 3


def test_a_thread_that_migrates_a_few_times_a_second_is_followed_at_once(bed: Bed) -> None:
    socket = bed.serves(0, EVERY)
    bed.wanders(socket.task, bed.by_chance(EVERY), SECOND_NS)
    bed.goes_on(2)
    right = [0, 0]
    for _ in range(2000):
        bed.goes_on(0.01)
        right[socket.rx_cpu() == socket.task.cpu.index] += 1
    assert right[True] >= 0.95 * sum(right)
