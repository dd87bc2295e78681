# SPDX-License-Identifier: GPL-2.0-or-later
"""A NIC in memory behind `atfnd.nic.Nic`: rings, filters, RSS, settings, faults to order.

Filters go through the real `nic.ethtool.filters.Ntuple`, and capabilities through the real
`nic.ethtool.probe`, over the driver of `driver`. Settings are names with texts. Beside each one
stands what it would be without atfnd (`untouched`): what an admin writes changes both, what atfnd
writes only the one.
"""

from __future__ import annotations

import errno
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast
from zlib import crc32

from atfnd.kernel.ethtool import rxfh
from atfnd.kernel.ethtool.rxnfc import Rxnfc
from atfnd.kernel.interface import Interface
from atfnd.kernel.system.cpulist import format_cpulist, parse_cpulist
from atfnd.model import (
    Caps,
    Conflict,
    Device,
    Filter,
    FlowKey,
    Match,
    NicStats,
    Queue,
    QueueStats,
    Rss,
    Transform,
)
from atfnd.model.reception import DEFER, OF_NAPI, OWN_THREAD, SOFTIRQ, THREAD, TIMEOUT
from atfnd.model.toeplitz import MICROSOFT_KEY, rss_entry, toeplitz
from atfnd.move.port import NO_THREAD, Port, Stage
from atfnd.move.port import Ring as RingFacts
from atfnd.nic import Claims
from atfnd.nic.driver_table import driver_of
from atfnd.nic.drivers import Driver, Hashing, Loses, Placing
from atfnd.nic.ethtool.filters import EthtoolNtuple
from atfnd.nic.ethtool.probe import expected, probed
from atfnd.nic.ethtool.rss import claimed
from tests.simulation.driver import FOREIGN, OURS, Door, Entry, Table, refused
from tests.simulation.wire import Flow, Ring
from tests.simulation.world import World

__all__ = ["HASHES", "WorldInterface", "WorldNic"]

DEFAULT = "default"
ENTRIES = 32  # of the indirection table
THREADED = "threaded"  # of the device
SETTING_NS = 5_000
SEGMENT_BYTES = 1448
IRQ_OF = 1000  # interrupt numbers from here on


def _of_a_link(name: str) -> bool:
    """It is not there while the link is down."""
    kind, _, index = name.partition(":")
    return kind in ("queue-cpu", THREAD, *OF_NAPI) or (kind == THREADED and index != "")


def _switches(ring: Ring) -> tuple[str, str]:
    """The two names of the switch of its own thread."""
    return f"{THREADED}:{ring.index}", f"{THREAD}:{ring.index}"


# What the NIC does, which may not be what ethtool says of it.
HASHES = (
    "as said", "or-xor", "says or-xor", "xor", "says xor", "its own", "key in reverse",
    "says a key of zeros", "says that it hashes the source only",
)  # fmt: skip


def _said(driver: Driver, hashing: str, key: bytes, table: tuple[int, ...]) -> Rss:
    transform = {"says xor": rxfh.XFRM_XOR, "says or-xor": rxfh.XFRM_OR_XOR}.get(hashing, 0)
    fields = dict.fromkeys(rxfh.FLOW_TYPES, rxfh.ADDRESSES | rxfh.PORTS)
    if hashing == "says that it hashes the source only":
        fields = dict.fromkeys(fields, 1 << 4)
    said = bytes(len(key)) if hashing == "says a key of zeros" else key
    return claimed(driver, rxfh.Rxfh(said, table, 1, transform), fields)


def _entry(hashing: str, key: bytes, flow: FlowKey) -> int | None:
    plain = Rss(key, tuple(range(ENTRIES)))
    if not flow.remote_port:
        return None
    if hashing.endswith("xor"):
        how = Transform.OR_XOR if hashing.endswith("or-xor") else Transform.XOR
        return rss_entry(plain, flow, how)
    if hashing == "its own":
        return crc32(repr(flow).encode()) % ENTRIES
    if hashing == "key in reverse":
        return rss_entry(replace(plain, key=key[::-1]), flow)
    if hashing == "says that it hashes the source only":
        return toeplitz(key, flow.remote) % ENTRIES
    return rss_entry(plain, flow)


class WorldInterface(NamedTuple):
    """Stands for `kernel.interface.Interface`."""

    nic: WorldNic

    def name(self) -> str:
        self.nic._asked()
        return self.nic.kernel_name

    def read(self, path: str) -> str | None:
        """No file of sysfs is there: the guard cannot judge."""
        self.nic._asked()
        return None


class WorldNic:
    """One NIC of the world, as atfnd opened it. `admin_*`, `flap`, `reset` and so on are what
    happens to it; they take no time."""

    netns: str | None = None

    def __init__(
        self,
        world: World,
        name: str,
        ifindex: int,
        driver: str,
        cpus: int,
        queues: int = 4,
        slots: int = 64,
        ring_size: int = 256,
        threaded: bool = True,
        lends: bool = False,
        each: bool = False,
        keeps: bool = False,
        hashing: str = "as said",
    ) -> None:
        """`lends`: queues that are polled from interrupts may have threads for a while; `each`: a
        thread of its own, also for good (6.17). `keeps`: what its NAPIs leave for later outlives
        the link (napi_config, 6.13). `hashing`: of `HASHES`; a driver that is known by name has the
        hash that it says."""
        self.world, self.name, self.ifindex, self.cpus = world, name, ifindex, cpus
        self.offline: frozenset[int] = frozenset()  # CPUs
        self.address = b"\x0a\0\0" + bytes([ifindex % 256])
        self.kernel_name = name  # its name now; `name` is that by which atfnd opened it
        self.driver, self._ring_size, self.threaded = driver_of(driver), ring_size, threaded
        self.key = MICROSOFT_KEY
        self.hashing = hashing if self.driver.hashing is not Hashing.AS_SAID else "as said"
        if self.driver.hashing is Hashing.TRANSFORM_AS_SAID and "says or-xor" not in hashing:
            self.hashing = "or-xor"
        self.rss_table = tuple(entry % queues for entry in range(ENTRIES))
        self._rss: Rss | None = None
        self._entries: dict[FlowKey, int | None] = {}
        self.rings: list[Ring] = []
        self._napi_ids = ifindex * 10_000
        for index in range(queues):
            self.rings.append(Ring(world, index, ring_size, threaded, self.rings))
        self.flows: dict[Match, Flow] = {}
        self.table = Table(world, self.driver, slots, lambda: len(self.rings), self._changed)
        self.ours = Door(self.table, OURS, name)
        self.theirs = Door(self.table, FOREIGN, name)
        self._ntuple = EthtoolNtuple(cast(Rxnfc, self.ours), self.driver)
        self._probed: Caps | None = None
        self.changed_link: Callable[[WorldNic], None] = lambda nic: None  # called for rtnetlink
        self.refusals: deque[int] = deque()  # errnos of setting writes to come
        self.lies: deque[int] = deque()  # of writes to come that are done, and refused
        self.changed: dict[str, str] = {}  # ours that another program wrote over
        self.scattered = set[int]()  # queues whose CPU went offline, ever
        self._before_others: dict[str, str] = {}  # what these would be otherwise
        self.set_by_others = set[str]()  # settings that something else than atfnd ever wrote
        self.is_ours: Callable[[str, str], bool] = lambda name, value: True  # as the journal says
        self.noticed: Callable[[str], bool] = lambda name: True  # that another program changed it
        self.counted: Callable[[], None] = lambda: None  # called before counts are read
        self.ways: Callable[[WorldNic], dict[Any, int]] = lambda nic: {}  # of what is forwarded
        self.went: Callable[[WorldNic, str, dict[Any, int]], None] = lambda nic, name, before: None
        self.others: Callable[[], None] = lambda: None  # called before another than atfnd acts
        self.lost: dict[str, set[str]] = defaultdict(set)  # what others had set before that went
        self._writing: str | None = None
        self._borrowed: set[str] = set()  # switches, by the process that has it open
        self.unreadable: deque[int] = deque()  # errnos of reads to come
        self.values: dict[str, str] = {}
        self.balanced: dict[str, set[str]] = defaultdict(set)  # where irqbalance has put them
        for index in range(queues):
            self.values |= {f"queue-cpu:{index}": str(index % cpus), f"rps-cpus:{index}": ""}
            self.values |= {f"rps-flow-cnt:{index}": "0", f"xps-cpus:{index}": ""}
            self.values |= {f"{kind}:{index}": "0" for kind in OF_NAPI}
        if self.driver.atr_flag is not None:
            self.values[f"priv:{self.driver.atr_flag}"] = "on"
        self.lends, self.each = lends and not threaded, each and not threaded
        self.keeps = keeps
        if self.each:
            for ring in self.rings:
                self.values |= dict.fromkeys(_switches(ring), "0")
        elif self.lends:
            self.values[THREADED] = "0"
        self._irq_cpus = {ring.index: str(ring.index % cpus) for ring in self.rings}
        self.untouched = dict(self.values)
        self.values["rss"] = self.untouched["rss"] = DEFAULT
        self._come_up()
        self.found = dict(self.values)

    # ---- `nic.Nic`

    @property
    def interface(self) -> Interface:
        return cast(Interface, WorldInterface(self))

    def open(self, name: str) -> None:
        """atfnd opens it by this name, and knows nothing of what it proved before."""
        self.name = self.ours.name = name
        self._probed = None
        self._borrowed.clear()

    def caps(self) -> Caps:
        self._asked()
        caps = self._probed or expected(self._ntuple)
        return replace(caps, rss_table=True, queue_cpu=True)

    def probe(self, claims: Claims | None = None) -> Caps:
        self._probed = probed(self._ntuple, claims)
        return self.caps()

    def device(self) -> Device:
        count = len(self.rings)
        return Device(
            self.driver.name, None, None, count, count, self._ring_size, self._ring_size, 0, False,
            self.table.ntuple,
        )  # fmt: skip

    def conflicts(self) -> tuple[Conflict, ...]:
        return ()

    def up(self) -> bool:
        self._asked()
        return self.table.up

    def queues(self) -> tuple[Queue, ...]:
        self._read()
        return tuple(self._queue(ring) for ring in self.rings)

    def _queue(self, ring: Ring) -> Queue:
        if not self.table.up:
            return Queue(ring.index, None, None, None, None, None)
        irq = None if self.threaded else self._irq(ring)
        return Queue(
            ring.index,
            ring.napi_id,
            irq,
            ring.cpu,
            ring.threaded,
            ring.pid if ring.threaded else None,
            borrowed=ring.threaded and not self._lasting(ring),
        )

    def _lasting(self, ring: Ring) -> bool:
        """Its thread is not borrowed by the process that has the NIC open."""
        return self.threaded or (self.each and _switches(ring)[0] not in self._borrowed)

    def _irq(self, ring: Ring) -> int:
        return IRQ_OF * self.ifindex + ring.index

    def borrows(self) -> bool:
        """A queue of it still has a thread that was borrowed."""
        return any(ring.threaded and not self._lasting(ring) for ring in self.rings)

    def interrupts(self) -> dict[int, str]:
        """Settings of those that irqbalance may move, by number."""
        if self.threaded or not self.table.up:
            return {}
        return {self._irq(ring): f"queue-cpu:{ring.index}" for ring in self.rings}

    def set_queue_cpu(self, index: int, cpu: int) -> None:
        if not 0 <= index < len(self.rings):
            raise refused(errno.EINVAL)
        self.write_setting(f"queue-cpu:{index}", str(cpu))

    def filters(self) -> list[Filter]:
        return self._ntuple.list()

    def filter(self, location: int) -> Filter | None:
        return self._ntuple.filter(location)

    def insert(self, match: Match, queue: int, location: int | None = None) -> int:
        return self._ntuple.insert(match, queue, location)

    def delete(self, location: int) -> None:
        self._ntuple.delete(location)

    def rss(self) -> Rss:
        self._read()
        return self.rss_now()

    def set_rss(self, rss: Rss) -> None:
        self.write_setting("rss", " ".join(map(str, rss.table)))

    def settings(self) -> Mapping[str, str]:
        self._read()
        values = self.values | dict.fromkeys(self._lent() if self.each else (), SOFTIRQ)
        if self.table.up:
            return values
        return {k: v for k, v in values.items() if not _of_a_link(k)}

    def _lent(self) -> list[str]:
        """By the other name: threads that are borrowed do not last."""
        pairs = (_switches(ring) for ring in self.rings)
        return [lasting for borrowed, lasting in pairs if borrowed in self._borrowed]

    def setting(self, name: str) -> str | None:
        self._asked()
        if _of_a_link(name) and name in self.values and not self.table.up:
            raise refused(errno.ENETDOWN)
        return self.settings().get(name)

    def write_setting(self, name: str, value: str) -> None:
        world = self.world
        world.operation(f"set {name}")
        self._asked()
        if name not in self.values:
            raise KeyError(name)
        if _of_a_link(name) and not self.table.up:
            raise refused(errno.ENETDOWN)
        if name in self.changed:
            world.broken("foreign setting", f"{self.name} {name} is {self.changed[name]!r} by "
                         f"another program, and atfnd sets it to {value!r}")  # fmt: skip
        if self.refusals:
            code = self.refusals.popleft()
            world.note(f"setting refused {errno.errorcode[code]}", f"{name} is refused")
            raise refused(code)
        self._writing = name
        try:
            self._write(name, value)
        finally:
            self._writing = None
        world.operation(f"{name} is set")

    def _write(self, name: str, value: str) -> None:
        world = self.world
        world.pass_ns(SETTING_NS // 2)
        self._asked()
        self._borrowed -= {*self.same(name)}
        if name.partition(":")[0] == THREADED and value == OWN_THREAD:
            self._borrowed.add(name)
        before = self.ways(self)
        self._set(name, value, OURS)
        self.went(self, name, before)
        world.note(f"set {name.partition(':')[0]}", f"atfnd sets {self.name} {name} to {value}")
        world.pass_ns(SETTING_NS // 2)
        if self.lies:
            code = self.lies.popleft()
            said = f"{self.name} {name} is {value}, and that is refused"
            world.note(f"setting done, and refused {errno.errorcode[code]}", said)
            raise refused(code)

    def ring_size(self) -> int | None:
        return self._ring_size

    def stats(self) -> NicStats:
        self.counted()
        queues = tuple(
            QueueStats(ring.index, ring.received, ring.received * SEGMENT_BYTES, None, None)
            for ring in self.rings
        )
        return NicStats(queues, sum(ring.dropped for ring in self.rings))

    def close(self) -> None:
        """Nothing is open."""

    # ---- what the moves have to know of it

    def port(
        self, write_ns: int | None, *, borrow: bool = False, manual: Set[str] = frozenset()
    ) -> Port:
        """As `observe.nics.move_port.read_port` would read it."""
        known = True
        try:
            self._read()
        except OSError as refusal:
            if refusal.errno == errno.ENODEV:
                raise
            known = False
        caps = self.caps()
        lends = borrow and self.lends and THREADED not in manual
        rings = tuple(
            RingFacts(
                self._ring_size, 0, self._late(TIMEOUT, ring) if known else None,
                False if known else None, 1e6,
                ring.threaded, 0 if self.threaded else 10_000,
                None if ring.threaded and ring.cpu is not None else NO_THREAD,
                ring.cpu, self._loan(ring, manual) if lends and ring.cpu is not None else None,
                None if f"{TIMEOUT}:{ring.index}" in manual else f"{TIMEOUT}:{ring.index}",
                defers=self._late(DEFER, ring) > 0 < self._late(TIMEOUT, ring) if known else None,
            )
            for ring in self.rings
        )  # fmt: skip
        spread = any(v for k, v in self.values.items() if k.startswith("rps-cpus") and v)
        stages = frozenset({Stage.RPS} if spread else ()) if known else None
        return Port(caps.actuator, caps.asynchronous, stages, rings, write_ns, 2, 5_000_000)

    def _loan(self, ring: Ring, manual: Set[str]) -> str | None:
        if not self.each:
            return THREADED
        switch = _switches(ring)[0]
        return None if switch in manual else switch

    def _late(self, kind: str, ring: Ring) -> int:
        return int(self.values[f"{kind}:{ring.index}"])

    # ---- packets

    def add(self, flow: Flow) -> None:
        """Its packets come in here."""
        self.flows[flow.match] = flow
        self._route(flow, "the application")

    def remove(self, flow: Flow) -> None:
        del self.flows[flow.match]
        flow.talk(False)

    def queue_of(self, flow: Flow) -> int:
        """As it is now, by filters and RSS."""
        found = self.table.queue_of(flow.match)
        return found[0] if found is not None else self.rss_queue_of(flow)

    def rss_now(self) -> Rss:
        if self._rss is None:
            self._rss = _said(self.driver, self.hashing, self.key, self.rss_table)
        return self._rss

    def rss_queue_of(self, flow: Flow) -> int:
        entry = self.entry_of(flow.key)
        return 0 if entry is None else self.rss_table[entry]

    def entry_of(self, key: FlowKey) -> int | None:
        """Of the indirection table, by the hash of a flow; the key of the hash never changes."""
        if key not in self._entries:
            self._entries[key] = _entry(self.hashing, self.key, key)
        return self._entries[key]

    def _route(self, flow: Flow, by: object) -> None:
        queue = self.queue_of(flow)
        flow.comes_to(self.rings[min(queue, len(self.rings) - 1)], by)

    def _changed(self, match: Match, by: object) -> None:
        flow = self.flows.get(match)
        if flow is not None:
            self._route(flow, by)
        elif None in match:
            for each in self.flows.values():
                self._route(each, by)

    # ---- what happens to it

    def admin_sets(self, name: str, value: str) -> None:
        """Another program writes a setting, which is not ours from now on."""
        if name not in self.changed:
            self._before_others[name] = self.untouched[name]
        self.untouched[name] = value
        self._set(name, value, FOREIGN)
        self.set_by_others |= {name, *self.same(name)}
        for each in self.same(name):
            self.untouched[each] = self.values[each]
            self.changed.pop(each, None)
            if not self.is_ours(each, self.values[each]) and each != self._writing:
                self.changed[each] = self.values[each]

    def same(self, name: str) -> tuple[str, ...]:
        """The settings that are the same switch."""
        kind, _, index = name.partition(":")
        if self.each and kind in (THREADED, THREAD):
            return _switches(self.rings[int(index)])
        return (name,)

    def balancer_sets(self, name: str, value: str) -> None:
        """irqbalance moves an interrupt. What atfnd had set may come again, until atfnd asks it to
        stop."""
        if int(value) in self.offline:
            return
        self.balanced[name].add(value)
        self.set_by_others.add(name)
        if self.values[name] == self.untouched[name]:
            self.untouched[name] = value
        self._set(name, value, FOREIGN)

    def balancer_may_move(self, listed: Set[int]) -> None:
        """An irqbalance that leaves these interrupts alone may move the others from now on. What
        another program has just set, it may have moved: nobody can tell (docs/migrate.md)."""
        for irq, name in self.interrupts().items():
            if irq not in listed and name in self.changed and not self.noticed(name):
                self.world.seen["excused: set by another program just before irqbalance"] += 1
                self.balanced[name].add(self.changed.pop(name))
                self.untouched[name] = self._before_others[name]

    def admin_inserts(self, match: Match, queue: int) -> int | None:
        """Another program inserts a filter. The location, or None: refused."""
        free = self.table.free()
        asked = self.world.random.choice(free) if free else None
        if self.driver.placing is Placing.DRIVER:
            asked = None
        elif asked is None:
            return None
        try:
            return self.theirs.insert(match, queue, asked)
        except OSError:
            return None

    def admin_changes(self, location: int, queue: int) -> None:
        """Another program gives the filter there another queue: it is not ours any more."""
        entry = self.table.entries[location]
        entry.queue, entry.owner, entry.by = queue, FOREIGN, FOREIGN
        if entry.match is not None and entry.effective:
            self._changed(entry.match, FOREIGN)

    def flap(self) -> None:
        """The link goes down and comes up: rings, NAPI ids and threads are new."""
        self.go_down()
        self.world.after(self.world.random.randrange(1_000_000, 50_000_000), self.go_up)

    def go_down(self) -> None:
        """What another program has just set may be something that the NIC lost by going down."""
        self.others()
        for name in [each for each in self.changed if not self.noticed(each)]:
            self.world.seen["excused: set by another program just before the link went"] += 1
            self.lost[name].add(self._before_others[name])  # to which a restore goes back
            del self.changed[name]
        self.table.up = False
        for ring in self.rings:
            ring.reset()
        if Loses.IFDOWN in self.driver.loses:
            self.table.clear("the NIC")
        self.changed_link(self)

    def go_up(self) -> None:
        if self.table.present and not self.table.up:
            self.others()
            self.table.up = True
            self._come_up()
            self.changed_link(self)

    def reset(self) -> None:
        """Rings are empty and, of some drivers, filters are gone."""
        for ring in self.rings:
            ring.reset()
        if Loses.RESET in self.driver.loses:
            self.table.clear("the NIC")

    def set_ntuple(self, on: bool) -> None:
        """ethtool -K ntuple."""
        self.table.ntuple = on
        if not on and Loses.NTUPLE_OFF in self.driver.loses:
            self.table.clear("the NIC")

    def unplug(self) -> None:
        """The device is gone: everything on it is."""
        self.others()
        self.table.present = self.table.up = False
        for ring in self.rings:
            ring.reset()
        self.table.clear("the NIC")
        for flow in self.flows.values():
            flow.lost()
        self.changed_link(self)

    def rename(self, name: str) -> None:
        """`ip link set NAME name NEW`."""
        self.kernel_name = name
        self.changed_link(self)

    def cpu_goes(self, cpu: int) -> None:
        """A CPU is taken offline, unless it is the last: the kernel moves what was confined to
        it."""
        if len(self.offline | {cpu}) == self.cpus:
            return
        self.offline |= {cpu}
        rest = format_cpulist(each for each in range(self.cpus) if each not in self.offline)
        for ring in self.rings:
            name = f"queue-cpu:{ring.index}"
            if self.values[name] == str(cpu):
                self._set(name, rest, FOREIGN)
                self.scattered.add(ring.index)
                self.set_by_others.add(name)  # a daemon that starts later cannot tell by whom
            if self.untouched[name] == str(cpu):
                self.untouched[name] = rest

    def _come_up(self) -> None:
        self.changed.clear()
        for ring in self.rings:
            self._napi_ids += 1
            ring.napi_id, ring.pid = self._napi_ids, 100_000 + self._napi_ids
            if self.threaded and self._napi_ids > self.ifindex * 10_000 + len(self.rings):
                self._kernel_sets(f"queue-cpu:{ring.index}", format_cpulist(range(self.cpus)))
            for kind in () if self.keeps else OF_NAPI:
                self._kernel_sets(f"{kind}:{ring.index}", "0")
            if self.each:
                self._borrowed.clear()
                self._kernel_sets(_switches(ring)[0], "0")
                self._kernel_sets(_switches(ring)[1], "0")
                if (was := self._irq_cpus[ring.index]) != self.values[f"queue-cpu:{ring.index}"]:
                    self._set(f"queue-cpu:{ring.index}", was, FOREIGN)
            self._confine(ring)

    def _kernel_sets(self, name: str, value: str) -> None:
        """By itself, for no program."""
        if name.partition(":")[0] in (*OF_NAPI, "queue-cpu") and self.untouched[name] != value:
            self.lost[name].add(self.untouched[name])
        self.untouched[name] = value
        self._set(name, value, FOREIGN)

    def _set(self, name: str, value: str, by: object) -> None:
        kind, _, index = name.partition(":")
        if by is not OURS:
            self.others()
        if kind == "queue-cpu":
            cpus = parse_cpulist(value)
            if not cpus - self.offline or max(cpus) >= self.cpus:
                raise refused(errno.EINVAL)
            value = format_cpulist(cpus)
        if name == THREADED:
            for ring in self.rings:
                ring.threaded = value == "1"
        elif kind in (THREADED, THREAD):
            ring = self.rings[int(index)]
            ring.threaded = value != SOFTIRQ
            for each in _switches(ring):
                self.values[each] = value
            if value != OWN_THREAD:
                self._borrowed.discard(_switches(ring)[0])
            self._confine(ring)
            if not ring.threaded:  # its interrupt goes where the thread was
                self._irq_cpus[ring.index] = self.values[f"queue-cpu:{ring.index}"]
        if name == "rss":
            table = tuple(each % len(self.rings) for each in range(ENTRIES))
            if value != DEFAULT:
                wanted = tuple(map(int, value.split()))
                if len(wanted) != ENTRIES or max(wanted) >= len(self.rings):
                    raise refused(errno.EINVAL)
                value, table = DEFAULT if wanted == table else value, wanted
            self.rss_table, self._rss = table, None
        self.values[name] = value
        if kind in OF_NAPI:
            ring = self.rings[int(index)]
            late_ns, polls = self._late(TIMEOUT, ring), self._late(DEFER, ring)
            ring.leaves(late_ns, polls, partial(self._come_elsewhere, ring))
        if kind == "queue-cpu":
            ring = self.rings[int(index)]
            if not (ring.threaded and self._lasting(ring)):
                self._irq_cpus[ring.index] = value
            self._confine(ring)
        if name == "rss":
            for flow in self.flows.values():
                self._route(flow, by)

    def _confine(self, ring: Ring) -> None:
        cpus, before = parse_cpulist(self.values[f"queue-cpu:{ring.index}"]), ring.rx_cpu
        ring.confine(next(iter(cpus)) if len(cpus) == 1 else None, self._has_traffic(ring))
        if ring.rx_cpu != before:
            self._come_elsewhere(ring)

    def _come_elsewhere(self, ring: Ring) -> None:
        for flow in self.flows.values():
            if flow.ring is ring and flow.rerouted is not None:
                flow.rerouted()

    def _has_traffic(self, ring: Ring) -> bool:
        return any(flow.ring is ring and flow.talks for flow in self.flows.values())

    def _read(self) -> None:
        """Settings, RSS, queues, or what moves depend on are read."""
        self._asked()
        if self.unreadable:
            code = self.unreadable.popleft()
            self.world.note(f"unreadable {errno.errorcode[code]}", f"{self.name} cannot be read")
            raise refused(code)

    def _asked(self) -> None:
        if not self.table.present:
            raise refused(errno.ENODEV)

    def foreign_entries(self) -> list[Entry]:
        return [entry for entry in self.table.entries.values() if entry.owner == FOREIGN]

    def our_entries(self) -> list[Entry]:
        return [entry for entry in self.table.entries.values() if entry.owner == OURS]
