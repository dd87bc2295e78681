# SPDX-License-Identifier: GPL-2.0-or-later
"""From kernel to events: the CPU on which each socket's application uses it.

Two observers, one interface: `bpf` (tracepoints, socket storage, iterators) and `sock_diag` (dumps
over netlink and /proc), for kernels without usable BPF.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from atfnd.model import (
    Clause,
    ReadBytes,
    SocketGone,
    SocketSeen,
    SocketUse,
    Survey,
    ThreadReads,
)

__all__ = ["Observation", "Observer", "Price", "Qualify"]

Observation = SocketSeen | SocketGone | ThreadReads


class Price(NamedTuple):
    """What a thread that is not pinned must bring before its flows follow it (docs/unpinned.md)."""

    move_ns: int  # CPU of a move
    # A packet takes longer by this, from another CPU of the LLC, another LLC, another node.
    packet_ns: tuple[int, int, int]
    trust: int  # the lowest price is a 2**trust-th of `move_ns`
    patience_ns: int  # a move was in vain if the thread left earlier than that after it
    doubt: int = 0  # doublings of the lowest price with which a thread begins on its first CPU


class Qualify(NamedTuple):
    """When a socket is worth an event; below that, the kernel does not report it."""

    dwell_ns: int
    min_bytes: int
    min_age_ns: int
    direction: bool = False  # say which end opened a connection, if it can be seen
    elsewhere: bool = False  # also one that is used where its packets arrive (see `expect`)
    clauses: tuple[Clause, ...] = ()  # in place of min_bytes and min_age_ns, where BPF observes
    price: Price | None = None  # of a move, where BPF observes; None: every stay is reported
    # The part that each CPU is in, for each size of part that divides the machine (`divided`).
    parts: tuple[Mapping[int, int], ...] = ()


class Observer(Protocol):
    """Watches the sockets of some network namespaces. Never blocks, never changes a socket."""

    @property
    def name(self) -> str:
        """`bpf` or `sock_diag`."""

    def fileno(self) -> int:
        """Readable when `drain` has something to return at once."""

    def poll_interval_s(self) -> float | None:
        """How often `drain` must be called even if nothing is readable; None: never."""

    def qualify(self, qualify: Qualify) -> None:
        """Report by these thresholds from now on."""

    def watch(self, netns: Sequence[str | None], napis: Mapping[int, str]) -> int:
        """Report only sockets in these namespaces that receive through one of these NAPIs (an
        observer that cannot see NAPIs reports them all); `napis` has the NIC of each. Replaces what
        was watched before. Returns how many NAPIs at the end found no room: their sockets go
        unseen."""

    def hands_on(self, nic: str, cpus: Mapping[int, int]) -> None:
        """The queues of `nic` that have RFS: by NAPI id, the CPU that polls each. Replaces what was
        said of this NIC before. What comes through them to a thread that is pinned is reported as
        arriving on that CPU, wherever RFS hands it to. An observer that does not see where packets
        arrive need not know."""

    def drain(self) -> list[Observation]:
        """What happened since the last call, oldest first; of a burst only a part, and then
        `fileno` stays readable."""

    def lost(self) -> int:
        """Events the kernel could not hand over, since start: each calls for a re-sync."""

    def inventory(self) -> list[SocketUse]:
        """Every connected socket in the watched namespaces (bootstrap, re-sync, adoption)."""

    def adopt(self, cpus: Mapping[int, int]) -> None:
        """Treat these sockets (cookie to CPU) as reported: they are in `audit`, and their end and
        their next change of CPU are observed. With `Qualify.elsewhere`, their next use is reported
        on any CPU: nobody has said yet where their packets belong."""

    def forget(self, cookies: Collection[int]) -> None:
        """Treat these sockets as never reported: used again, they are reported again."""

    def expect(self, cookie: int, cpu: int, at_ns: int) -> None:
        """The packets of this reported socket belong on `cpu`, not on the CPU it is used on: the
        answer to the report of `at_ns`, and no answer once the socket was reported from another
        CPU. Only where `Qualify.elsewhere`. An observer that does not see where they arrive need
        not know."""

    def learn(self, cgroup: int, path: str, groups: int) -> None:
        """The control group of this id (that of the hierarchy version 2) is at `path`, hence in
        these of the groups that `Qualify.clauses` name: bit i is group i. If this is no longer
        true, or is from another policy, it is dropped; flows of an unknown group are reported."""

    def audit(self) -> list[SocketUse]:
        """The sockets this observer has reported and that still exist."""

    def reads(self, nic: str) -> ReadBytes | None:
        """Bytes that applications read of what came in through this NIC, since it was first
        watched. None: it is not watched, or this observer cannot see it."""

    def begin_survey(self) -> bool:
        """Count reads by thread and CPUs from now on. False: this observer cannot see that."""

    def end_survey(self) -> Iterator[Callable[[], Survey]]:
        """Count no longer. Each step takes a part of what was counted, in about half a millisecond,
        and yields what decodes it, in whatever thread. OSError: the kernel refused."""

    def close(self) -> None: ...
