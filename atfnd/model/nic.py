# SPDX-License-Identifier: GPL-2.0-or-later
"""A NIC: filters, queues, RSS, what it can do and what it counted."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from shlex import quote
from typing import Any, NamedTuple

from atfnd.model.flow import FlowKey
from atfnd.model.policy import ANY_CPU, Mode, ServeOn
from atfnd.model.reason import UNSAID, Code, Why
from atfnd.model.reception import Reception

__all__ = [
    "Actuator",
    "Caps",
    "Conflict",
    "Device",
    "Match",
    "NicFacts",
    "NicStats",
    "NicView",
    "SteeringMethod",
]
__all__ += ["LAB_LINK", "Filter", "FlowType", "HashSeen", "Queue", "QueueStats", "Rss"]
__all__ += ["Transform", "thread_switch", "thread_switches"]


LAB_LINK = "r0"  # a lab NIC's interface, in its namespace
FlowType = tuple[int, int]  # (family, protocol)


class Match(NamedTuple):
    """What a filter compares in a received packet; `None` is "any".

    `src`/`dst` are packed addresses with the host bits zero, with `*_prefix` bits significant.
    """

    family: int
    protocol: int | None
    src: bytes | None
    src_prefix: int
    dst: bytes | None
    dst_prefix: int
    src_port: int | None
    dst_port: int | None

    @classmethod
    def of(cls, key: FlowKey) -> Match:
        """The narrowest match for a flow: the exact 5-tuple, less what the key leaves open."""
        bits = len(key.local) * 8
        src = key.remote if any(key.remote) else None
        dst = key.local if any(key.local) else None
        return cls(
            key.family,
            key.protocol,
            src,
            bits if src else 0,
            dst,
            bits if dst else 0,
            key.remote_port or None,
            key.local_port or None,
        )

    def key(self) -> FlowKey:
        """The flow whose narrowest match this is. ValueError: it is no flow's."""
        anything = bytes(4 if self.family == 4 else 16)
        key = FlowKey(
            self.protocol or 0,
            self.dst or anything,
            self.dst_port or 0,
            self.src or anything,
            self.src_port or 0,
        )
        if Match.of(key) != self:
            raise ValueError(f"no flow's match: {self}")
        return key


class Filter(NamedTuple):
    """One ntuple filter as the NIC holds it. A lower location wins.

    A filter that none of ours could be (another match, a drop, an RSS context) has no `match`;
    `other` then says it whole, in the words of `ethtool -N`.
    """

    location: int
    match: Match | None
    queue: int | None  # None: it does not deliver to one queue
    hits: int | None = None
    other: str | None = None


RFS_TABLE = "rps-sock-flow-entries"  # a setting of the whole machine
RFS_FLOWS = "rps-flow-cnt"  # of a queue with `:N`
RSS_KEY = "rss-key"  # a setting: the key of the RSS hash, in hexadecimal digits


@dataclass(frozen=True, slots=True)
class Queue:
    """One receive queue and the CPU its packets are delivered on."""

    index: int
    napi_id: int | None
    irq: int | None
    cpu: int | None  # None: not confined to one CPU, or its interrupt is not known
    threaded: bool | None
    pid: int | None  # the NAPI thread
    borrowed: bool = False  # that thread is ours, for moves; `cpu` is that of the interrupt

    @property
    def loose(self) -> str:
        """Where a queue without a `cpu` is, in words."""
        known = self.irq is not None or self.pid is not None
        return "not confined to one CPU" if known else "served by an interrupt that is not known"


class Transform(Enum):
    """What a NIC makes of addresses and ports before it hashes them; named as ethtool's
    input_xfrm."""

    NONE = "none"
    XOR = "symmetric-xor"
    OR_XOR = "symmetric-or-xor"


@dataclass(frozen=True, slots=True)
class Rss:
    """Key and indirection table (queue numbers), and what the NIC says of its hash, a claim."""

    key: bytes  # empty: the NIC does not say
    table: tuple[int, ...]
    transforms: tuple[Transform, ...] = (Transform.NONE,)  # it may apply one of these
    named: bool = True  # its driver is known to hash like this; else flows that are seen must agree
    addresses_only: frozenset[FlowType] = frozenset()  # without ports
    other_fields: frozenset[FlowType] = frozenset()  # by some that we do not compute
    unsaid: frozenset[FlowType] = frozenset()  # which fields: taken for addresses and ports
    another: str | None = None  # why its hash cannot be computed


class HashSeen(NamedTuple):
    """Where flows of one type arrive by RSS, compared with what is computed."""

    fits: tuple[Transform, ...]  # no flow contradicts it; empty: the hash is not known
    agree: frozenset[int] = frozenset()  # hashes of flows that do not
    chance: float = 1.0  # that these agree with a wrong hash


class Actuator(Enum):
    """What changing the queue of a flow that has a rule does (docs/hardware.md)."""

    IN_PLACE = "K1"  # one atomic write
    SHORT_GAP = "K2"  # delete and add in one call: microseconds through RSS
    LONG_GAP = "K3"  # 100 microseconds or more through RSS; also for an unknown driver
    NONE = "K4"  # no 5-tuple filters


class SteeringMethod(Enum):
    """How the flows of a NIC are steered."""

    FILTERS = "filters"  # one a flow
    RSS = "rss"  # the flow's entry of the indirection table, shared by all that hash to it
    RFS = "rfs"  # the kernel hands each packet to the application's CPU, after the NIC's
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Caps:
    """What this NIC was shown to do, or, as long as `probed` is False, what is expected of it."""

    driver: str
    filters: bool  # 5-tuple filters
    filter_slots: int | None
    prefix_masks: bool  # filters may leave fields open
    location_any: bool  # the NIC chooses locations itself
    rss_table: bool  # its indirection table can be written
    queue_cpu: bool  # we can set the CPU of a queue
    actuator: Actuator = Actuator.LONG_GAP
    flow_types: frozenset[tuple[int, int]] | None = None  # (family, protocol); None: all of ours
    asynchronous: bool = False  # the NIC may drop a filter after it has accepted it
    probed: bool = True
    arfs: bool = False  # RFS may make the driver write filters of its own
    exact_wins: bool = False  # over one with open fields; else it is unknown which one wins
    why: str | None = None  # why there are no rules, or what limits them

    def takes(self, match: Match) -> bool:
        """A filter like this may be tried."""
        if not self.filters:
            return False
        if self.flow_types is not None and (match.family, match.protocol) not in self.flow_types:
            return False
        return self.prefix_masks or None not in match


@dataclass(frozen=True, slots=True)
class Device:
    """The device behind a NIC, as ethtool shows it; None where the driver does not say."""

    driver: str | None = None
    bus: str | None = None
    node: int | None = None  # NUMA node
    channels: int | None = None  # receive queues in use
    channels_max: int | None = None
    ring_size: int | None = None  # descriptors in one receive ring
    ring_max: int | None = None
    rx_usecs: int | None = None  # interrupt coalescing
    adaptive_rx: bool | None = None
    ntuple: bool | None = None  # the feature ntuple-filters is on
    rss_contexts: int | None = None  # besides the default one
    channels_apart: bool = False  # receive and transmit queues are counted apart
    ntuple_fixed: bool = False  # the feature cannot be switched

    def set_channels(self, nic: str, count: int) -> str:
        """The command for so many receive queues; `nic` as a shell reads it."""
        return f"ethtool -L {nic} {'rx' if self.channels_apart else 'combined'} {count}"


@dataclass(frozen=True, slots=True)
class Conflict:
    """Something on this NIC that works against steering, found and not changed."""

    what: str  # one line
    advice: str  # the command or the setting that ends it
    blocks: bool  # atfnd steers nothing here until it ends


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Packets a queue was given since the NIC came up, by what chose it."""

    index: int
    packets: int | None
    bytes: int | None
    by_filter: int | None
    by_rss: int | None


@dataclass(frozen=True, slots=True)
class NicStats:
    queues: tuple[QueueStats, ...]
    ring_drops: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NicFacts:
    """One NIC as last read from the kernel."""

    name: str
    netns: str | None
    ifindex: int
    up: bool
    caps: Caps
    queues: tuple[Queue, ...]
    rss: Rss | None  # None: one queue, or the driver does not say
    ring_size: int | None
    stats: NicStats
    device: Device = field(default_factory=Device)
    settings: Mapping[str, str] = field(default_factory=dict)  # of `nic.Nic.settings`, as last read
    conflicts: tuple[Conflict, ...] = ()

    def echo(self, value: str, file: str) -> str:
        """The command that writes a file of its interface in sysfs."""
        if self.netns is None:
            return f"echo {value} > /sys/class/net/{quote(self.name)}/{file}"
        there = self.netns.rpartition("/")[2]  # of a lab: no other is looked at elsewhere
        write = f"echo {value} > /sys/class/net/{LAB_LINK}/{file}"
        return f"ip netns exec {quote(there)} sh -c {quote(write)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NicView(NicFacts):
    """One NIC with what was decided about it, and, where it is shown, its filters."""

    armed: bool = False
    paused: bool = False  # by the operator: our filters are out, nothing is changed
    budget: int | None = None  # at most so many filters of ours; None: the NIC's own limit
    method: SteeringMethod = SteeringMethod.FILTERS
    method_why: Why = UNSAID
    manual: frozenset[str] = frozenset()  # settings that another program changed: left alone
    foreign: int | None = None  # filters of others, at the last look at them
    theirs: tuple[Filter, ...] = ()  # those
    their_matches: frozenset[Match | None] = frozenset()
    filters: tuple[Filter, ...] = ()
    owned: frozenset[int] = frozenset()  # locations of filters that are ours
    read_ns: int | None = None  # when `filters` and `stats` were
    owners: Mapping[int, str] = field(default_factory=dict)  # by queue: its owner
    homes: Mapping[int, int] = field(default_factory=dict)  # by queue: its CPU without an owner
    borrows: bool = True  # the policy lets its queues have NAPI threads for moves
    unowned_rfs: bool = False  # the policy asks for RFS on queues that nobody owns
    keeps_rfs: bool = False  # on such queues, RFS stays as it was found
    symmetric_hash: bool = False  # the policy asks for a hash that both directions of a flow share
    serve_on: ServeOn = ANY_CPU  # where its queues may be delivered
    poor_key: Why | None = None  # why the key for that was taken back
    hash_seen: Mapping[FlowType, HashSeen] = field(default_factory=dict)
    orders: frozenset[Mode] = frozenset(Mode)  # of the policy's rules that steer
    reception: Reception = field(default_factory=Reception)  # the policy's, of its queues
    # By queue of a flow rule: what it asks for, and its name.
    receptions: Mapping[int, tuple[Reception, str]] = field(default_factory=dict)
    not_received: Mapping[int, str] = field(default_factory=dict)  # by queue: why not as wanted
    piloted: Mapping[int, str] = field(default_factory=dict)  # by queue of `auto`: what it has, why

    @classmethod
    def of(cls, facts: NicFacts) -> NicView:
        """Nothing is decided yet."""
        return cls(**_fields(facts))

    def read(self, facts: NicFacts) -> NicView:
        """It has been read again."""
        return replace(self, **_fields(facts))

    def held_by(self, queue: Queue) -> str:
        """What quiesces this queue while flows move, in words."""
        if queue.threaded and not queue.borrowed:
            return "its NAPI thread"
        why_not = self.lends_not(queue)
        return "a borrowed NAPI thread" if why_not is None else f"nothing: {why_not}"

    def lends_not(self, queue: Queue) -> str | None:
        """Why this queue cannot borrow a NAPI thread. None: it can."""
        switch, why = thread_switch(queue, self.settings, self.manual, allowed=self.borrows)
        return why if switch is None else None

    def reception_of(self, queue: int) -> tuple[Reception, str]:
        """How the policy wants a queue to be received, and the name of the flow rule that says so;
        empty, if it is the interface's."""
        return self.receptions.get(queue, (self.reception, ""))

    def deferral(self, kind: str, queue: int) -> int | None:
        """The value of DEFER, TIMEOUT or SUSPEND of a queue. None: the kernel does not say."""
        value = self.settings.get(f"{kind}:{queue}", self.settings.get(kind))
        return None if value is None else int(value)

    def refuses_rfs(self) -> Why | None:
        """Why no queue may have RFS beside filters. None: they may."""
        if self.method is not SteeringMethod.FILTERS:
            return self.method_why
        if self.caps.arfs:
            return Code.RFS_FILTERS(self.caps.driver)
        if RFS_TABLE not in self.settings:
            return Code.NO_RFS()
        if RFS_TABLE in self.manual:
            return Code.RFS_TABLE_MANUAL(RFS_TABLE)
        return None

    def rfs_serves(self) -> bool:
        """Threads that wander are left to RFS, on queues that nobody owns: because the policy asks
        for it, or because it was set up here."""
        return self.wants_rfs() and self.refuses_rfs() is None

    def wants_rfs(self) -> bool:
        """The policy asks for RFS, or keeps what was set up, and it was."""
        return self.unowned_rfs or (self.keeps_rfs and self.has_rfs())

    def has_rfs(self) -> bool:
        """Both tables of RFS are there (net/core/dev.c, get_rps_cpu), of one queue at least."""
        counts = (self.settings.get(f"{RFS_FLOWS}:{each.index}", "0") for each in self.queues)
        return self.settings.get(RFS_TABLE, "0") != "0" and any(count != "0" for count in counts)

    def taken_from(self, cpu: int) -> Queue | None:
        """A queue that we have taken from this CPU, to which it goes back."""
        away = (
            queue for queue in self.queues if self.homes.get(queue.index, queue.cpu) != queue.cpu
        )
        return next((queue for queue in away if self.homes[queue.index] == cpu), None)


def thread_switches(queue: int) -> tuple[str, str]:
    """The settings that may give this queue's NAPI a thread: its own, and the device's."""
    return f"threaded:{queue}", "threaded"


def thread_switch(
    queue: Queue, settings: Mapping[str, str], manual: Set[str], *, allowed: bool
) -> tuple[str | None, str]:
    """The setting by which this queue may borrow a NAPI thread, which is kept on the CPU that its
    interrupt goes to; or None, and why not. `allowed`: the policy allows it."""
    switches = [each for each in thread_switches(queue.index) if each in settings]
    if queue.irq is None or not switches:
        return None, "it has no NAPI thread"
    if not allowed:
        return None, "it has no NAPI thread, and the policy says napi_threads: never"
    if queue.cpu is None:
        return None, "it has no NAPI thread, and its interrupt may go to several CPUs"
    if not manual.isdisjoint(switches):
        return None, "it has no NAPI thread, and another program switched that (atfnctl resume)"
    return switches[0], ""


def _fields(facts: NicFacts) -> dict[str, Any]:
    return {each.name: getattr(facts, each.name) for each in fields(NicFacts)}
