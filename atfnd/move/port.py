# SPDX-License-Identifier: GPL-2.0-or-later
"""What must be known of a NIC before a move of one of its flows can be judged. Pure values.

None means "the kernel did not say", which never counts as "no".
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import NamedTuple

from atfnd.model import Action, ActionKind, Actuator
from atfnd.model.nic import RFS_FLOWS
from atfnd.model.reception import DEFER, OF_NAPI, THREAD, TIMEOUT

__all__ = ["NO_THREAD", "Port", "Ring", "Stage", "given_back", "lent", "rfs_queue"]

NO_THREAD = "it has no NAPI thread"
NOT_READ = "what polls it has just changed"


class Stage(Enum):
    """A per-CPU queue between a NAPI's poll and the socket: delivered packets may wait there on the
    CPU that polled, while another CPU goes ahead."""

    RPS = "RPS hands packets to other CPUs"
    GRO_CELLS = "a tunnel collects packets per CPU (gro_cells)"
    NETIF_RX = "packets are queued again per CPU (netif_rx)"
    CPUMAP = "an XDP program redirects packets to CPUs (cpumap)"
    CRYPTO = "packets are decrypted asynchronously"


class Ring(NamedTuple):
    """One receive queue with its NAPI."""

    size: int | None  # descriptors
    rx_usecs: int | None  # the longest that moderation may delay an interrupt or a write-back
    gro_flush_timeout_ns: int | None
    busy_poll: bool | None  # an application may poll it (F5: GRO is then flushed later)
    service_pps: float | None = None  # packets polled per second of polling
    thread: bool | None = None  # one thread polls it, whose sleep proves that the ring is empty
    irq_ns: int = 0  # from descriptor to interrupt taken, at most; 0: it has none
    no_hold: str | None = None  # why its NAPI cannot be quiesced; None: it can
    cpu: int | None = None  # it is polled there
    loan: str | None = None  # the setting by which it may borrow a NAPI thread
    timeout: str | None = None  # that of `gro_flush_timeout_ns`, if it may be 0 for moves
    hands_on: bool = False  # RFS gives what it polls to the backlogs of other CPUs
    # A timer polls it again, and its interrupt stays off meanwhile (napi_defer_hard_irqs).
    defers: bool | None = False


class Port(NamedTuple):
    """One NIC. `rings` by queue number."""

    actuator: Actuator
    asynchronous: bool  # a rule takes effect after the write has returned, or not at all
    stages: frozenset[Stage] | None  # after NAPI; empty: delivery is inline up to the socket
    rings: tuple[Ring, ...]
    write_ns: int | None  # a rule write, as measured
    holds_max: int = 1  # queues that can be quiesced at the same time
    programming_ns: int = 0  # asynchronous: from the write's return to its effect, at most

    def after(self, action: Action) -> Port:
        """With a setting that was written: RFS of a queue, or what defers interrupts, of one queue
        or of all. What such a value comes to with others is not known until they are read again."""
        kind, _, number = (action.setting or "").partition(":")
        if action.kind is not ActionKind.SETTING or kind not in (RFS_FLOWS, *OF_NAPI, THREAD):
            return self
        rings = (
            _with(ring, kind, action.value or "0") if number in ("", str(index)) else ring
            for index, ring in enumerate(self.rings)
        )
        return self._replace(rings=tuple(rings))


def _with(ring: Ring, kind: str, value: str) -> Ring:
    off = value == "0"
    if kind == RFS_FLOWS:
        return ring._replace(hands_on=not off)
    if kind == TIMEOUT:
        return ring._replace(
            gro_flush_timeout_ns=int(value), defers=False if off else ring.defers or None
        )
    if kind == DEFER:
        return ring._replace(defers=False if off else None)
    if kind == THREAD:
        return ring._replace(thread=None, no_hold=NOT_READ, loan=None)
    return ring


def rfs_queue(action: Action) -> int | None:
    """The queue whose RFS this action switches. None: it switches none."""
    name, _, number = (action.setting or "").partition(":")
    switches = action.kind is ActionKind.SETTING and name == RFS_FLOWS
    return int(number) if switches and number.isdecimal() else None


def lent(port: Port, loan: Collection[str | None]) -> Port:
    """Its queues of this loan have NAPI threads, or keep nothing for a timer. One that is set
    already may still have to run out: until then no interrupt says what has come."""

    def with_loan(ring: Ring) -> Ring:
        if ring.loan is not None and ring.loan in loan:
            ring = ring._replace(thread=True, no_hold=None)
        if ring.timeout is not None and ring.timeout in loan:
            irq_ns = ring.irq_ns + (ring.gro_flush_timeout_ns or 0)
            ring = ring._replace(gro_flush_timeout_ns=0, defers=False, irq_ns=irq_ns)
        return ring

    return port._replace(rings=tuple(map(with_loan, port.rings)))


def given_back(port: Port, name: str, value: str) -> Port:
    """Its queues of this loan are as they were before it."""
    kind, _, number = name.partition(":")

    def without(index: int, ring: Ring) -> Ring:
        if name == ring.loan:
            return ring._replace(thread=False, no_hold=NO_THREAD)
        if kind == TIMEOUT and number in ("", str(index)):
            return ring._replace(gro_flush_timeout_ns=int(value), defers=None, timeout=name)
        return ring

    return port._replace(rings=tuple(without(i, ring) for i, ring in enumerate(port.rings)))
