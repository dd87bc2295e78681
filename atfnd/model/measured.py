# SPDX-License-Identifier: GPL-2.0-or-later
"""What a measurement of one NIC reads, and what it finds: armed compared with paused, or the
policy in force with another one, which stands in the place of the pause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from atfnd.model.reads import ReadBytes

__all__ = ["Compared", "Figure", "Measurement", "MeasuringStep", "SlotReading", "SocketRtt"]
__all__ += ["Effect"]


class Figure(Enum):
    """What is compared."""

    READ_LOCALITY = "read_locality"
    CPU_PER_PACKET = "cpu_per_packet"
    CPU_PER_BYTE = "cpu_per_byte"
    NETWORK_CPU = "network_cpu_per_packet"
    NETWORK_CPU_PER_BYTE = "network_cpu_per_byte"
    APPLICATION_CPU = "application_cpu_per_packet"
    APPLICATION_CPU_PER_BYTE = "application_cpu_per_byte"
    DAEMON_CPU = "daemon_cpu"
    INTERRUPTS = "interrupts_per_1000"
    HANDOFFS = "handoffs_per_1000"
    SWITCHES = "switches_per_1000"
    RTT = "rtt"
    THROUGHPUT = "throughput"


class Effect(Enum):
    """Of armed, compared with paused."""

    BETTER = "better"
    SAME = "no difference"
    WORSE = "worse"
    MIXED = "mixed"  # better in one figure, worse in another
    UNKNOWN = "not known"


class SocketRtt(NamedTuple):
    """A TCP socket as the kernel describes it."""

    acked: int  # bytes that the peer has; a SYN counts one
    rtt_us: int  # smoothed; only what is acknowledged gives a sample


@dataclass(frozen=True, slots=True)
class SlotReading:
    """Counters of one moment. None: the machine does not say."""

    at_ns: int
    busy_ns: Mapping[int, int] | None  # by CPU
    network_ns: Mapping[int, int] | None  # by CPU: its softirqs for the network
    napi_ns: Mapping[int, int] | None  # by tid: the NAPI threads of the NIC
    application_ns: Mapping[int, int] | None  # by tid: threads of the processes that use the NIC
    daemon_ns: int
    packets: int | None  # received and sent by the NIC, as the next
    bytes: int | None
    interrupts: int | None  # of the NIC's queues
    handoffs: int | None  # a CPU interrupted another to have it take packets over
    switches: int | None  # of threads, by all CPUs
    reads: ReadBytes | None
    sockets: Mapping[int, SocketRtt] | None  # by cookie: the NIC's TCP sockets


class MeasuringStep(NamedTuple):
    """How far a measurement is."""

    slot: int  # from 1
    slots: int
    armed: bool
    left_s: float


class Compared(NamedTuple):
    """One figure: means of the slots, and the difference armed less paused with its interval."""

    figure: Figure
    unit: str
    pairs: int  # of slots in which it is known
    paused: float | None  # None: not known in any pair
    armed: float | None
    difference: float | None
    low: float | None  # None: not known in two pairs
    high: float | None
    verdict: Effect | None  # None: the verdict on the whole does not rest on it


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a measurement found."""

    nic: str
    pairs: int  # that were measured
    lost: int  # slots that were left out
    confidence: float  # of each interval
    figures: tuple[Compared, ...]
    verdict: Effect
    sentence: str
    against: str | None = None  # the policy of the slots that are called paused
