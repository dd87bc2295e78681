# SPDX-License-Identifier: GPL-2.0-or-later
"""Interfaces, their queues and their filters as JSON objects (docs/api.md). Pure."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Literal, cast

from typing_extensions import TypedDict

from atfnd.model import (
    Actuator,
    Filter,
    Match,
    NicView,
    Protocol,
    QueueStats,
    Reception,
    ReceptionMode,
    Rss,
)
from atfnd.model.rss_hash import flow_type_words, hashes_known
from atfnd.serve.api.values import Count, MethodWord, shown, words

__all__ = ["FilterShown", "NicShown", "QueueShown", "filter_text", "filter_view", "match_text"]
__all__ += ["nic_view", "queue_views"]

_NO_MATCH = Match(0, None, None, 0, None, 0, None, None)
_FOUND = (
    ReceptionMode.INTERRUPT, ReceptionMode.DEFERRED, ReceptionMode.SUSPENDED, ReceptionMode.BUSY,
)  # fmt: skip


class CapsShown(TypedDict):
    """What an interface can do."""

    probed: bool
    """Probed; otherwise expected of the driver."""
    why: str | None
    filters: bool
    """It takes filters for one flow."""
    flow_types: list[str] | None
    """`tcp4`, `udp6`; null: not limited."""
    prefix_masks: bool
    actuator: Annotated[str, words(Actuator)]
    location_any: bool
    rss_table: bool
    queue_cpu: bool


class DeviceShown(TypedDict):
    """What ethtool and sysfs say of an interface."""

    driver: str | None
    bus: str | None
    node: int | None
    channels: int | None
    channels_max: int | None
    ring_size: int | None
    ring_max: int | None
    rx_usecs: int | None
    adaptive_rx: bool | None
    ntuple: bool | None
    rss_contexts: int | None
    channels_apart: bool
    """ethtool -L wants rx and tx."""
    ntuple_fixed: bool
    """It cannot be switched."""


class ConflictShown(TypedDict):
    """What works against steering."""

    what: str
    advice: str
    blocks: bool


class HashShown(TypedDict):
    """Whether it is known which entry a flow of this type selects."""

    flows: str
    """`IPv4 TCP`"""
    known: bool
    why: str


class RssShown(TypedDict):
    """Key and indirection table."""

    key: str
    table: list[int]
    hashes: list[HashShown]


class NicShown(TypedDict):
    """An interface, what it can do, and whether it is armed."""

    nic: str
    netns: str | None
    ifindex: int
    armed: bool
    paused: bool
    up: bool
    driver: str
    method: MethodWord
    """The steering method."""
    method_why: str
    queues: int
    filters: int
    filters_ours: int
    filters_foreign: int
    filters_max: int | None
    """The most filters of ours, by the policy."""
    filter_slots: int | None
    ring_size: int | None
    ring_drops: int | None
    caps: CapsShown
    device: DeviceShown
    conflicts: list[ConflictShown]
    settings: dict[str, str]
    manual: list[str]
    rss: RssShown | None


class ReceptionTimes(TypedDict):
    """When a queue is polled."""

    timeout_ns: Count
    """From one poll to the next."""
    polls: Count
    """Empty ones until the interrupt returns."""
    limit_ns: Count
    """For so long an epoll may keep the interrupt off."""


class ReceptionShown(ReceptionTimes):
    """What takes packets out of a queue's ring."""

    mode: Annotated[str, words(_FOUND)]


class ReceptionWantedShown(ReceptionTimes):
    """What the policy asks for."""

    mode: Annotated[str, words(ReceptionMode)]
    rule: str | None
    """The flow rule that asks for it; null, it is the interface's."""


class QueueShown(TypedDict):
    """A receive queue, its interrupt and its thread."""

    nic: str
    queue: Count
    napi_id: int | None
    irq: int | None
    threaded: bool | None
    pid: int | None
    """The pid of its NAPI thread."""
    held_by: str
    """What quiesces it while flows move in order: `its NAPI thread`, `a borrowed NAPI thread`, or
    `nothing`, with the reason."""
    reception: ReceptionShown | None
    """What takes packets out of its ring, whichever program set that up."""
    reception_wanted: ReceptionWantedShown
    reception_why_not: str | None
    """Why it is not received as the policy asks."""
    reception_auto: str | None
    """What trials have shown to be better, and why; null, the policy does not ask for `auto`."""
    cpu: int | None
    """Where it is delivered now."""
    owner: str | None
    """The thread, process or cgroup that it follows."""
    allowed_cpus: str | None
    filters: Count
    """Filters that lead to it."""
    packets: int | None
    bytes: int | None
    by_filter: int | None
    """Packets that a filter sent here."""
    by_rss: int | None
    read_ns: int | None
    """When these counters were read; CLOCK_MONOTONIC."""


class FilterShown(TypedDict):
    """A filter, ours or not. For one of another shape, only the text of its match is known."""

    nic: str
    location: Count
    queue: int | None
    hits: int | None
    ours: bool
    match: str
    family: Literal[4, 6] | None
    proto: str | None
    src: str | None
    src_port: int | None
    dst: str | None
    dst_port: int | None


def nic_view(nic: NicView) -> NicShown:
    """As it was last read."""
    caps, theirs = nic.caps, len(nic.filters) - len(nic.owned)
    return shown(
        NicShown,
        nic,
        nic=nic.name,
        driver=caps.driver,
        queues=len(nic.queues),
        filters=len(nic.filters),
        filters_ours=len(nic.owned),
        filters_foreign=theirs,
        filters_max=nic.budget,
        filter_slots=caps.filter_slots,
        ring_drops=nic.stats.ring_drops,
        caps=shown(CapsShown, caps, flow_types=_flow_types(caps.flow_types)),
        manual=sorted(nic.manual),
        rss=None if nic.rss is None else _rss(nic, nic.rss),
    )


def _rss(nic: NicView, rss: Rss) -> RssShown:
    hashes: list[HashShown] = [
        {"flows": flow_type_words(each.flows), "known": each.known, "why": each.why}
        for each in hashes_known(nic)
    ]
    return {"key": rss.key.hex(":"), "table": list(rss.table), "hashes": hashes}


def _flow_types(types: frozenset[tuple[int, int]] | None) -> list[str] | None:
    """`tcp4`, `udp6`; None: not limited."""
    return None if types is None else sorted(f"{_protocol(p)}{f}" for f, p in types)


def queue_views(nic: NicView) -> Iterator[QueueShown]:
    """One object per receive queue."""
    filters = Counter(each.queue for each in nic.filters)
    by_index = {stats.index: stats for stats in nic.stats.queues}
    for queue in nic.queues:
        index = queue.index
        stats = by_index.get(index) or QueueStats(index, None, None, None, None)
        found, (wanted, rule_name) = Reception.found(nic.settings, index), nic.reception_of(index)
        yield shown(
            QueueShown,
            queue,
            nic=nic.name,
            queue=index,
            held_by=nic.held_by(queue),
            reception=found,
            reception_wanted=shown(ReceptionWantedShown, wanted, rule=rule_name or None),
            reception_why_not=nic.not_received.get(index),
            reception_auto=nic.piloted.get(index),
            owner=nic.owners.get(index),
            allowed_cpus=nic.settings.get(f"queue-cpu:{index}"),
            filters=filters[index],
            packets=stats.packets,
            bytes=stats.bytes,
            by_filter=stats.by_filter,
            by_rss=stats.by_rss,
            read_ns=nic.read_ns,
        )


def match_text(match: Match) -> str:
    """`tcp from 10.9.0.1:40000 to 10.0.0.2:5201`, `ipv6 udp from * to *:53`."""
    words = ["ipv6"] if match.family == 6 else []
    words.append("any" if match.protocol is None else _protocol(match.protocol))
    source = _side(match.src, match.src_prefix, match.src_port)
    return " ".join(
        [*words, "from", source, "to", _side(match.dst, match.dst_prefix, match.dst_port)]
    )


def _protocol(number: int) -> str:
    return Protocol(number).name.lower() if number in set(Protocol) else str(number)


def _side(address: bytes | None, prefix: int, port: int | None) -> str:
    if address is None:
        return f"*:{port}" if port is not None else "*"
    text = str(ipaddress.ip_address(address))
    if prefix < len(address) * 8:
        text = f"{text}/{prefix}"
    if port is None:
        return text
    return f"[{text}]:{port}" if ":" in text else f"{text}:{port}"


def filter_text(entry: Filter) -> str:
    """What it matches; for a filter of another shape all that it does, as `ethtool -N` says it."""
    return entry.other or "?" if entry.match is None else match_text(entry.match)


def filter_view(nic: NicView, entry: Filter) -> FilterShown:
    """One filter of this interface."""
    match = entry.match or _NO_MATCH
    return {
        "nic": nic.name,
        "location": entry.location,
        "queue": entry.queue,
        "hits": entry.hits,
        "ours": entry.location in nic.owned,
        "match": filter_text(entry),
        "family": cast("Literal[4, 6]", match.family) if match.family else None,
        "proto": None if match.protocol is None else _protocol(match.protocol),
        "src": None if match.src is None else _side(match.src, match.src_prefix, None),
        "src_port": match.src_port,
        "dst": None if match.dst is None else _side(match.dst, match.dst_prefix, None),
        "dst_port": match.dst_port,
    }
