# SPDX-License-Identifier: GPL-2.0-or-later
"""Every value that crosses rooms. No I/O, imports nothing of ours.

Addresses are packed bytes (4 or 16), ports are host-order integers, CPUs and queues are integers.
`None` means "the kernel did not say". Times are CLOCK_MONOTONIC nanoseconds.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Literal, NamedTuple

__all__ = [
    "Action",
    "ActionKind",
    "Caps",
    "Cpu",
    "Event",
    "Flow",
    "FlowKey",
    "FlowRule",
    "FlowState",
    "InterfaceRule",
    "Match",
    "Network",
    "NicStats",
    "NicView",
    "Outcome",
    "Placement",
    "Plan",
    "Policy",
    "Protocol",
    "Queue",
    "QueueStats",
    "Rss",
    "Rule",
    "SocketGone",
    "SocketSeen",
    "SocketUse",
    "Status",
    "Thread",
    "ThreadMoved",
    "Topology",
    "endpoint",
]


class Protocol(IntEnum):
    """IP protocol numbers of the transports we steer."""

    TCP = 6
    UDP = 17
    SCTP = 132


def endpoint(address: bytes, port: int) -> str:
    """`10.0.0.1:443`, `[2001:db8::1]:443`; `*` for an all-zero address or port 0."""
    text = "*" if not any(address) else str(ipaddress.ip_address(address))
    if ":" in text:
        text = f"[{text}]"
    return f"{text}:{port or '*'}"


class FlowKey(NamedTuple):
    """One flow in the receive direction: packets come from `remote` and go to `local`.

    An unconnected UDP socket's flow has an all-zero remote (and, bound to any, an all-zero local):
    it stands for everything that reaches that local port.
    """

    protocol: int
    local: bytes
    local_port: int
    remote: bytes
    remote_port: int

    @property
    def family(self) -> int:
        """4 or 6."""
        return 4 if len(self.local) == 4 else 6

    def __str__(self) -> str:
        name = Protocol(self.protocol).name.lower()
        local = endpoint(self.local, self.local_port)
        return f"{name} {local} <- {endpoint(self.remote, self.remote_port)}"


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


class Rule(NamedTuple):
    """One ntuple filter as the NIC holds it. A lower location wins."""

    location: int
    match: Match
    queue: int
    hits: int | None = None


@dataclass(frozen=True, slots=True)
class Queue:
    """One receive queue and the CPU its packets are delivered on."""

    index: int
    napi_id: int | None
    irq: int | None
    cpu: int | None  # None: not confined to one CPU
    threaded: bool | None
    pid: int | None  # the NAPI thread


@dataclass(frozen=True, slots=True)
class Rss:
    """Toeplitz key and indirection table (queue numbers)."""

    key: bytes
    table: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Caps:
    """What this NIC was shown to do, not what it claims."""

    driver: str
    rules: bool  # 5-tuple filters
    rule_slots: int | None
    prefix_masks: bool  # filters may leave fields open
    in_place: bool  # rewriting a location replaces the rule atomically (class K1)
    location_any: bool  # the NIC chooses locations itself
    rss_table: bool
    queue_cpu: bool  # we can set the CPU of a queue


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Packets a queue was given since the NIC came up, by what chose it."""

    index: int
    packets: int | None
    bytes: int | None
    by_rule: int | None
    by_rss: int | None


@dataclass(frozen=True, slots=True)
class NicStats:
    queues: tuple[QueueStats, ...]
    ring_drops: int | None


@dataclass(frozen=True, slots=True)
class Cpu:
    """One logical CPU and who shares what with it."""

    index: int
    online: bool
    node: int | None
    package: int | None
    core: int | None
    smt: tuple[int, ...]  # siblings including itself
    llc: tuple[int, ...]  # CPUs under the same last-level cache, including itself


@dataclass(frozen=True, slots=True)
class Topology:
    cpus: tuple[Cpu, ...]


@dataclass(frozen=True, slots=True)
class Thread:
    """The application thread a flow belongs to."""

    tid: int
    pid: int
    comm: str
    cgroup: int | None


class SocketSeen(NamedTuple):
    """A qualified socket has been used on `app_cpu` for a dwell, off where we last placed it."""

    at_ns: int
    cookie: int
    key: FlowKey
    app_cpu: int
    thread: Thread | None
    napi_id: int | None
    rx_cpu: int | None
    bytes: int
    off_since_ns: int  # first use on `app_cpu` of the streak that led to this
    born_ns: int | None  # established, or first seen


class SocketUse(NamedTuple):
    """Audit of one socket an observer reported before: still there, and how it is used."""

    cookie: int
    key: FlowKey
    app_cpu: int | None
    napi_id: int | None
    rx_cpu: int | None
    bytes: int


class SocketGone(NamedTuple):
    at_ns: int
    cookie: int


class ThreadMoved(NamedTuple):
    at_ns: int
    tid: int
    cpu: int


class FlowState(Enum):
    """Where a flow of the Flow-to-Core table stands."""

    WANTED = "wanted"  # a rule is wanted, none is there (see reason)
    OBSERVED = "observed"  # the interface is not armed: shown, not changed
    STEERED = "steered"  # a rule is in the NIC
    OVERFLOW = "overflow"  # table or NIC full: delivered by RSS
    MANUAL = "manual"  # somebody else changed its rule: let go until armed again


class Placement(Enum):
    """Where a flow's packets are to arrive."""

    LEAVE = "leave"  # wherever RSS delivers them
    CORE = "core"  # on the core its application's thread uses the socket on


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
    processes: tuple[str, ...] | None  # globs on the thread's name (Thread.comm)
    min_bytes: int
    min_age_ns: int
    placement: Placement
    dwell_ns: int  # use on another core must last this long before the flow follows
    t_delete_ns: int  # an entry idle for this long goes (paper, section 3.3)


@dataclass(frozen=True, slots=True)
class InterfaceRule:
    """One interface rule of the policy: may we write there, and how much of the filter table."""

    name: str  # glob
    source: str  # file:line
    armed: bool
    rules_max: int | None  # at most this many rules of ours
    rules_reserve: int  # slots left free for others


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator wants. The first rule that matches wins, in `interfaces` and in `flows`."""

    interfaces: tuple[InterfaceRule, ...]
    flows: tuple[FlowRule, ...]
    observer: Literal["auto", "bpf", "sock_diag"]
    table_max: int  # entries in the Flow-to-Core table
    hold_down_ns: int  # least time between two moves of one flow
    files: tuple[str, ...]  # what was read, in order


@dataclass(frozen=True, slots=True)
class Flow:
    """One entry of the Flow-to-Core table (paper, section 3.3)."""

    key: FlowKey
    cookie: int
    nic: str
    state: FlowState
    app_cpu: int
    thread: Thread | None
    target_queue: int | None
    target_cpu: int | None
    location: int | None
    rx_queue: int | None  # observed
    rx_cpu: int | None  # observed
    bytes: int
    used_ns: int  # last time it was seen in use
    moved_ns: int  # last time its rule changed, 0 for never
    policy: str
    why: str


class ActionKind(Enum):
    INSERT = "insert"
    REWRITE = "rewrite"
    DELETE = "delete"
    QUEUE_CPU = "queue-cpu"


@dataclass(frozen=True, slots=True)
class Action:
    """One change of one knob: what, old, new, why."""

    kind: ActionKind
    nic: str
    key: FlowKey | None
    location: int | None
    old: int | None  # queue (or CPU for QUEUE_CPU) before
    new: int | None  # and after
    why: str
    policy: str
    queue: int | None = None  # QUEUE_CPU: the queue moved


Plan = tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an action. `errno` 0 is applied; `left` says what is in place now."""

    action: Action
    at_ns: int
    errno: int
    location: int | None
    left: str


@dataclass(frozen=True, slots=True)
class NicView:
    """One NIC as the daemon last saw it."""

    name: str
    netns: str | None
    ifindex: int
    armed: bool
    budget: int | None  # at most so many rules of ours; None: the NIC's own limit
    up: bool
    caps: Caps
    queues: tuple[Queue, ...]
    rules: tuple[Rule, ...]
    owned: frozenset[int]  # locations of rules that are ours
    rss: Rss
    ring_size: int | None
    stats: NicStats


@dataclass(frozen=True, slots=True)
class Event:
    """One thing the daemon did or noticed, for `atfnctl events` and the log."""

    seq: int
    at_ns: int
    wall_s: float
    kind: str  # insert, rewrite, delete, refused, arm, disarm, resync, lost, link, adopt, ...
    nic: str | None
    flow: FlowKey | None
    what: str
    why: str
    policy: str | None


@dataclass(frozen=True, slots=True)
class Status:
    """The daemon in one look."""

    version: str
    pid: int
    since_wall_s: float
    observer: str  # bpf or sock_diag
    observer_why: str
    armed: tuple[str, ...]
    table_entries: int
    table_capacity: int
    t_delete_ns: int  # in force now, shorter as the table fills
    overflow: int  # flows that found the table or the NIC full, since start
    flows_by_state: tuple[tuple[str, int], ...]
    actions_applied: int
    actions_refused: int
    events_lost: int
    resyncs: int
    policy_files: tuple[str, ...]
    locality: float | None = None  # share of packets delivered on the application's core, 0-1
