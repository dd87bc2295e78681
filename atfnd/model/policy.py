# SPDX-License-Identifier: GPL-2.0-or-later
"""What the operator wants."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple

from atfnd.model.flow import Direction, FlowKey, Protocol
from atfnd.model.placement import Placement, PlacementKind
from atfnd.model.reception import Reception
from atfnd.model.softirq_budget import SoftirqBudget
from atfnd.model.topology import cpu_list

__all__ = [
    "ANY_CPU",
    "Clause",
    "Facts",
    "FlowRule",
    "ForwardingRule",
    "InterfaceRule",
    "Migrant",
    "Mode",
    "Network",
    "PairPlacement",
    "Policy",
    "Process",
    "ServeOn",
    "Share",
]


class Mode(Enum):
    """How a flow may be moved (a flow rule's `order`)."""

    STRICT = "strict"  # only moves that cannot reorder; else the flow stays where it is
    BOUNDED = "bounded"  # as strict, else in a gap of its traffic, verified afterwards
    IMMEDIATE = "immediate"  # one write, no wait (the paper's T_timer = 0)


class Migrant(Enum):
    """What migrates as one, and may own a queue that follows it (a flow rule's `owner`)."""

    THREAD = "thread"
    PROCESS = "process"  # by its busiest thread
    CGROUP = "cgroup"


class Network(NamedTuple):
    """An address prefix, host bits zero."""

    family: int  # 4 or 6
    address: bytes
    prefix: int


@dataclass(frozen=True, slots=True)
class FlowRule:
    """One flow rule of the policy. A flow must meet every field; `None` is "any"."""

    name: str
    source: str  # file:line
    protocols: frozenset[Protocol] | None
    ports: tuple[tuple[int, int], ...] | None  # ranges, both ends in; local or remote port
    local: tuple[Network, ...] | None
    remote: tuple[Network, ...] | None
    # Globs: one that begins with `!` excludes.
    processes: tuple[str, ...] | None  # on the thread's name (Thread.comm)
    min_bytes: int
    min_age_ns: int
    placement: Placement
    order: Mode
    owner: Migrant
    dwell_ns: int  # use on another core must last this long before the flow follows
    t_delete_ns: int  # an entry idle for this long goes (paper, section 3.3)
    commands: tuple[str, ...] | None = None  # on its process's command line
    users: frozenset[int] | None = None  # effective uids of its process
    cgroups: tuple[str, ...] | None = None  # on its process's control group, from the root
    units: tuple[str, ...] | None = None  # on the systemd units it is in
    interfaces: tuple[str, ...] | None = None  # on the NIC's name
    direction: Direction | None = None
    min_rate_bit_s: int = 0
    full_core: Literal["leave", "stay"] = "leave"  # its flows, while their CPU is full (CORE)
    filters_max: int | None = None  # at most this many of one NIC, of its flows and ports
    reception: Reception | None = None  # of queues that belong to them; None: the interface's


class ServeOn(NamedTuple):
    """The CPUs to which queues may be delivered: these, or all but these."""

    cpus: frozenset[int] = frozenset()
    others: bool = True

    def __str__(self) -> str:
        return f"{'!' if self.others else ''}{cpu_list(self.cpus)}"

    def allows(self, cpu: int) -> bool:
        return (cpu in self.cpus) != self.others

    def names(self, cpu: int) -> bool:
        """It is one of these, isolated or not."""
        return cpu in self.cpus and not self.others

    def among(self, cpus: Iterable[int]) -> frozenset[int]:
        return frozenset(filter(self.allows, cpus))


ANY_CPU = ServeOn()


@dataclass(frozen=True, slots=True)
class InterfaceRule:
    """One interface rule of the policy: may we write there, and how much of the filter table."""

    name: str  # globs, joined by `|`; one that begins with `!` excludes
    source: str  # file:line
    armed: bool
    filters_max: int | None  # at most this many filters of ours
    filters_reserve: int  # slots left free for others
    napi_threads: Literal["borrow", "never"] = "borrow"  # for moves of queues with interrupts
    guard: bool = True  # stop steering where it costs more than it saves
    unowned: Literal["keep", "rss", "rfs"] = "keep"  # what serves queues that nobody owns
    driver: str | None = None  # globs as those of `name`; None: any driver
    reception: Reception = field(default_factory=Reception)  # of queues without a rule's own
    rss_hash: Literal["keep", "symmetric"] = "keep"  # symmetric: one for both directions of a flow
    serve_on: ServeOn = ANY_CPU  # where its queues may be delivered

    def __str__(self) -> str:
        """Which interfaces it is for: `eth*`, `eth* (driver igb)`."""
        return self.name if self.driver is None else f"{self.name} (driver {self.driver})"


class PairPlacement(Enum):
    """What the channels that a forwarded packet comes in and goes out by share (a forwarding rule's
    `placement`). A mode is one of those in the second paper."""

    LEAVE = "leave"
    CORE = "core"  # channels of one number are served on one CPU
    LLC = "llc"  # as near as the load permits, under one last-level cache
    NODE = "node"  # the same, on one NUMA node
    MODE_0 = "mode 0"  # as CORE
    MODE_I = "mode I"  # what receives on one package, what sends on another
    MODE_II = "mode II"  # what sends on the package of the busiest that receives


@dataclass(frozen=True, slots=True)
class ForwardingRule:
    """One forwarding rule of the policy: for what is forwarded from one interface to another."""

    name: str
    source: str  # file:line
    ingress: tuple[str, ...]  # globs on the NIC's name; one that begins with `!` excludes
    egress: tuple[str, ...]
    one_way: bool  # else it is also for what is forwarded back
    placement: PairPlacement
    order: Mode  # STRICT: a TX queue changes only while no packet can be overtaken; or BOUNDED


class Share(NamedTuple):
    """The most for one user, or one control group: filters and queues in percent of an interface's,
    moves in percent of `moves_per_s`, decisions per second."""

    filters: int = 100
    queues: int = 100
    moves: int = 50
    decisions: int = 4000


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator wants. The first rule that matches wins, in `interfaces`, in `flows` and in
    `forwarding`."""

    interfaces: tuple[InterfaceRule, ...]
    flows: tuple[FlowRule, ...]
    observer: Literal["auto", "bpf", "sock_diag"]
    table_max: int  # entries in the Flow-to-Core table
    hold_down_ns: int  # least time between two moves of one flow
    files: tuple[str, ...]  # what was read, in order
    moves_per_s: int = 1000  # of one NIC, on average
    cpu_share: float = 0.01  # of one core, that the daemon itself may use
    on_stop: Literal["keep", "restore"] = "keep"  # filters and settings when the daemon stops
    user_share: Share = field(default_factory=Share)
    cgroup_share: Share = field(default_factory=Share)
    web_port: int | None = None  # of the page, on loopback; None: there is none
    forwarding: tuple[ForwardingRule, ...] = ()
    softirq_budget: SoftirqBudget = field(default_factory=SoftirqBudget)  # of the whole machine

    def elsewhere(self) -> bool:
        """Some flows should arrive on another CPU than that of their application."""
        usual = Placement.LEAVE, Placement.CORE
        return any(rule.placement not in usual for rule in self.flows)

    def by_load(self) -> bool:
        """How busy CPUs are decides where some flows, or channels, are served."""
        core = (rule for rule in self.flows if rule.placement is Placement.CORE)
        full = any(rule.full_core == "leave" for rule in core)
        return self.elsewhere() or full or self.places_forwarded()

    def places_forwarded(self) -> bool:
        """Some forwarding rule places channels."""
        return any(rule.placement is not PairPlacement.LEAVE for rule in self.forwarding)

    def dedicated(self) -> frozenset[int]:
        """The CPUs that some rule dedicates to its flows."""
        every = (rule.placement for rule in self.flows)
        named = [each.cpus for each in every if each.kind is PlacementKind.DEDICATED]
        return frozenset().union(*named)


class Clause(NamedTuple):
    """One of a list. Of the clauses that a flow meets, those before the first that `leaves` count:
    the flow is reported once it reaches the thresholds of the loosest of them. If none counts, it
    is never reported.

    What is not known of a flow (`direction`, `group`) is met where the clause does not leave.
    """

    leaves: bool
    protocols: frozenset[Protocol] = frozenset(Protocol)
    ports: tuple[int, int] = (0, 65535)  # both ends in; local or remote port
    local: Network | None = None
    remote: Network | None = None
    direction: Direction | None = None
    group: int | None = None  # its application is in this one of the groups of control groups
    min_bytes: int = 0
    min_age_ns: int = 0


class Process(NamedTuple):
    """What a process is, without the names of its threads."""

    command: str | None = None  # its arguments, joined by spaces; empty for a kernel thread
    uid: int | None = None  # effective
    cgroup: str | None = None  # path from the root of the hierarchy, as `/system.slice/a.service`


class Facts(NamedTuple):
    """What a flow rule may ask for."""

    key: FlowKey
    comm: str | None = None  # the name of the thread that uses it
    process: Process = Process()
    interface: str | None = None
    direction: Direction | None = None
    bytes: int = 0
    age_ns: int = 0
    rate_bit_s: int = 0
