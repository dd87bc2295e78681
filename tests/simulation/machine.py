# SPDX-License-Identifier: GPL-2.0-or-later
"""CPUs with run queues, threads that wake on them, sockets that threads read, and who observes it.

A thread reads its sockets whenever a packet comes, so no read is an event of its own: what the BPF
observer would report of them (atfnd/bpf/programs/observer.bpf.c) is worked out when a thread
changes its CPU, when a flow's packets come to another one, and when a backoff is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from atfnd.model import (
    Accepted,
    Born,
    Connected,
    Connecting,
    Direction,
    Distance,
    FlowKey,
    Forked,
    Listening,
    ReadBytes,
    SocketGone,
    SocketSeen,
    SocketUse,
    Survey,
    Thread,
    ThreadReads,
)
from atfnd.observe import Observation, Qualify
from tests.simulation.loop import Descriptors
from tests.simulation.nic import WorldNic
from tests.simulation.stays import LEVELS, WANDERS, Stays
from tests.simulation.wire import Flow
from tests.simulation.world import World

__all__ = ["NETNS", "Cpu", "Listener", "Machine", "Socket", "Task", "WorldBirths"]
__all__ += ["WorldObserver"]

MAX_BACKOFF = 6
HOMES = Distance.CPU, Distance.LLC, Distance.NODE, Distance.MACHINE  # enum observer_level
NOWHERE = -1  # no packet arrives there
NETNS = 1  # the inode number of the only network namespace
FORKS_AFTER_NS = 5_000_000  # a server makes its workers after it began to listen
SEGMENT_BYTES = 1448
SOFTIRQ_NS, READ_NS = (
    3_500,
    6_000,
)  # for each packet: the fastest flows fill a core
DEFERRED_NS = 2_500  # as SOFTIRQ_NS, where a timer polls


class Cpu:
    """One CPU and the threads that run on it."""

    __slots__ = ("index", "online", "tasks")

    def __init__(self, index: int) -> None:
        self.index, self.online = index, True
        self.tasks: set[Task] = set()


class Task:
    """A thread. `stays_ns`: it wakes on another CPU about so often; None: never by itself."""

    __slots__ = ("cpu", "pinned", "reported", "sockets", "stays_ns", "thread")

    def __init__(self, thread: Thread, cpu: Cpu, stays_ns: int | None) -> None:
        self.thread, self.cpu, self.stays_ns = thread, cpu, stays_ns
        self.pinned: frozenset[int] | None = None
        self.reported: tuple[int, str] | None = None  # pinned there: its CPU and NIC
        self.sockets: list[Socket] = []
        cpu.tasks.add(self)


class Socket:
    """One socket, and what the observer knows of it."""

    __slots__ = (
        "backoff",
        "born_ns",
        "came_ns",
        "check",
        "cookie",
        "due_cpu",
        "flow",
        "goes_along",
        "home",
        "nic",
        "reported_cpu",
        "reported_ns",
        "since_ns",
        "task",
    )  # fmt: skip

    def __init__(self, flow: Flow, nic: WorldNic, task: Task, born_ns: int) -> None:
        self.flow, self.nic, self.task, self.born_ns = flow, nic, task, born_ns
        self.cookie = flow.cookie
        self.since_ns = born_ns  # its thread is on its CPU
        self.reported_cpu: int | None = None
        self.due_cpu: int | None = None  # its packets belong there, as was said
        self.reported_ns = self.came_ns = self.backoff = (
            0  # `came_ns`: first told from `reported_cpu`
        )
        self.home = 0  # the level that was reported last (stays.py)
        self.goes_along = False  # its thread was pinned then, and its packets came elsewhere
        self.check = 0  # the number of the check that is to come; earlier ones are void

    def rx_cpu(self) -> int | None:
        ring = self.flow.ring
        return None if ring is None else ring.rx_cpu

    def received_bytes(self) -> int:
        flow = self.flow
        sent_ns = flow.next_ns(flow.world.now_ns) - flow.interval_ns
        number = flow.number_at(sent_ns) if flow.talks and sent_ns >= flow.began_ns else flow.first
        return max(0, number) * SEGMENT_BYTES


class Listener:
    """A socket that listens on a port of an address, and the threads that read its connections."""

    __slots__ = ("cookie", "key", "tasks")

    def __init__(self, cookie: int, key: FlowKey, tasks: list[Task]) -> None:
        self.cookie, self.key, self.tasks = cookie, key, tasks


class Machine:
    """CPUs, threads and sockets of the world."""

    def __init__(self, world: World, cpus: int) -> None:
        self.world = world
        self.cpus = [Cpu(index) for index in range(cpus)]
        self.sockets: dict[int, Socket] = {}  # by cookie
        self.observers: list[WorldObserver] = []
        self.births: list[WorldBirths] = []
        self.listeners: dict[int, Listener] = {}  # by cookie
        self.connecting: dict[FlowKey, int] = {}  # cookies of those that are not answered yet
        self._tids = 1000
        self._looked_ns = world.now_ns
        self.softirq_ns = dict.fromkeys(range(cpus), 0)
        self.busy_ns = dict.fromkeys(range(cpus), 0)
        self.ran_ns: Counter[int] = Counter()  # by thread
        self.batch: set[int] = set()  # CPUs that other work fills

    def spend(self) -> None:
        """Count the CPU time since the last call, as if all had been as it is now."""
        since_ns, self._looked_ns = self.world.now_ns - self._looked_ns, self.world.now_ns
        before = dict(self.busy_ns)
        for index in self.batch:
            self.busy_ns[index] += since_ns
        for socket in self.sockets.values():
            flow, cpu = socket.flow, socket.rx_cpu()
            if not flow.talks or flow.ring is None or cpu is None:
                continue
            flow.ring.received += since_ns // flow.interval_ns
            a_packet_ns = DEFERRED_NS if flow.ring.defers else SOFTIRQ_NS
            softirq_ns = since_ns * a_packet_ns // flow.interval_ns
            read_ns = since_ns * READ_NS // flow.interval_ns
            self.softirq_ns[cpu] += softirq_ns
            self.busy_ns[cpu] += softirq_ns
            self.busy_ns[socket.task.cpu.index] += read_ns
            self.ran_ns[socket.task.thread.tid] += read_ns
        for index, was_ns in before.items():
            self.busy_ns[index] = min(self.busy_ns[index], was_ns + since_ns)

    def forwards(self, cpu: int, ns: int) -> None:
        """A CPU has forwarded for so long."""
        self.softirq_ns[cpu] += ns
        self.busy_ns[cpu] += ns

    def task(
        self, comm: str, cpu: int, stays_ns: int | None = None, uid: int = 1000,
        of: int | None = None,
    ) -> Task:  # fmt: skip
        """A thread begins to run, of this process or of its own."""
        self._tids += 1
        thread = Thread(self._tids, self._tids if of is None else of, comm, None, uid)
        task = Task(thread, self.cpus[cpu], stays_ns)
        if stays_ns is not None:
            self.world.after(self._stay(stays_ns), self._wander, task)
        return task

    def open(self, flow: Flow, nic: WorldNic, task: Task) -> Socket:
        """A socket of this thread receives this flow through this NIC."""
        socket = Socket(flow, nic, task, self.world.now_ns)
        self.sockets[flow.cookie] = socket
        task.sockets.append(socket)
        nic.add(flow)

        def rerouted() -> None:
            for observer in self.observers:
                observer.changed(socket)

        flow.rerouted = rerouted
        rerouted()
        return socket

    def listen(self, cookie: int, key: FlowKey, tasks: list[Task]) -> Listener:
        """One of these threads listens; all of them accept."""
        listener = self.listeners[cookie] = Listener(cookie, key, tasks)
        task = tasks[0]
        now_ns, cpu = self.world.now_ns, task.cpu.index
        self._hear(Listening(now_ns, cookie, key, NETNS, task.thread, cpu, alone=True))
        if len(tasks) > 1:
            self.world.after(FORKS_AFTER_NS, self._fork, task.thread.pid)
        return listener

    def _fork(self, pid: int) -> None:
        """A server that has begun to listen makes its workers."""
        self._hear(Forked(self.world.now_ns, pid))

    def unlisten(self, listener: Listener) -> None:
        del self.listeners[listener.cookie]
        self._hear(SocketGone(self.world.now_ns, listener.cookie))

    def accept(self, flow: Flow, nic: WorldNic, task: Task) -> Socket:
        """A connection is established by an ACK, and its data follow; a thread reads it soon."""
        socket = self.open(flow, nic, task)
        ring = flow.ring
        napi_id = None if ring is None else ring.napi_id
        self._hear(Accepted(self.world.now_ns, flow.cookie, flow.key, napi_id))
        self.world.after(flow.interval_ns, self._read_first, socket)
        return socket

    def connect(
        self, key: FlowKey, cookie: int, task: Task, after_ns: int, answered: Callable[[], None]
    ) -> None:
        """A thread connects; the other end answers, after which data may come."""
        now_ns = self.world.now_ns
        self.connecting[key] = cookie
        self._hear(Connecting(now_ns, cookie, key, NETNS, task.thread, task.cpu.index))

        def is_answered() -> None:
            del self.connecting[key]
            answered()
            self._hear(Connected(self.world.now_ns, cookie, key, after_ns))

        self.world.after(after_ns, is_answered)

    def _hear(self, event: Born) -> None:
        for each in self.births:
            each.hear(event)

    def _read_first(self, socket: Socket) -> None:
        if socket.cookie in self.sockets:
            for observer in self.observers:
                observer.first_read(socket)

    def close(self, socket: Socket) -> None:
        del self.sockets[socket.cookie]
        socket.task.sockets.remove(socket)
        socket.flow.rerouted = None
        if socket.flow.match in socket.nic.flows:
            socket.nic.remove(socket.flow)
        for observer in self.observers:
            observer.closed(socket)
        self._hear(SocketGone(self.world.now_ns, socket.cookie))

    def pin(self, task: Task, cpus: frozenset[int]) -> None:
        """sched_setaffinity: it moves, if it has to. CPUs that are offline are refused."""
        if not any(self.cpus[cpu].online for cpu in cpus):
            return
        task.pinned = cpus
        if task.cpu.index not in cpus:
            self.move(task, self.least_loaded(task))
            return
        for socket in task.sockets:  # it is read where it may stay, from its next packet on
            for observer in self.observers:
                observer.changed(socket)

    def move(self, task: Task, cpu: Cpu) -> None:
        """It wakes on another CPU, and takes its sockets along."""
        if cpu is task.cpu:
            return
        task.cpu.tasks.discard(task)
        task.cpu = cpu
        cpu.tasks.add(task)
        self.world.mark(task.thread.tid)
        for observer in self.observers:
            observer.migrated(task)
        for socket in task.sockets:
            socket.since_ns = self.world.now_ns
            for observer in self.observers:
                observer.changed(socket)

    def offline(self, cpu: Cpu) -> None:
        """Its threads wake elsewhere, its interrupts are moved. The last one stays."""
        if sum(each.online for each in self.cpus) < 2:
            return
        cpu.online = False
        for task in sorted(cpu.tasks, key=lambda each: each.thread.tid):
            task.pinned = None
            self.move(task, self.least_loaded(task))

    def least_loaded(self, task: Task) -> Cpu:
        """Where it wakes: by chance among those with the fewest threads, of those where it may."""
        pinned = task.pinned
        allowed = [c for c in self.cpus if c.online and (not pinned or c.index in pinned)]
        most = min([len(each.tasks) for each in allowed]) + 1
        return self.world.random.choice([each for each in allowed if len(each.tasks) <= most])

    def _stay(self, stays_ns: int) -> int:
        return self.world.random.randrange(stays_ns // 2, 2 * stays_ns)

    def _wander(self, task: Task) -> None:
        if task.stays_ns is None:
            return
        if task.pinned is None and task.sockets:
            self.move(task, self.least_loaded(task))
        self.world.after(self._stay(task.stays_ns), self._wander, task)


class WorldBirths:
    """Stands for `observe.sockets.handshakes.Births`, of the one namespace that there is."""

    def __init__(self, machine: Machine, descriptors: Descriptors) -> None:
        self._machine, self._descriptors = machine, descriptors
        self._fileno = descriptors.open()
        self._events: list[Born] = []
        self._ports: frozenset[int] = frozenset()
        self._lost = 0
        self.losing = 0  # so many events to come find the ring buffer full

    def start(self) -> None:
        self._machine.births.append(self)

    def serve(self, netns: Sequence[str | None]) -> None:
        """All is in one namespace."""

    def is_of(self, netns: int, path: str | None) -> bool:
        return netns == NETNS and path is None

    def accepts(self, ports: Collection[int]) -> None:
        self._ports = frozenset(ports)

    def fileno(self) -> int:
        return self._fileno

    def drain(self) -> list[Born]:
        self._machine.world.operation("drain births")
        events, self._events = self._events, []
        self._descriptors.readable(self._fileno, False)
        return events

    def lost(self) -> int:
        return self._lost

    def listeners(self) -> list[Listening]:
        now_ns = self._machine.world.now_ns
        listeners = self._machine.listeners.values()
        return [Listening(now_ns, each.cookie, each.key, NETNS) for each in listeners]

    def close(self) -> None:
        self._descriptors.close(self._fileno)
        if self in self._machine.births:
            self._machine.births.remove(self)

    def hear(self, event: Born) -> None:
        """What the kernel's program sees."""
        if isinstance(event, Accepted) and event.key.local_port not in self._ports:
            return
        self._descriptors.readable(self._fileno, True)  # one that is full has something to read
        if self.losing:
            self.losing -= 1
            self._lost += 1
            return
        self._events.append(event)
        self._machine.world.seen[type(event).__name__] += 1


class WorldObserver:
    """`observe.Observer` as BPF does it: dwell, retell with backoff, off-target rules."""

    name = "bpf"

    def __init__(
        self, machine: Machine, qualify: Qualify, retell_ns: int, descriptors: Descriptors
    ) -> None:
        self._machine, self._world, self._descriptors = machine, machine.world, descriptors
        self._fileno = descriptors.open()
        self._qualify, self._retell_ns = qualify, retell_ns
        self._nics: frozenset[str] = frozenset()
        self._events: list[Observation] = []
        self._lost = 0
        self._stays = Stays(qualify.price, qualify.parts)
        self._accrued: dict[int, tuple[int, tuple[float, ...]]] = {}  # by thread: until, packets/ns
        self.losing = 0  # so many records to come find the ring buffer full
        machine.observers.append(self)

    def fileno(self) -> int:
        return self._fileno

    def poll_interval_s(self) -> float | None:
        return None

    def qualify(self, qualify: Qualify) -> None:
        self._qualify = qualify
        self._stays.renew(qualify.price, qualify.parts)
        self._check_all()

    def watch(self, netns: Sequence[str | None], napis: Mapping[int, str]) -> int:
        del netns
        self._nics = frozenset(napis.values())
        self._check_all()
        return 0

    def drain(self) -> list[Observation]:
        self._world.operation("drain")
        events, self._events = self._events, []
        self._descriptors.readable(self._fileno, False)
        return events

    def lost(self) -> int:
        return self._lost

    def inventory(self) -> list[SocketUse]:
        return [self._use(each) for each in self._machine.sockets.values() if self._sees(each)]

    def adopt(self, cpus: Mapping[int, int]) -> None:
        for cookie, cpu in cpus.items():
            socket = self._machine.sockets.get(cookie)
            if socket is not None:
                socket.reported_cpu, socket.reported_ns = cpu, self._world.now_ns
                socket.came_ns = socket.reported_ns
                socket.due_cpu = NOWHERE if self._qualify.elsewhere else None
                self.changed(socket)

    def forget(self, cookies: Collection[int]) -> None:
        for cookie in cookies:
            socket = self._machine.sockets.get(cookie)
            if socket is not None:
                socket.reported_cpu, socket.due_cpu, socket.home = None, None, 0
                socket.backoff = 0
                self.changed(socket)

    def begin_survey(self) -> bool:
        return False

    def end_survey(self) -> Iterator[Callable[[], Survey]]:
        return iter(())

    def expect(self, cookie: int, cpu: int, at_ns: int) -> None:
        socket = self._machine.sockets.get(cookie)
        if socket is not None and self._qualify.elsewhere and at_ns >= socket.came_ns:
            socket.due_cpu = cpu
            self.changed(socket)

    def hands_on(self, nic: str, cpus: Mapping[int, int]) -> None:
        """RFS hands nothing on here."""

    def learn(self, cgroup: int, path: str, groups: int) -> None:
        """No control groups here."""

    def audit(self) -> list[SocketUse]:
        reported = (
            each for each in self._machine.sockets.values() if each.reported_cpu is not None
        )
        return [self._use(each) for each in reported]

    def reads(self, nic: str) -> ReadBytes | None:
        del nic
        return None

    def close(self) -> None:
        self._descriptors.close(self._fileno)
        self._machine.observers.remove(self)
        for socket in self._machine.sockets.values():
            socket.reported_cpu, socket.due_cpu, socket.home = None, None, 0
            socket.check += 1

    # ---- what the kernel calls

    def changed(self, socket: Socket) -> None:
        """Its thread or its packets come elsewhere: is it off its target, once it has dwelt?"""
        if self._sees(socket):
            self._accrue(socket.task)
            socket.check += 1
            at_ns = max(self._stays_since(socket) + self._qualify.dwell_ns, self._world.now_ns)
            self._world.at(socket.flow.next_ns(at_ns), self._check, socket, socket.check)

    def _stays_since(self, socket: Socket) -> int:
        """Its thread is in its home since then."""
        stays = self._stays.known(socket.task.thread.tid)
        home = 0 if stays is None else self._stays.home_of(socket.task.thread.tid)
        if stays is None or home == 0:
            return socket.since_ns
        return stays[home].since_ns if home < LEVELS else self._world.now_ns

    def closed(self, socket: Socket) -> None:
        socket.check += 1
        if socket.reported_cpu is not None:
            self._record(SocketGone(self._world.now_ns, socket.cookie))

    def migrated(self, task: Task) -> None:
        """Did the last move of its flows pay?"""
        self._accrue(task)
        self._stays.migrated(task.thread.tid, task.cpu.index, self._world.now_ns)

    def first_read(self, socket: Socket) -> None:
        """A thread reads an accepted connection for the first time."""
        ring = socket.flow.ring
        if self._sees(socket) and ring is not None:
            now_ns, thread = self._world.now_ns, socket.task.thread
            self._record(ThreadReads(now_ns, socket.flow.key, ring.napi_id, thread))

    def _check_all(self) -> None:
        for socket in self._machine.sockets.values():
            self.changed(socket)

    def _sees(self, socket: Socket) -> bool:
        return socket.nic.name in self._nics

    def _check(self, socket: Socket, check: int) -> None:
        if socket.check != check or not self._sees(socket):
            return None
        world, qualify, flow = self._world, self._qualify, socket.flow
        if not flow.talks:
            return self._again(socket, world.now_ns + 10**9)
        task, rx_cpu, stays = socket.task, socket.rx_cpu(), self._stays
        cpu = task.cpu.index
        report, home, paid = self._judge(socket)
        if socket.reported_cpu is None and rx_cpu == cpu and not qualify.elsewhere:
            return None
        if socket.home == home and stays.together(socket.reported_cpu, cpu, home):
            belongs = socket.due_cpu if socket.due_cpu is not None else socket.reported_cpu
            if rx_cpu is None or stays.together(rx_cpu, belongs, home):
                socket.backoff = 0
                return self._when_paid(socket) if home and not paid else None
            due_ns = socket.reported_ns + (self._retell_ns << socket.backoff)
            if world.now_ns < due_ns:
                return self._again(socket, due_ns)
        if not report:
            return self._when_paid(socket)
        young_ns = socket.born_ns + qualify.min_age_ns
        if world.now_ns < young_ns:
            return self._again(socket, young_ns)
        short = qualify.min_bytes - socket.received_bytes()
        if short > 0:
            packets = -(-short // SEGMENT_BYTES)
            return self._again(socket, world.now_ns + packets * flow.interval_ns)
        pinned = task.pinned is not None and len(task.pinned) == 1
        along = pinned and socket.goes_along and socket.reported_cpu not in (None, cpu)
        if along and not qualify.elsewhere and task.reported == (cpu, socket.nic.name):
            socket.reported_cpu, socket.due_cpu = cpu, None
            socket.reported_ns = socket.came_ns = world.now_ns
            socket.backoff = 0
            world.seen["taken along"] += 1
            return self._again(socket, world.now_ns + self._retell_ns)
        self._tell(socket, cpu, rx_cpu, home, paid)
        return None

    def _judge(self, socket: Socket) -> tuple[bool, int, bool]:
        """Is a record worth it, where is the home of its thread, and has the stay paid for a
        move?"""
        stays, task, now_ns = self._stays, socket.task, self._world.now_ns
        tid, cpu, first = task.thread.tid, task.cpu.index, socket.reported_cpu is None
        if not stays.price.move_ns or (task.pinned is not None and len(task.pinned) == 1):
            return True, 0, False
        if stays.known(tid) is None:
            stays.begin(tid, cpu, now_ns)
            if not first or stays.price.doubt < WANDERS:
                return first or (socket.home == 0 and socket.reported_cpu == cpu), 0, False
        self._accrue(task)
        home, paid = stays.home_of(tid), stays.paid_level(tid, now_ns)
        if paid == 0 or (paid < LEVELS and not stays.together(cpu, socket.rx_cpu(), paid)):
            return True, paid, True
        if first or home > socket.home:
            return True, home, False
        known, home = stays.known(tid), socket.home
        stayed = (
            known is not None
            and home < LEVELS
            and stays.together(socket.reported_cpu, cpu, home)
            and known[home].since_ns <= socket.reported_ns
        )
        return stayed, home, False

    def has_paid(self, socket: Socket) -> bool:
        """A move of its flow to the CPU of its thread has been asked for, or will be at once."""
        stays, tid, cpu = self._stays, socket.task.thread.tid, socket.task.cpu.index
        pinned, known = socket.task.pinned, stays.known(tid)
        if not stays.price.move_ns or known is None or (pinned is not None and len(pinned) == 1):
            return True
        if socket.reported_cpu is None:
            return stays.home_of(tid) == 0
        if socket.reported_cpu == cpu and socket.home == 0:
            return True
        self._accrue(socket.task)
        return known[0].lost_ns >= stays.dear(tid, self._world.now_ns)[0]

    def _away(self, task: Task) -> tuple[float, ...]:
        """Packets that come from outside of the part that the thread is in, by the level."""
        cpu, found = task.cpu.index, [0.0] * LEVELS
        for each in task.sockets:
            rx_cpu = each.rx_cpu()
            if not each.flow.talks or not self._sees(each):
                continue
            if each.reported_cpu is None:
                right = rx_cpu == cpu and not self._qualify.elsewhere
            else:
                right = each.reported_cpu == cpu and rx_cpu == (
                    cpu if each.due_cpu is None else each.due_cpu
                )
            if not right:
                found[self._stays.distance(cpu, rx_cpu)] += 1 / each.flow.interval_ns
        return tuple(found)

    def _accrue(self, task: Task) -> None:
        """Add up what packets have lost since the last time, as they came until now."""
        tid, now_ns = task.thread.tid, self._world.now_ns
        then_ns, rates = self._accrued.get(tid, (now_ns, ()))
        if self._stays.known(tid) is not None:
            for far, rate in enumerate(rates):
                self._stays.lose(tid, far, rate * (now_ns - then_ns))
        self._accrued[tid] = now_ns, self._away(task)

    def _when_paid(self, socket: Socket) -> None:
        """Look again when the stay will have brought the price, if nothing changes."""
        tid, now_ns, stays = socket.task.thread.tid, self._world.now_ns, self._stays
        known = stays.known(tid)
        if known is None or not stays.price.move_ns:
            return
        _, rates = self._accrued[tid]
        lost = [rate * ns for rate, ns in zip(rates, stays.price.packet_ns, strict=True)]
        due_ns = list[int]()
        for at_ns in {now_ns, max(now_ns, stays.spent_until_ns)}:
            for level, dear_ns in enumerate(stays.dear(tid, at_ns)):
                if (rate := sum(lost[level:])) > 0:
                    left_ns = max(dear_ns - known[level].lost_ns, 0)
                    due_ns.append(max(at_ns, now_ns + int(left_ns / rate)))
        if due_ns:
            self._again(socket, min(due_ns) + 1)

    def _again(self, socket: Socket, at_ns: int) -> None:
        self._world.at(socket.flow.next_ns(at_ns), self._check, socket, socket.check)

    def _tell(self, socket: Socket, cpu: int, rx_cpu: int | None, home: int, paid: bool) -> None:
        now_ns, ring, task = self._world.now_ns, socket.flow.ring, socket.task
        pinned = task.pinned is not None and len(task.pinned) == 1
        since_ns = self._stays_since(socket) if home else socket.since_ns
        seen = SocketSeen(
            now_ns, socket.cookie, socket.flow.key, cpu, task.thread,
            None if ring is None else ring.napi_id, rx_cpu, socket.received_bytes(),
            since_ns, socket.born_ns,
            Direction.ACCEPTED if self._qualify.direction else None, home=HOMES[home],
            pinned=pinned,
        )  # fmt: skip
        if not self._record(seen):
            self._again(socket, now_ns)  # nothing is marked as told
            return
        self._world.seen["wanders"] += home == LEVELS
        self._world.seen["stays in a part"] += 0 < home < LEVELS
        tid, stays = task.thread.tid, self._stays
        if stays.known(tid) is None:
            stays.begin(tid, cpu, now_ns)
        elif not pinned:
            stays.moved(tid, home, cpu, rx_cpu, paid, now_ns)
        again = stays.together(socket.reported_cpu, cpu, home)
        socket.backoff = socket.backoff + 1 if again and socket.backoff < MAX_BACKOFF else 0
        if socket.reported_cpu != cpu and self._qualify.elsewhere:
            socket.due_cpu, socket.came_ns = None, now_ns
        socket.reported_cpu, socket.reported_ns, socket.home = cpu, now_ns, home
        socket.goes_along = pinned and rx_cpu != cpu
        task.reported = (cpu, socket.nic.name) if pinned else None
        self._accrue(task)
        for each in task.sockets if paid else ():  # what is left of that may pay for these, too
            if each is not socket:
                self.changed(each)
        if not stays.together(rx_cpu, cpu, home):
            self._again(socket, now_ns + (self._retell_ns << socket.backoff))
        elif home:
            self._when_paid(socket)

    def _record(self, record: Observation) -> bool:
        self._descriptors.readable(self._fileno, True)  # one that is full has something to read
        if self.losing:
            self.losing -= 1
            self._lost += 1
            self._world.seen["record lost"] += 1
            return False
        self._events.append(record)
        self._world.seen[type(record).__name__] += 1
        return True

    def _use(self, socket: Socket) -> SocketUse:
        ring = socket.flow.ring
        return SocketUse(
            socket.cookie, socket.flow.key, socket.reported_cpu,
            None if ring is None else ring.napi_id, socket.rx_cpu(),
            socket.received_bytes(), socket.flow.last_delivered_ns(),
        )  # fmt: skip
