# SPDX-License-Identifier: GPL-2.0-or-later
"""Ground truth from bench/extension/meter.bpf.c: were data processed on the CPU that read them, and
was a packet delivered on the CPU of its application's last call?

The first is read locality, in bytes, which is what benches report; reads of every TCP and UDP
socket of the namespace count. The second tells when delivery followed an application; RFS is
right in it by construction. Reads tracepoints net:netif_receive_skb and
sock:sock_{send,recv}_length; changes nothing. Shares of delivery are of segments: an skb merged
by GRO counts as the packets it was made of (gso_segs), because they are what came over the wire;
skbs are counted beside. Segments of flows whose application has made no call yet are `unknown`
and in no share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

from atfnd.bpf.layout import Layout, layout_of
from atfnd.model import FlowKey
from bench.extension import _bench

__all__ = ["FlowCount", "Meter", "Reading", "Totals"]

_MAPPED = bytes(10) + b"\xff\xff"
_ANY = bytes(16)


class Totals(NamedTuple):
    """Fields of `struct meter_totals`, summed over CPUs."""

    local_segments: int
    remote_segments: int
    unknown_segments: int
    skbs: int
    untracked: int
    local_bytes: int
    remote_bytes: int
    unseen_bytes: int

    @property
    def read_locality(self) -> float | None:
        """Share of bytes that were read on the CPU that had processed them, 0 to 1; None: none
        were read, or only from unconnected UDP sockets."""
        known = self.local_bytes + self.remote_bytes
        return self.local_bytes / known if known else None

    @property
    def locality(self) -> float | None:
        """Share of segments delivered on the CPU of the application's last call, 0 to 1; None
        without traffic."""
        known = self.local_segments + self.remote_segments
        return self.local_segments / known if known else None

    def since(self, earlier: Totals) -> Totals:
        """What was counted between two readings."""
        return Totals(*(now - was for now, was in zip(self, earlier, strict=True)))


class FlowCount(NamedTuple):
    """One flow of `struct meter_flow`."""

    local_segments: int
    remote_segments: int
    moves: int  # times its application's CPU changed
    app_cpu: int
    local_bytes: int = 0  # as of Totals
    remote_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """Cumulative counts since the meter was made."""

    totals: Totals
    flows: dict[FlowKey, FlowCount]

    def since(self, earlier: Reading) -> Reading:
        """What was counted between two readings; flows without a packet in between are left out."""
        flows = {}
        for key, now in self.flows.items():
            was = earlier.flows.get(key, FlowCount(0, 0, 0, 0))
            local, remote = now[0] - was[0], now[1] - was[1]
            if local or remote:
                moves, read = (
                    now.moves - was.moves,
                    (a - b for a, b in zip(now[4:], was[4:], strict=True)),
                )
                flows[key] = FlowCount(local, remote, moves, now.app_cpu, *read)
        return Reading(self.totals.since(earlier.totals), flows)


def _columns(shape: Layout, *names: str) -> tuple[int, ...]:
    return tuple(shape.fields.index(name) for name in names)


def _address(raw: bytes, like: bytes) -> bytes:
    """Undo the v4 mapping; "any" takes the family of the flow's other address."""
    if raw == _ANY:
        return bytes(4) if like.startswith(_MAPPED) else raw
    return raw[12:] if raw.startswith(_MAPPED) else raw


def _key(protocol: int, local: bytes, local_port: int, remote: bytes, remote_port: int) -> FlowKey:
    return FlowKey(
        protocol, _address(local, remote), local_port, _address(remote, local), remote_port
    )


def _layout(name: str) -> Layout:
    return layout_of(*_bench.layout("meter", name))


class Meter:
    """Counts what device `ifindex` of the namespace with inode `netns` delivers, while started."""

    def __init__(self, ifindex: int, netns: int, flows: int = 65536) -> None:
        self._meter = _bench.Meter(ifindex, netns, flows)
        self._totals = _layout("meter_totals")
        self._key = _layout("meter_key")
        self._flow = _layout("meter_flow")
        tuple_fields = ("protocol", "local", "local_port", "remote", "remote_port")
        self._key_columns = _columns(self._key, *tuple_fields)
        self._flow_columns = _columns(self._flow, *FlowCount._fields)

    def start(self) -> None:
        """Attach. OSError with the kernel's errno when it refuses."""
        self._meter.start()

    def stop(self) -> None:
        """Detach; what was counted can still be read."""
        self._meter.stop()

    def totals(self) -> Totals:
        """The sums so far: cheap, whatever the number of flows."""
        per_cpu = self._totals.codec.iter_unpack(self._meter.totals())
        summed = [sum(column) for column in zip(*per_cpu, strict=True)]
        return Totals(*(summed[i] for i in _columns(self._totals, *Totals._fields)))

    def read(self) -> Reading:
        """Everything counted so far."""
        keys, values = self._meter.flows()
        flows = {
            _key(*(key[i] for i in self._key_columns)): FlowCount(
                *(value[i] for i in self._flow_columns)
            )
            for key, value in zip(
                self._key.codec.iter_unpack(keys), self._flow.codec.iter_unpack(values), strict=True
            )
        }
        return Reading(self.totals(), flows)

    def close(self) -> None:
        """Detach and free; a second close does nothing."""
        self._meter.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
