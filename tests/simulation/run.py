# SPDX-License-Identifier: GPL-2.0-or-later
"""One run of a plan in a world, and what must hold in it.

At each step: a filter of ours is in the journal before it is in the NIC; nothing of another program
is written over; a move that is called proven has reordered nothing. After faults have ended and
everything was restored: each NIC reads as if atfnd had never been there, the journals name nothing,
no queue is quiesced and nothing is left to happen.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp
from zlib import crc32

from atfnd.engine.placement.place import spares
from atfnd.engine.placement.steering_method import no_filter
from atfnd.engine.table.flow_table import Writing
from atfnd.model import (
    BUDGET_SETTINGS,
    Action,
    Actuator,
    FlowKey,
    FlowState,
    Match,
    Migrant,
    PairPlacement,
    Placement,
    Protocol,
    Restored,
    SteeringMethod,
)
from atfnd.model import Mode as MoveMode
from atfnd.model.reason import Code
from atfnd.model.reception import (
    BORROWED_THREAD,
    DEFER,
    OF_NAPI,
    SUSPEND,
    THREAD,
    TIMEOUT,
    by_any_name,
)
from atfnd.model.rss_hash import known_entry, rss_index, rss_rings
from atfnd.move.command import Ended
from atfnd.move.learn import demoted
from atfnd.move.timer import Times
from atfnd.move.verdict import Mechanism, Mode, Verdict
from atfnd.program.balance import BALANCER
from atfnd.program.host_settings import HOST
from tests.engine.held import held
from tests.simulation.actuator import WorldActuator
from tests.simulation.balancer import Balancer
from tests.simulation.disk import Disk
from tests.simulation.driver import FOREIGN, OURS, Entry, Refusal
from tests.simulation.forwarded import Stream
from tests.simulation.kernel import Kernel
from tests.simulation.machine import Machine, Socket, Task, WorldObserver
from tests.simulation.nic import ENTRIES, HASHES, WorldNic
from tests.simulation.policies import CPUS as DEDICATED
from tests.simulation.policies import VALUES, forwarding, policy, receiving, wanted
from tests.simulation.schedule import Plan, Step
from tests.simulation.service import Service
from tests.simulation.wire import Flow
from tests.simulation.world import BEGIN_NS, Broken, World

__all__ = ["Failure", "Run", "run"]

CPUS = 4
REFUSED = [
    errno.EPERM, errno.EIO, errno.EAGAIN, errno.ENOMEM, errno.EBUSY, errno.EEXIST, errno.EINVAL,
    errno.ENOSPC, errno.EOPNOTSUPP, errno.ENETDOWN, errno.ETIMEDOUT,
]  # fmt: skip
MAYBE_DONE = [errno.EIO, errno.EAGAIN, errno.ENOMEM, errno.ETIMEDOUT, errno.ENETDOWN]
SETTINGS = ("rss", "rps-cpus", "rps-flow-cnt", "xps-cpus", "priv")
INTERVALS_NS = (10_000, 50_000, 1_000_000, 20_000_000, 300_000_000)
STAYS_NS = (50_000_000, 500_000_000, 5_000_000_000, None)  # on one CPU; None: it never wanders
QUIET_NS = 500_000_000
CHECK_NS = 20_000_000
COUNTED_NS = 25_000_000_000  # so late is it seen that other streams come: counts rest for 20 s
PPS = 0, 200, 3_000, 20_000, 60_000, 0  # of a stream that is forwarded
PORTS = 443, 8080
NEWS_NS = 50_000_000  # so late may news of a link be
LOAN_NS = Times().loan_max_ns + Times().hold_max_ns  # it ends with the last hold
LENT_MOST_NS = Times().hold_max_ns // 4  # of a timeout that a move may take away
AGAIN_NS = 30_000_000_000  # so late may a move that was put off be tried again,
SOON_NS = 1_000_000_000  # or so much later than it was put off for
GAP_NS = 20_000_000  # a flow that is idle for so long can be moved in its gaps
REFUSED_MOST = 5  # of what is tried again now and then
PUT_OFF_MOST = 3  # for each flow: a few times by the daemon, and now and then by the observer
LATE_MOST = 3  # moves that were put off again and again, and succeed at last
LENT_MOST = 4 * LATE_MOST  # values of NAPIs, for these
EVERY = 3  # of the seeds, every socket is closed at the end
GONE_NS = 30_000_000_000  # a port's filter stays for ten seconds
BY_TIME = {"_open"}  # of connects whose end was lost: they end by time alone
CRASHES = ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError  # a bug


class Failure(Exception):
    """What did not hold, and how it came to it."""

    def __init__(self, plan: Plan, what: str, how: str, story: list[str]) -> None:
        super().__init__(what, how)
        self.plan, self.what, self.how, self.story = plan, what, how, story


class Run:
    """The world of a plan. `run_dir` is empty, and has the journals."""

    def __init__(self, plan: Plan, run_dir: Path) -> None:
        self.plan, self.world, self._folder = plan, World(plan.seed), f"{run_dir}/"
        self.disk = Disk(self.world)
        self.nics = [
            self._nic(f"eth{at}", at + 1, driver) for at, driver in enumerate(plan.drivers)
        ]
        self.machine = Machine(self.world, CPUS)
        self.kernel = Kernel(self.machine, lambda: self.nics, self._ended, self._said)
        self.sockets = [self._socket(number) for number in range(plan.flows)]
        for nic in self.nics:
            self._plugged(nic)
        if plan.forwards:
            self.kernel.caches = (0, 1), (2, 3)
            self.kernel.forwards.strict = self._strict
        text = self._policy(plan.seed)
        self.service = Service(self.world, self.disk, run_dir, self.kernel, text)
        self._opened = len(self.sockets)
        self.verdicts: Counter[str] = Counter()
        self._ifindex, self._renamed_ns, self._foreign = len(self.nics), -2 * NEWS_NS, 0
        self._paused: set[WorldNic] = set()  # and nothing of ours was left
        self._promised: dict[int, object] = {}  # actions that were to reorder nothing, by id

    def _nic(self, name: str, ifindex: int, driver: str) -> WorldNic:
        return WorldNic(
            self.world, name, ifindex, driver, CPUS, slots=self.plan.slots,
            threaded=self.plan.threaded, lends=self.plan.lends, each=self.plan.each,
            keeps=self.plan.receives and self.plan.seed // 20 % 2 == 1,
            hashing=self._hashing(name),
        )  # fmt: skip

    def _hashing(self, nic: str) -> str:
        """Of every other NIC, as its driver says."""
        drawn = crc32(f"{self.plan.seed} {nic}".encode()) >> 8
        return HASHES[drawn // 2 % len(HASHES)] if drawn % 2 else HASHES[0]

    def _plugged(self, nic: WorldNic) -> None:
        nic.changed_link = self._link_changed if self.plan.receives else self.kernel.link_changed
        if self.plan.forwards:
            forwards = self.kernel.forwards
            nic.ways, nic.went, nic.others = forwards.ways, forwards.written, forwards.others

    def _link_changed(self, nic: WorldNic) -> None:
        """Its news comes while the daemon does something else: at every other time, that late."""
        late_ns = crc32(f"{self.plan.seed} {self.world.now_ns}".encode()) % (2 * NEWS_NS)
        if late_ns < NEWS_NS:
            self.world.after(late_ns, self.kernel.link_changed, nic)
        else:
            self.kernel.link_changed(nic)

    def _policy(self, number: int) -> str:
        """Of this number, for what the plan is about."""
        if self.plan.receives:
            return receiving(number, pilots=self.plan.busy)
        return forwarding(number) if self.plan.forwards else policy(number)

    def _socket(self, number: int) -> Socket:
        nic = self.nics[number % len(self.nics)]
        flow = self._flow(_key(number)._replace(local=nic.address), 1000 + number)
        return self.machine.open(flow, nic, self._task())

    def _flow(self, key: FlowKey, cookie: int) -> Flow:
        random = self.world.random
        every_ns = random.choice(INTERVALS_NS[:2] if self.plan.busy else INTERVALS_NS)
        return Flow(self.world, key, every_ns, cookie)

    def _task(self) -> Task:
        random = self.world.random
        stays_ns = random.choice(STAYS_NS)
        stays_ns = stays_ns if self.plan.wanders else None
        tasks = [task for cpu in self.machine.cpus for task in cpu.tasks]
        of = None
        if tasks and random.random() < 0.2:
            of = min(tasks, key=lambda task: task.thread.tid).thread.pid
        return self.machine.task("app", random.choice(self._online()), stays_ns, of=of)

    def _online(self) -> list[int]:
        return [cpu.index for cpu in self.machine.cpus if cpu.online]

    def go(self) -> None:
        """Broken: something does not hold."""
        with ExitStack() as stack:
            stack.enter_context(self.world.clock())
            stack.enter_context(self.disk.mounted())
            stack.enter_context(self.kernel.doors())
            try:
                for step in self.plan.steps:
                    self._pass(step.at_ns)
                    self.world.note(step.verb, f"- {step.verb} {self._of(step)}")
                    getattr(self, f"_{step.verb.replace(' ', '_')}")(*step.arguments)
                    self._check()
                self._end_well()
            finally:
                self.service.die()

    def _said(self, kind: str, text: str) -> None:
        if "forwarding gateway" in text:
            self.world.seen[f"forwarding places: {kind}"] += 1
        self.world.note(f"log {kind}", f"atfnd: {text.replace(self._folder, '')}")

    def _of(self, step: Step) -> str:
        return " ".join(map(str, step.arguments))

    def _pass(self, until_ns: int) -> None:
        """Time goes by, and the daemon looks when it is due."""
        world = self.world
        while world.now_ns < until_ns:
            self.service.run_until(min(until_ns, self._check_at_ns()))
            self._check_news()

    def _check_at_ns(self) -> int:
        """When to look again at what must hold: as long as nothing happens, nothing changes."""
        soon_ns = self.world.now_ns + CHECK_NS
        all_ns = self.world.next_ns(), self.service.next_ns()
        coming = [at_ns for at_ns in all_ns if at_ns is not None]
        return max(soon_ns, min(coming, default=soon_ns))

    # ---- orders to the daemon

    def _restore(self, number: int, *_: int) -> None:
        nic = self._at(number)
        if nic.table.present:
            self._said_so()
            answer = self.service.order("restore", nic.name)
            said: Sequence[Restored] | None = None if answer is None else answer.said
            self._undone(nic, said)
            if said is not None and all(each.done for each in said):
                self._host_as_found()

    # ---- what happens

    def _kill(self, after: int, *_: int) -> None:
        self._tell_names()
        self.world.kill_after = after % 40

    def _arm(self, number: int, *_: int) -> None:
        self.service.order("arm", self._at(number).kernel_name)

    def _disarm(self, number: int, refused: int, *_: int) -> None:
        """In every third, the kernel refuses to end moves in order."""
        for at in self.nics if refused % 3 == 0 else ():
            for actuator in self._actuator(at):
                actuator.fails_to_end = True
        nic = None if number % 3 == 0 else self._at(number).kernel_name
        self.service.order("disarm", nic)
        for each in self.nics if nic is None else [self._at(number)]:
            if self.service.alive and self.service.armed(each.name):
                self.world.broken("kill switch", f"{each.name} is armed after it was disarmed")

    def _pause(self, number: int, *_: int) -> None:
        nic = self._at(number)
        self._said_so()
        answer = self.service.order("pause", nic.kernel_name)
        if answer is None or not self.service.paused(nic.name):
            return
        self.world.seen["paused"] += 1
        self._paused.add(nic)
        self._as_found(nic)
        self._host_as_found()

    def _resume(self, number: int, *_: int) -> None:
        self._said_so()
        self.service.order("resume", self._at(number).kernel_name)

    def _reload(self, number: int, *_: int) -> None:
        self.service.policy(self._policy(number))
        self.service.reload()

    def _stop(self, *_: int) -> None:
        self._tell_late_names()
        self._said_so()
        asked, refusals = self.service.restores_at_stop(), self.kernel.host.refusals
        stops, refused = self.world.seen["stop"], len(refusals)
        self.service.stop()
        whole = self.world.seen["stop"] > stops and len(refusals) == refused
        if asked and whole and self.service.undone is None:
            self.world.broken("restore", "it stops, and undoes nothing")
        if self.service.undone is not None:
            self.world.seen["restored at a stop"] += 1
            for nic in self.nics:
                self._undone(nic, self.service.undone)
        if asked and whole and (how := self.kernel.host.not_as_found()) is not None:
            self.world.broken("restore", how)

    def _said_so(self) -> None:
        """An operator did: atfnd may take over again what it had left to others."""
        self.kernel.balancers.taken_back()
        self.kernel.host.changed.clear()
        for nic in self.nics:
            nic.changed.clear()

    def _host_as_found(self) -> None:
        """No NIC is armed: the machine has the settings that its admin gave it."""
        if not self.service.alive or any(self.service.armed(nic.name) for nic in self.nics):
            return
        if (how := self.kernel.host.not_as_found()) is not None:
            self.world.broken("restore", how)

    def _begin(self, *_: int) -> None:
        if not self.service.alive:
            self.service.start()

    def _open(self, number: int, *_: int) -> None:
        self.sockets.append(self._socket(self._number()))

    def _join(self, number: int, *_: int) -> None:
        """A thread that has a socket opens another one, on another NIC if there is one."""
        known = self.sockets[number % len(self.sockets)]
        nic = next((each for each in self.nics if each is not known.nic), known.nic)
        new = self._number()
        flow = self._flow(_key(new)._replace(local=nic.address), 1000 + new)
        self.sockets.append(self.machine.open(flow, nic, known.task))

    def _number(self) -> int:
        """Of a new socket."""
        self._opened += 1
        return self._opened

    def _listen(self, number: int, port: int, threads: int, _: int) -> None:
        """A server with one thread, or with several that accept from one socket."""
        nic, machine = self._at(number), self.machine
        key = FlowKey(Protocol.TCP, nic.address, PORTS[port % len(PORTS)], bytes(4), 0)
        if all(each.key != key for each in machine.listeners.values()):
            tasks = [self._task() for _ in range(1 + (threads % 4 == 0))]
            machine.listen(1000 + self._number(), key, tasks)

    def _unlisten(self, number: int, *_: int) -> None:
        if self.machine.listeners:
            every = list(self.machine.listeners.values())
            self.machine.unlisten(every[number % len(every)])

    def _accept(self, number: int, *_: int) -> None:
        every = list(self.machine.listeners.values())
        if not every:
            return
        listener = every[number % len(every)]
        nic = next((each for each in self.nics if each.address == listener.key.local), None)
        if nic is not None and nic.table.up:
            number = self._number()
            ends = listener.key.local_port, _key(number).remote, 1000
            key = FlowKey(Protocol.TCP, nic.address, *ends)
            task = self.world.random.choice(listener.tasks)
            flow = self._flow(key, 1000 + number)
            self.sockets.append(self.machine.accept(flow, nic, task))

    def _connect(self, number: int, micros: int, *_: int) -> None:
        at, this, task = number % len(self.nics), self._number(), self._task()
        cookie, local = 1000 + this, self.nics[at].address
        key = FlowKey(Protocol.TCP, local, 30_000 + this, _key(this).remote, 5000)

        def answered() -> None:
            flow = self._flow(key, cookie)
            self.sockets.append(self.machine.open(flow, self.nics[at], task))

        self.machine.connect(key, cookie, task, 20_000 + micros * 100, answered)

    def _lose_births(self, _: int, count: int, *__: int) -> None:
        for births in self.machine.births:
            births.losing = 1 + count % 3

    def _lose_records(self, _: int, count: int, *__: int) -> None:
        for observer in self.machine.observers:
            observer.losing = 1 + count % 5

    # ---- irqbalance

    def _irqbalance_begins(self, number: int, *_: int) -> None:
        """In every third, its options tell it to leave an interrupt alone. There is one, mostly."""
        here = self.kernel.balancers.here
        if len(here) < 1 + (number % 7 == 0):
            irqs = sorted(self._at(number).interrupts())
            self.kernel.balancers.begin(irqs[:1] if number % 3 == 0 else (), number % 5 == 0)

    def _balancer(self, number: int) -> int | None:
        here = list(self.kernel.balancers.here)
        return here[number % len(here)] if here else None

    def _irqbalance_ends(self, number: int, *_: int) -> None:
        if (pid := self._balancer(number)) is not None:
            self.kernel.balancers.end(pid)

    def _irqbalance_hangs(self, number: int, seconds: int, *_: int) -> None:
        if (pid := self._balancer(number)) is not None:
            there = self.kernel.balancers.here[pid]
            there.silent_until_ns = self.world.now_ns + seconds % 40 * 1_000_000_000

    def _irqbalance_is_slow(self, number: int, times: int, *_: int) -> None:
        if (pid := self._balancer(number)) is not None:
            self.kernel.balancers.here[pid].deaf = 1 + times % 2

    def _admin_bans(self, number: int, which: int, *_: int) -> None:
        irqs, pid = sorted(self._at(number).interrupts()), self._balancer(number)
        if irqs and pid is not None:
            self.kernel.balancers.admin_bans(pid, irqs[which % len(irqs)])

    def _admin_frees(self, number: int, which: int, *_: int) -> None:
        irqs, pid = sorted(self._at(number).interrupts()), self._balancer(number)
        if irqs and pid is not None:
            self.kernel.balancers.admin_frees(pid, irqs[which % len(irqs)])

    # ---- who polls, and what is forwarded

    def _admin_sets_reception(self, number: int, which: int, index: int, value: int) -> None:
        nic, kinds = self._at(number), (*OF_NAPI, *((THREAD,) if number % 3 else ()))
        kind, at = kinds[which % len(kinds)], index % len(nic.rings)
        values = {TIMEOUT: (30_000, 20_000_000), DEFER: (5, 7), SUSPEND: (1_000_000, 2_000_000)}
        self._another_sets(nic, f"{kind}:{at}", str(values.get(kind, (0, 1))[value % 2]))

    def _another_sets(self, nic: WorldNic, name: str, value: str) -> None:
        """Unless it is just what atfnd has written: nobody can tell such a write."""
        there = name in nic.values and nic.table.up
        if there and not any(self.service.wrote(nic.name, s, value) for s in nic.same(name)):
            self._set_by_another(nic, name, value)

    def _admin_sets_budget(self, number: int, value: int, *_: int) -> None:
        name = BUDGET_SETTINGS[number % 2]
        self.kernel.host.admin_sets(name, str(10_000 + value))

    def _refuse_budget(self, number: int, code: int, *_: int) -> None:
        host = self.kernel.host
        (host.lies if number % 3 == 0 else host.refusals).append(REFUSED[code % len(REFUSED)])

    def _refuse_after_all(self, number: int, code: int, *_: int) -> None:
        """A write is done, and the kernel says that it is not."""
        self._at(number).lies.append(MAYBE_DONE[code % len(MAYBE_DONE)])

    def _shift(self, number: int, out: int, queue: int, pps: int) -> None:
        """Of what is forwarded from a queue of one NIC to another one: more, less, or its end."""
        count = len(self.nics)
        ingress = number % count
        egress = (ingress + 1 + out % (count - 1)) % count
        queues = len(self.nics[ingress].rings)
        self.kernel.forwards.shift(Stream(ingress, queue % queues, egress), PPS[pps % len(PPS)])

    def _admin_places(self, number: int, index: int, cpu: int, _: int) -> None:
        nic = self._at(number)
        if cpu % CPUS not in nic.offline:
            self._another_sets(nic, f"queue-cpu:{index % len(nic.rings)}", str(cpu % CPUS))

    def _refuse_count(self, _: int, times: int, *__: int) -> None:
        self.kernel.forwards.refusing = 1 + times % 2

    def _strict(self, nic: WorldNic) -> bool:
        """What is forwarded keeps its order when atfnd writes to this NIC: a rule places it, and
        asks for that. A queue that follows a thread, or goes home, is none of the rule's."""
        if self.service.supervisor is None or not self.service.armed(nic.name):
            return False
        rules, by = self.service.engine.memory.in_force.forwarding, nic.ours.by
        if isinstance(by, Action) and by.why.code is not Code.FORWARDING:
            self.world.seen["excused: its queue follows a thread, or goes home"] += 1
            return False
        placing = (rule for rule in rules if rule.placement is not PairPlacement.LEAVE)
        return any(rule.order is MoveMode.STRICT for rule in placing)

    def _close(self, number: int, *_: int) -> None:
        if len(self.sockets) > 1:
            self.machine.close(self.sockets.pop(number % len(self.sockets)))

    def _end(self, *_: int) -> None:
        self._tell_names()
        self.service.die()

    def _tell_names(self) -> None:
        """A daemon that ends has heard of all new names: nobody knows a NIC again that is renamed
        while none runs."""
        self._pass(max(self.world.now_ns, self._renamed_ns + 2 * NEWS_NS))

    def _tell_late_names(self) -> None:
        """Where no news is late, the daemon reads of a new name before it stops, and names it
        before the disk is full."""
        if self.plan.receives:
            self._tell_names()

    def _disk_full(self, *_: int) -> None:
        self._tell_late_names()
        self.disk.full = True

    def _disk_has_room(self, *_: int) -> None:
        self.disk.full = False

    def _disk_fails(self, count: int, *_: int) -> None:
        self.disk.failing = 1 + count % 4

    def _disk_slow(self, micros: int, *_: int) -> None:
        """Each write or sync takes up to 20 ms."""
        self.disk.slow_ns = micros * 20_000

    def _refuse(self, number: int, code: int, done: int, loses: int) -> None:
        codes = MAYBE_DONE if done % 3 == 0 else REFUSED
        refusal = Refusal(codes[code % len(codes)], done % 3 == 0, bool(loses % 2))
        self._at(number).table.refusals.append(refusal)

    def _refuse_setting(self, number: int, code: int, *_: int) -> None:
        self._at(number).refusals.append(REFUSED[code % len(REFUSED)])

    def _unread(self, number: int, code: int, count: int, _: int) -> None:
        codes = [errno.EIO, errno.EBUSY, errno.EAGAIN, errno.ETIMEDOUT, errno.ENETDOWN]
        self._at(number).table.unread.extend([codes[code % len(codes)]] * (1 + count % 5))

    def _unreadable(self, number: int, code: int, count: int, _: int) -> None:
        """Settings, RSS, queues, and what moves depend on."""
        codes = [errno.EIO, errno.EBUSY, errno.EAGAIN, errno.ETIMEDOUT, errno.ENETDOWN]
        codes += [errno.EINTR, errno.ENOMEM]
        self._at(number).unreadable.extend([codes[code % len(codes)]] * (1 + count % 5))

    def _drop(self, number: int, *_: int) -> None:
        self._at(number).table.drops += 1

    def _slow(self, number: int, micros: int, *_: int) -> None:
        self._at(number).table.slow_ns = micros * 1000 if micros % 2 else 0

    def _foreign_insert(self, number: int, which: int, queue: int, soon: int) -> None:
        self._soon(soon, self._insert_foreign, number, which, queue)

    def _insert_foreign(self, number: int, which: int, queue: int) -> None:
        nic = self._at(number)
        self._foreign += 1
        match = Match.of(_key(500 + self._foreign))
        if which % 4 == 0:
            match = self.sockets[which % len(self.sockets)].flow.match
        queue %= len(nic.rings)
        if nic.table.present and (match, queue) not in self.service.written:
            nic.admin_inserts(match, queue)

    def _foreign_delete(self, number: int, which: int, *_: int) -> None:
        nic = self._at(number)
        theirs = nic.foreign_entries()
        if theirs:
            nic.table.take(theirs[which % len(theirs)].location, FOREIGN)

    def _takes_ours(self, number: int, which: int, soon: int, _: int) -> None:
        self._soon(soon, self._take_ours, number, which)

    def _take_ours(self, number: int, which: int) -> None:
        nic = self._at(number)
        ours = nic.our_entries()
        if ours:
            nic.table.take(ours[which % len(ours)].location, FOREIGN)

    def _moves_ours(self, number: int, which: int, queue: int, soon: int) -> None:
        self._soon(soon, self._move_ours, number, which, queue)

    def _move_ours(self, number: int, which: int, queue: int) -> None:
        nic = self._at(number)
        ours, queue = nic.our_entries(), queue % len(nic.rings)
        entry = ours[which % len(ours)] if ours else None
        if entry is None or entry.match is None or (entry.match, queue) in self.service.written:
            return
        nic.admin_changes(entry.location, queue)

    def _foreign_set(self, number: int, which: int, index: int, value: int) -> None:
        nic = self._at(number)
        name, text = self._setting(nic, which, index, value)
        if name in nic.values:
            self._set_by_another(nic, name, text)

    def _set_by_another(self, nic: WorldNic, name: str, value: str) -> None:
        """If an irqbalance may have moved it, nobody can tell who did (docs/migrate.md)."""
        irq = {setting: irq for irq, setting in nic.interrupts().items()}.get(name)
        here = self.kernel.balancers.here.values()
        if irq is not None and value.isdigit() and any(irq not in each.listed for each in here):
            nic.balancer_sets(name, value)
        else:
            nic.admin_sets(name, value)

    def _flap(self, number: int, *_: int) -> None:
        nic = self._at(number)
        if nic.table.up:
            nic.flap()
            self._heard_reset(nic)

    def _reset(self, number: int, *_: int) -> None:
        nic = self._at(number)
        nic.reset()
        self._heard_reset(nic)

    def _heard_reset(self, nic: WorldNic) -> None:
        """A daemon hears of it by itself."""
        self.kernel.link_changed(nic)

    def _ntuple(self, number: int, on: int, *_: int) -> None:
        self._at(number).set_ntuple(bool(on % 2))

    def _unplug(self, number: int, *_: int) -> None:
        at = number % len(self.nics)
        nic = self.nics[at]
        nic.unplug()
        self._ifindex += 1
        new = self.nics[at] = self._nic(nic.kernel_name, self._ifindex, nic.driver.name)
        self._plugged(new)
        new.address, new.set_by_others = nic.address, nic.set_by_others
        for name, value in nic.untouched.items():
            new.lost[name] |= {value, *nic.lost[name]}
        for socket in self.sockets:
            if socket.nic is nic:
                socket.nic = new
                new.add(socket.flow)
        self.kernel.link_changed(new)

    def _rename(self, number: int, *_: int) -> None:
        nic = self._at(number)
        if self.service.alive and self.world.kill_after is None and not self.disk.full:
            self._ifindex += 1
            self._renamed_ns = self.world.now_ns
            new = f"ren{self._ifindex}"
            nic.rename(new)

    def _stall(self, number: int, queue: int, micros: int, soon: int) -> None:
        self._soon(soon, self._stall_ring, number, queue, micros)

    def _stall_ring(self, number: int, queue: int, micros: int) -> None:
        nic = self._at(number)
        nic.rings[queue % len(nic.rings)].stall(self.world.now_ns + micros * 10_000)

    def _lose(self, number: int, count: int, *_: int) -> None:
        for actuator in self._actuator(self._at(number)):
            actuator.losing = 1 + count % 3

    def _break_holds(self, number: int, soon: int, *_: int) -> None:
        self._soon(soon, self._break, number)

    def _break(self, number: int) -> None:
        for actuator in self._actuator(self._at(number)):
            actuator.break_holds()

    def _actuator(self, nic: WorldNic) -> list[WorldActuator]:
        return [actuator for at, actuator in self.kernel.actuator if at is nic]

    def _silence(self, number: int, *_: int) -> None:
        self.sockets[number % len(self.sockets)].flow.talk(False)

    def _talk(self, number: int, *_: int) -> None:
        self.sockets[number % len(self.sockets)].flow.talk(True)

    def _batch_begins(self, cpu: int, *_: int) -> None:
        self.machine.spend()
        self.machine.batch.add(cpu % CPUS)

    def _batch_ends(self, *_: int) -> None:
        self.machine.spend()
        self.machine.batch.clear()

    def _migrate(self, number: int, cpu: int, *_: int) -> None:
        task = self.sockets[number % len(self.sockets)].task
        self.machine.pin(task, frozenset({cpu % CPUS}))

    def _offline(self, cpu: int, *_: int) -> None:
        self.machine.offline(self.machine.cpus[cpu % CPUS])
        if self.machine.cpus[cpu % CPUS].online:
            return
        for nic in self.nics:
            nic.cpu_goes(cpu % CPUS)
        self.kernel.cpus_changed()

    def _at(self, number: int) -> WorldNic:
        return self.nics[number % len(self.nics)]

    def _soon(self, number: int, call: object, *arguments: int) -> None:
        """Most likely while the daemon does what it is ordered next."""
        assert callable(call)
        self.world.after(number * 1_000, call, *arguments)

    def _setting(self, nic: WorldNic, which: int, index: int, value: int) -> tuple[str, str]:
        """A setting, and a value that atfnd does not write, except that threads are switched
        off."""
        if nic.lends and value % 3 == 0:
            return f"threaded:{index % len(nic.rings)}" if nic.each else "threaded", "0"
        kind, at = SETTINGS[which % len(SETTINGS)], index % len(nic.rings)
        if kind == "rss":
            table = [(2 + value % 2 + entry) % len(nic.rings) for entry in range(ENTRIES)]
            return kind, " ".join(map(str, table))
        if kind == "priv":
            return f"priv:{nic.driver.atr_flag}", "on"
        if kind == "rps-flow-cnt":
            return f"{kind}:{at}", str(4096 + value)
        return f"{kind}:{at}", ("2-3", "1-3")[value % 2]

    # ---- what must hold

    def _ended(self, nic: WorldNic, ended: Ended) -> None:
        """A move that is called proven has reordered nothing, and will not. Nor has one under a
        hold of which atfnd knows no condition that broke."""
        world = self.world
        world.note(
            f"{ended.mechanism.value}: {ended.verdict.value}", f"move ended: {_brief(ended)}"
        )
        self.verdicts[ended.verdict.value] += 1
        in_order = ended.verdict is Verdict.PROVEN
        if ended.mechanism is Mechanism.HOLD:
            knows_no_reason = ended.why.code is Code.OVERTOOK
            in_order |= ended.verdict in (Verdict.QUIET, Verdict.NO_EFFECT) or knows_no_reason
        key = ended.action.key  # nobody comes by a port's filter when it goes
        in_order |= key is not None and key.listens and not ended.action.live
        if in_order:
            self._promised[id(ended.action)] = ended.action

    def _check(self) -> None:
        for nic in self.nics:
            if self.service.alive:
                self._named(nic, nic.our_entries())
        self._check_news()

    def _check_news(self) -> None:
        """What has changed since the last check."""
        world = self.world
        if not world.late.keys().isdisjoint(self._promised):
            late = next(world.late[each] for each in self._promised if each in world.late)
            world.broken("order", f"{late} reordered {late.late} packets")
        journal = self.service.journal if self.service.alive else None
        for nic in self.nics:
            if journal is not None:
                self._named(nic, nic.table.written)
                dropped = (match for name, match in journal.dropped if name == nic.name)
                self._named(nic, [each for match in dropped for each in nic.table.of(match)])
            nic.table.written.clear()
            if nic in self._paused:
                self._stays_paused(nic)
        if journal is not None:
            journal.dropped.clear()

    def _stays_paused(self, nic: WorldNic) -> None:
        """Nothing of ours comes back until an operator says so. A daemon that could not record the
        order forgets it when it ends."""
        if not self.service.paused(nic.name):
            self._paused.discard(nic)
        elif left := nic.our_entries():
            self.world.broken("pause", f"{len(left)} filters are in {nic.name}, which is paused")

    def _named(self, nic: WorldNic, entries: Iterable[Entry]) -> None:
        """Each of these that is in a NIC, and is ours, is in the journal."""
        journal, there = self.service.journal, nic.table.entries
        for entry in entries:
            if entry.owner != OURS or there.get(entry.location) is not entry:
                continue
            if entry.match is None or not journal.names(nic.name, entry.match):
                self.world.broken(
                    "journal", f"{entry.match} is in {nic.name}, and not in the journal"
                )

    def _undone(self, nic: WorldNic, done: Sequence[Restored] | None) -> None:
        """What a restore says. None: it did not come to an end."""
        if done is not None and all(each.done for each in done):
            self._as_found(nic)

    def _as_found(self, nic: WorldNic) -> None:
        if left := nic.our_entries():
            self.world.broken("restore", f"{len(left)} filters are left in {nic.name}")
        if irqs := self.kernel.balancers.left(nic.interrupts()):
            self.world.broken("restore", f"irqbalance still leaves {irqs} of {nic.name} alone")
        for name, value in nic.values.items():
            if value != nic.untouched[name]:
                was = nic.untouched[name]
                if value in nic.balanced[name]:  # atfnd may have relied on it, and put it back
                    self.world.seen["excused: as irqbalance set it"] += 1
                    continue
                if value in nic.lost[name]:
                    self.world.seen["excused: as found, before the link went"] += 1
                    continue
                if name.startswith("queue-cpu") and (nic.offline or value == nic.found[name]):
                    self.world.seen["excused: as found, before the link or a CPU went"] += 1
                    continue
                self.world.broken("restore", f"{nic.name} {name} is {value!r}, and was {was!r}")

    def _end_well(self) -> None:
        """Faults end; everything is restored."""
        world, daemon = self.world, self.service
        world.kill_after, self.disk.full = None, False
        self.disk.failing = self.disk.slow_ns = 0
        for cpu in self.machine.cpus:
            for task in cpu.tasks:
                task.stays_ns = None
        for nic in self.nics:
            nic.refusals.clear()
            nic.lies.clear()
            nic.unreadable.clear()
            nic.table.refusals.clear()
            nic.table.unread.clear()
            nic.table.slow_ns = nic.table.drops = 0
            nic.set_ntuple(True)
        self.kernel.host.refusals.clear()
        self.kernel.host.lies.clear()
        self.kernel.forwards.refusing = 0
        for balancer in self.kernel.balancers.here.values():
            balancer.silent_until_ns = min(balancer.silent_until_ns, world.now_ns)
            balancer.deaf, balancer.content = 0, True
        self._pass(world.now_ns + QUIET_NS)
        if not daemon.alive:
            daemon.start()
        self._check()
        self._pass(world.now_ns + 40 * QUIET_NS)
        if self.plan.forwards:
            self._pass(world.now_ns + COUNTED_NS)
        self._settled()
        if not daemon.alive:
            world.broken("crash", "it ends, and no fault is left")
        for what in daemon.leftovers():
            world.broken("leak", what)
        self._agree()
        self._received()
        self._budget_agrees()
        if self.plan.seed % EVERY == 0:
            self._holds_no_flow()
        daemon.die()
        if daemon.restore_offline() is None:
            world.broken("restore", "it ends with an error")
        self._check()
        with self.disk.aside():
            self._nothing_left()

    def _holds_no_flow(self) -> None:
        """Every socket is closed: nothing below the engine knows a flow any more."""
        machine = self.machine
        while self.sockets:
            machine.close(self.sockets.pop())
        for listener in [*machine.listeners.values()]:
            machine.unlisten(listener)
        self._pass(self.world.now_ns + GONE_NS)
        if not self.service.alive:
            self.world.broken("crash", "it ends, and no socket is left")
        if any(nic.our_entries() and not self.service.armed(nic.name) for nic in self.nics):
            return  # they stay until it is armed, and their entries with them
        if left := held(self.service.engine, FlowKey, BY_TIME):
            self.world.broken("leak", f"all sockets are closed, and flows are known: {left[:4]}")

    def _nothing_left(self) -> None:
        broken, daemon = self.world.broken, self.service
        if (how := self.kernel.host.not_as_found()) is not None:
            broken("restore", how)
        if left_of_host := {*daemon.undo_journal.held(HOST), *daemon.undo_journal.manual(HOST)}:
            broken("leak", f"the journal still names {', '.join(sorted(left_of_host))}")
        for nic in self.nics:
            self._as_found(nic)
            if left := daemon.journal.left.get(nic.name):
                broken("leak", f"the journal still names {len(left)} filters of {nic.name}")
            if (held := daemon.undo_journal.held(nic.name)) and not nic.offline:
                broken("leak", f"the journal still names {', '.join(held)} of {nic.name}")
            if held := daemon.undo_journal.held(BALANCER):
                broken("leak", f"the journal still names bans: {', '.join(held)}")
            if any(ring.quiesced_until_ns is not None for ring in nic.rings):
                broken("leak", f"a queue of {nic.name} is quiesced for ever")

    def _settled(self) -> None:
        """Nothing is written any more, and what is placed is counted."""
        world = self.world
        idle = self.service.threads() if self.service.alive else set()
        if (restless := self._restless()) is not None:
            # What was put off may be tried, and succeed, as late as this.
            self._pass(world.now_ns + AGAIN_NS)
            restless = self._restless()
        if restless is not None:
            world.broken("rest", f"{restless} in five seconds, long after the last change")
        if not self.service.alive:
            return
        over_ns = world.now_ns + LOAN_NS  # of a late move
        while any(nic.table.present and nic.borrows() for nic in self.nics):
            if world.now_ns > over_ns:
                world.broken("leak", "NICs still have the threads that were borrowed")
            self._pass(world.now_ns + CHECK_NS)
        if left := idle & self.service.threads():
            world.broken("leak", f"threads {left} are remembered, and use no flow")
        self._nothing_to_come()
        table = self.service.engine.memory.table
        for socket in self.sockets:
            flow, nic = table.get(socket.flow.key), socket.nic
            if not socket.flow.talks or not nic.table.up or not self.service.armed(nic.name):
                continue
            right = socket.rx_cpu() in self._wanted(socket)
            why = "placed" if right else "not placed: it is not in the table"
            if flow is not None and not right:
                codes = flow.why.shape()
                why = f"not placed: {flow.state.value}: {codes}"
            if not right and self._can_be_placed(socket):
                world.broken("placement", f"{socket.flow.key} is {why}")
            world.seen[why[:110]] += 1

    def _restless(self) -> str | None:
        """What is done in five seconds, if that is not (almost) nothing."""
        before, refused, put_off = self._writes(), self._refused(), self.verdicts["deferred"]
        of_napis, others = self._settings_written()
        self._pass(self.world.now_ns + 10 * QUIET_NS)
        if (more := self.verdicts["deferred"] - put_off) > PUT_OFF_MOST * len(self.sockets):
            return f"{more} moves were put off"
        if (more := self._refused() - refused) > REFUSED_MOST:
            return f"{more} writes were refused"
        tries = self.service.alive and self._placement().kind.value == "auto"  # trials move flows
        if (more := self._writes() - before) > LATE_MOST and self.service.alive and not tries:
            return f"{more} writes"
        napis_now, others_now = self._settings_written()
        more_of_napis, more = napis_now - of_napis, others_now - others
        if self.service.alive and (more_of_napis > LENT_MOST or more > LATE_MOST):
            return f"{more_of_napis} settings of NAPIs, and {more} others"
        return None

    def _nothing_to_come(self) -> None:
        """The world has come to rest: only the observer looks at sockets later."""
        pending = self.world.pending()
        del pending[WorldObserver._check.__qualname__], pending[Balancer.look.__qualname__]
        if pending.total() > len(self.sockets):
            self.world.broken("leak", f"after 20 quiet seconds these are to come: {pending}")
        live, memory = {each.cookie for each in self.sockets}, self.service.engine.memory
        if gone := {f.cookie for f in memory.table.overflowed.values()} - live:
            self.world.broken("leak", f"sockets {gone} are shown as turned away, and are closed")

    def _can_be_placed(self, socket: Socket) -> bool:
        """A queue is delivered on its thread's CPU, there is room for a filter, nobody else changed
        its filter or the table of its entry, its thread has stayed for as long as a move pays, and
        there is a way in the order of the policy: a live flow needs a queue that can be held on a
        NIC that shows when a filter takes effect, or, if not strict, a gap. Entries of an
        indirection table are moved without order only."""
        nic, memory, flow = socket.nic, self.service.engine.memory, socket.flow
        owned = {each.owner for each in memory.nics[nic.name].owned.values()}
        near = self._wanted(socket)
        if ("process", socket.task.thread.pid) not in owned:  # no queue of its process is elsewhere
            near = wanted(self._placement().kind.value, socket.task.cpu.index, CPUS)
        cpus = map(str, near & {*self._online()})
        budget = self.service.engine.views[nic.name].budget
        here = not {*cpus}.isdisjoint(nic.values[f"queue-cpu:{r.index}"] for r in nic.rings)
        here &= socket.rx_cpu() is not None  # an admin lets its queue run anywhere
        here &= not self._polled_where_it_was(socket)
        coming = len(memory.table.inserting(nic.name).keys() - {flow.key})
        room = len(nic.table.entries) + coming < nic.table.slots
        if budget is not None:
            room &= len(nic.our_entries()) + coming < budget
        spending = memory.nics[nic.name].spending
        room &= not (spending.promised or memory.table.promised(nic.name))  # to another flow
        refused = spending.found_full.values()  # a short while ago: it is asked again later
        room &= all(each.until_ns <= self.world.now_ns for each in refused)
        known = memory.table.get(flow.key)
        theirs = known is not None and known.state is FlowState.MANUAL
        theirs |= "left" in memory.in_force.by_name and flow.key.local_port == PORTS[1]
        order = memory.in_force.by_name["everything"].order
        view = self.service.engine.views[nic.name]
        by_filters = view.method is SteeringMethod.FILTERS
        if not by_filters:  # only `resume` takes it back, and no restart (docs/troubleshooting.md)
            theirs |= "rss" in self.service.undo_journal.manual(nic.name)
        room &= (
            not by_filters or no_filter(view, flow.key) is None
        )  # a write of its probe was refused
        held = (nic.threaded or self._lends(nic)) and not nic.driver.asynchronous
        held &= self._has_measured(nic)
        through = socket.flow.ring, nic.rings[nic.rss_queue_of(socket.flow)]
        held &= all(ring is None or ring.cpu is not None for ring in through)
        timer_ns = self._timer_of_others_ns(socket)
        held &= not timer_ns and rss_index(view, flow.key) is not None  # else all rings must drain
        gap = order is not Mode.STRICT and flow.interval_ns >= GAP_NS + timer_ns
        taught = self.service.taught(nic.name, flow.key)
        gap &= Mechanism.GAP not in demoted(taught)
        held &= not self._passes_through_its_cpu(socket) and not self._handed_on(nic)
        way = order is Mode.IMMEDIATE or (by_filters and (held or gap))
        way &= taught.rests_until_ns <= self.world.now_ns  # up to a minute after strikes
        entries = self._placement().kind.value in ("core", "auto")  # any other takes a filter
        by_entry = entries and known_entry(view, flow.key) is not None
        way &= by_filters or (by_entry and self._alone_in_its_entry(socket))
        paid = all(each.has_paid(socket) for each in self.machine.observers)
        rule = memory.in_force.by_name["everything"]
        way &= spares(flow.key, rule, socket.task.cpu.index, memory) is None
        return here and room and not theirs and way and paid

    def _has_measured(self, nic: WorldNic) -> bool:
        """How long a write takes is known, and what was put off while it was refused to measure
        that, as with a full disk, has been decided again (docs/internals/ordering.md)."""
        for each in self._actuator(nic):
            if (known_ns := each.measured_ns) is None:
                return False
            late_ns = 0 if each.unmeasured_ns is None else known_ns - each.unmeasured_ns + SOON_NS
            return known_ns + min(late_ns, AGAIN_NS) <= self.world.now_ns
        return False

    def _polled_where_it_was(self, socket: Socket) -> bool:
        """Another program moved the interrupt of its queue, or its CPU went offline, and a timer
        polls on the old CPU while there is traffic (docs/reception.md)."""
        ring, manual = socket.flow.ring, self.service.undo_journal.manual(socket.nic.name)
        if ring is None or not ring.defers or ring.rx_cpu == ring.cpu:
            return False
        return f"queue-cpu:{ring.index}" in manual or ring.index in socket.nic.scattered

    def _timer_of_others_ns(self, socket: Socket) -> int:
        """For so long may GRO keep packets of its queue, or of RSS's, because another program says
        so, and will not be asked or says too long: such a queue cannot be seen to drain. Where the
        hash is not known, that is any queue of RSS (docs/internals/ordering.md)."""
        nic, view = socket.nic, self.service.engine.views[socket.nic.name]
        by_rss = rss_rings(view, socket.flow.key) or range(len(nic.rings))
        through = {socket.flow.ring, *(nic.rings[queue] for queue in by_rss)}
        manual = self.service.undo_journal.manual(nic.name)
        names = [f"{TIMEOUT}:{ring.index}" for ring in through if ring is not None]
        timers = {name: int(nic.values[name]) for name in names}
        left = (ns for name, ns in timers.items() if name in manual or ns > LENT_MOST_NS)
        return max(left, default=0)

    def _lends(self, nic: WorldNic) -> bool:
        """Its queues may borrow threads, unless another program has changed who polls."""
        manual = by_any_name(self.service.undo_journal.manual(nic.name))
        return nic.lends and not any(each.startswith(BORROWED_THREAD) for each in manual)

    def _wanted(self, socket: Socket) -> frozenset[int]:
        """The CPUs on which its packets may arrive, by the policy that is in force."""
        kind, task = self._placement().kind.value, socket.task
        found = wanted(kind, task.cpu.index, CPUS)
        rule = self.service.engine.memory.in_force.by_name["everything"]
        if kind == "core" and rule.owner is Migrant.PROCESS:  # its queue follows its busiest thread
            found |= {each.cpu.index for each in self._mates(task)}
        return found

    def _mates(self, task: Task) -> list[Task]:
        """The threads of its process."""
        every = (each for cpu in self.machine.cpus for each in cpu.tasks)
        return [each for each in every if each.thread.pid == task.thread.pid]

    def _placement(self) -> Placement:
        return self.service.engine.memory.in_force.by_name["everything"].placement

    def _alone_in_its_entry(self, socket: Socket) -> bool:
        """No flow with a thread elsewhere comes by the same entry of the indirection table."""
        nic, key = socket.nic, socket.flow.key
        return all(
            nic.entry_of(each.flow.key) != nic.entry_of(key) or each.task is socket.task
            for each in self.sockets
            if each.nic is nic
        )

    def _handed_on(self, nic: WorldNic) -> bool:
        """An admin has set up RPS or RFS: that a queue is held says nothing about its packets."""
        steered = (
            f"{name}:{ring.index}" for ring in nic.rings for name in ("rps-cpus", "rps-flow-cnt")
        )
        return any(nic.values[each] not in ("", "0") for each in steered)

    def _passes_through_its_cpu(self, socket: Socket) -> bool:
        """Its filter is changed by deleting and adding it: meanwhile RSS gives it a queue that must
        be held while the old one drains, and drain while the new one is held. So it must be polled
        on a third CPU."""
        nic, ring = socket.nic, socket.flow.ring
        through = nic.rings[nic.rss_queue_of(socket.flow)]
        if ring is None or ring is through or through.cpu not in (ring.cpu, socket.task.cpu.index):
            return False
        ruled = any(each.match == socket.flow.match for each in nic.our_entries())
        return ruled and nic.driver.actuator in (Actuator.SHORT_GAP, Actuator.LONG_GAP)

    def _refused(self) -> int:
        kinds = [each for each in self.world.seen if each.startswith("write insert E")]
        return sum(self.world.seen[each] for each in kinds)

    def _writes(self) -> int:
        kinds = "write insert done", "write rewrite done", "write queue-cpu done"
        return sum(self.world.seen[each] for each in kinds)

    def _settings_written(self) -> tuple[int, int]:
        """Of NAPIs, which moves borrow, too; and all others."""
        of_napis = sum(self.world.seen[f"set {kind}"] for kind in (*OF_NAPI, THREAD))
        others = sum(self.world.seen[f"set {kind}"] for kind in ("xps-cpus", *BUDGET_SETTINGS))
        return of_napis, others

    def _agree(self) -> None:
        """After quiet, table, journal and NIC say the same. Nothing is known of what is gone."""
        engine = self.service.engine
        table, here = engine.memory.table, {nic.name for nic in self.nics}
        if left := {key for why in Writing for key in table.writing(why)} - self.service.moving():
            self.world.broken("leak", f"the first filter of {left} is waited for, and none comes")
        if gone := {flow.nic for flow in table} - here:
            self.world.broken("leak", f"the table has flows of {gone}")
        if gone := (engine.memory.nics.keys() | engine.views.keys()) - here:
            self.world.broken("leak", f"something is remembered of {gone}")
        for name in engine.memory.nics:
            asked = table.inserting(name).keys() | table.rewriting(name).keys()
            if left := asked - self.service.moving():
                self.world.broken("leak", f"filters of {name} are kept for {left}, for ever")
        for nic in self.nics:
            if not (nic.table.present and nic.table.up):
                continue
            self._left_alone(nic)
            there = {(each.match, each.queue) for each in nic.our_entries()}
            known = {(Match.of(f.key), f.target_queue) for f in table.steered(nic.name)}
            named = set(self.service.journal.left.get(nic.name, {}))
            if known - there:
                self.world.broken("agree", f"{nic.name} does not have {known - there}")
            if not self.service.armed(nic.name):
                continue  # what is left there stays until it is armed
            if there - known:
                self.world.broken("agree", f"the table does not know of {there - known}")
            if named != {match for match, _ in there}:
                self.world.broken("agree", f"the journal names {named ^ {m for m, _ in there}}")

    def _received(self) -> None:
        """After quiet, each queue is received as the policy says, or it is known why not."""
        service = self.service
        memory = service.engine.memory
        rule = memory.in_force.by_name["everything"]
        for nic in self.nics if self.plan.receives else ():
            if not (service.armed(nic.name) and nic.table.up):
                continue
            view, known = service.engine.views[nic.name], memory.nics[nic.name]
            manual = by_any_name(service.undo_journal.manual(nic.name))
            left = manual | known.settings.refused.keys()
            for ring in nic.rings:
                asked = [view.reception]
                on_its_cpus = rule.placement.kind.value == "dedicated" and ring.cpu in DEDICATED
                if rule.reception is not None and (ring.index in known.owned or on_its_cpus):
                    asked = [rule.reception, *(asked if not on_its_cpus else ())]
                names = [f"{kind}:{ring.index}" for kind in (TIMEOUT, DEFER, SUSPEND)]
                modes = [each.mode.value for each in asked]
                lacks = "dedicated" in modes and not (nic.each or ring.threaded)
                if lacks or not left.isdisjoint([*names, f"{THREAD}:{ring.index}"]):
                    self.world.seen["excused: its reception is left or refused"] += 1
                    continue
                values = tuple(nic.values[name] for name in names)
                before = tuple(nic.untouched[name] for name in names)
                if not any(values in VALUES.get(mode, {before}) for mode in modes):
                    each = zip(names, values, before, strict=True)
                    given_back = all(now in {was, *nic.lost[name]} for name, now, was in each)
                    if not (given_back and "leave" in modes):
                        how = f"{nic.name} queue {ring.index} has {values}, and had {before}"
                        how += f": {modes} is asked for"
                        self.world.broken("reception", how)
                    self.world.seen["excused: as found, before the link went"] += 1
                self.world.seen[f"received: {modes[0]}"] += 1
                if modes == ["dedicated"] and not ring.threaded:
                    self.world.broken("reception", f"no thread polls {nic.name} {ring.index}")

    def _budget_agrees(self) -> None:
        """After quiet, the budget is as the policy asks for, or as it was, or it is known why
        not."""
        service, host = self.service, self.kernel.host
        memory = service.engine.memory
        if not any(service.armed(nic.name) for nic in self.nics):
            return
        left = {*service.undo_journal.manual(HOST), *memory.host.refused}
        asked = memory.in_force.softirq_budget.values
        for name, value in host.values.items():
            if value != asked.get(name, host.untouched[name]) and name not in left:
                self.world.broken("budget", f"{name} is {value}, and {asked} is asked for")

    def _left_alone(self, nic: WorldNic) -> None:
        """Our settings have our values, and irqbalance leaves our interrupts alone."""
        if not self.service.armed(nic.name):
            return
        view, balancers = self.service.engine.views[nic.name], self.kernel.balancers
        for name, was in self.service.undo_journal.held(nic.name).items():
            if name in nic.values and not was.ours(nic.values[name]):
                self.world.broken("agree", f"{name} of {nic.name} is {nic.values[name]}: {was}")
        others = {*nic.set_by_others}
        if self.world.seen["disk full"]:  # that an undo was done could not be noted
            others |= {name for name, value in nic.values.items() if value == nic.untouched[name]}
        if false := self.service.undo_journal.manual(nic.name) - others:
            self.world.broken("agree", f"no other program set {sorted(false)} of {nic.name}")
        if view.method is SteeringMethod.NONE:
            return
        ours = {irq for irq, name in nic.interrupts().items() if name not in view.manual}
        for pid, there in balancers.here.items():
            left = balancers.freed_in(pid) | balancers.left_to_others()
            if moved := ours - there.listed - left:
                self.world.broken("agree", f"irqbalance {pid} may move {moved} of {nic.name}")


def run(plan: Plan, kind: type[Run] = Run) -> Run:
    """Run a plan. Failure: something did not hold."""
    folder = Path(mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    there = kind(plan, folder)
    try:
        there.go()
    except (Broken, *CRASHES) as found:
        story = [f"{(at - BEGIN_NS) / 1e6:10.3f} ms  {text}" for at, text in there.world.story]
        what, how = found.args if isinstance(found, Broken) else ("crash", repr(found))
        raise Failure(plan, what, how, story) from found
    finally:
        shutil.rmtree(folder)
    return there


def _key(number: int) -> FlowKey:
    return FlowKey(Protocol.TCP, b"\x0a\0\0\1", 443, b"\x0a\1" + number.to_bytes(2, "big"), 1000)


def _brief(ended: Ended) -> str:
    what = ended.action.key or ended.action.queue
    return f"{what} by {ended.mechanism.value}: {ended.verdict.value}, {ended.why}"
