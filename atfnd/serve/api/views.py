# SPDX-License-Identifier: GPL-2.0-or-later
"""Model values to the JSON objects of the API (docs/api.md). Pure; null is "not known"."""

from __future__ import annotations

import errno
import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from atfnd.model import (
    Cpu,
    CpuTime,
    Event,
    Filter,
    Finding,
    Flow,
    Habit,
    Level,
    Match,
    NapiTime,
    NicView,
    Node,
    Protocol,
    Reception,
    Restored,
    Rss,
    SocketFound,
    SocketState,
    endpoint,
)
from atfnd.model.rss_hash import flow_type_words, hashes_known
from atfnd.serve.api.moves import move_view

__all__ = [
    "View",
    "cpu_time_view",
    "cpu_view",
    "doctor_view",
    "event_view",
    "filter_text",
    "filter_view",
    "finding_view",
    "flow_view",
    "in_the_way",
    "match_text",
    "nic_view",
    "node_view",
    "placed",
    "queue_views",
    "restored_view",
    "socket_view",
    "why_unsteered",
]

View = dict[str, object]

_COUNTED = "packets", "bytes", "by_filter", "by_rss"  # of a queue
_IN_THE_WAY = Level.BLOCKER, Level.WARNING


def placed(flow: Flow) -> bool | None:
    """Its packets are observed where its policy's placement wants them; None: not observed yet, or
    wanted on no CPU. False for a flow that fell back, wherever its packets arrive."""
    if flow.rx_cpu is None or (flow.target_cpu is None and flow.fell_back is None):
        return None
    return flow.rx_cpu == flow.target_cpu and flow.fell_back is None


def flow_view(flow: Flow, now_ns: int, audited_ns: int = 0) -> View:
    """`now_ns` is CLOCK_MONOTONIC, as the flow's own times; `audited_ns`, of the last audit."""
    key, thread = flow.key, flow.thread
    return {
        "proto": Protocol(key.protocol).name.lower(),
        "local": endpoint(key.local, key.local_port),
        "remote": endpoint(key.remote, key.remote_port),
        "pid": thread.pid if thread else None,
        "tid": thread.tid if thread else None,
        "comm": thread.comm if thread else None,
        "app_cpu": flow.app_cpu,
        "rx_queue": flow.rx_queue,
        "rx_cpu": flow.rx_cpu,
        "target_queue": flow.target_queue,
        "target_cpu": flow.target_cpu,
        "placed": placed(flow),
        "fell_back": flow.fell_back,
        "habit": flow.habit.value,
        "home": None if flow.pinned is None else flow.home.value,
        "state": flow.state.value,
        "filter": flow.location,
        "policy": flow.rule_name,
        "why": flow.why,
        "nic": flow.nic,
        "cookie": flow.cookie,
        "bytes": flow.bytes,
        "read_ns": max(flow.used_ns, audited_ns),
        "age_s": _since(flow.used_ns, now_ns),
        "moved_s": _since(flow.moved_ns, now_ns) if flow.moved_ns else None,
        "move": None if flow.move is None else move_view(flow.move),
    }


def socket_view(found: SocketFound, left_by: str | None) -> View:
    """The fields of a flow, of one without an entry. `left_by` as in `Source`."""
    local = found.state is SocketState.LOCAL
    thread = found.thread
    return {
        "proto": Protocol(found.key.protocol).name.lower(),
        "local": endpoint(found.key.local, found.key.local_port),
        "remote": endpoint(found.key.remote, found.key.remote_port),
        "pid": thread.pid if thread else None,
        "tid": thread.tid if thread else None,
        "comm": thread.comm if thread else None,
        "app_cpu": found.app_cpu,
        "rx_queue": found.rx_queue,
        "rx_cpu": found.rx_cpu,
        "target_queue": found.rx_queue if local else None,
        "target_cpu": found.rx_cpu if local else None,
        "placed": True if local else None,
        "fell_back": None,
        "habit": Habit.UNKNOWN.value,
        "home": None,
        "state": found.state.value,
        "filter": None,
        "policy": "",
        "why": why_unsteered(found, left_by),
        "nic": found.nic,
        "cookie": found.cookie,
        "bytes": found.bytes,
        "read_ns": found.read_ns,
        "age_s": 0.0,
        "moved_s": None,
        "move": None,
    }


def why_unsteered(found: SocketFound, left_by: str | None) -> str:
    """Why a flow has no entry."""
    if found.state is SocketState.LOCAL:
        return "its packets arrive on the CPU its thread runs on"
    if left_by is not None:
        return f"policy {left_by} says leave"
    if found.app_cpu is None:
        return "its thread is not known: it has not used the socket since atfnd looks"
    if found.rx_cpu is None:
        return "the kernel does not say on which CPU its packets arrive"
    return "it carries too little, is too young, or its thread has not stayed on that CPU"


def _since(at_ns: int, now_ns: int) -> float:
    return round(max(now_ns - at_ns, 0) / 1e9, 3)


def _filter_counts(nic: NicView) -> View:
    return {
        "filters": len(nic.filters),
        "filters_ours": len(nic.owned),
        "filters_foreign": len(nic.filters) - len(nic.owned),
        "filters_max": nic.budget,
        "filter_slots": nic.caps.filter_slots,
    }


def nic_view(nic: NicView) -> View:
    caps = nic.caps
    return {
        "nic": nic.name,
        "netns": nic.netns,
        "ifindex": nic.ifindex,
        "armed": nic.armed,
        "paused": nic.paused,
        "up": nic.up,
        "driver": caps.driver,
        "method": nic.method.value,
        "method_why": nic.method_why,
        "queues": len(nic.queues),
        **_filter_counts(nic),
        "ring_size": nic.ring_size,
        "ring_drops": nic.stats.ring_drops,
        "caps": {
            "probed": caps.probed,
            "why": caps.why,
            "filters": caps.filters,
            "flow_types": _flow_types(caps.flow_types),
            "prefix_masks": caps.prefix_masks,
            "actuator": caps.actuator.value,
            "location_any": caps.location_any,
            "rss_table": caps.rss_table,
            "queue_cpu": caps.queue_cpu,
        },
        "device": asdict(nic.device),
        "conflicts": [asdict(each) for each in nic.conflicts],
        "settings": dict(nic.settings),
        "manual": sorted(nic.manual),
        "rss": None if nic.rss is None else _rss(nic, nic.rss),
    }


def _rss(nic: NicView, rss: Rss) -> View:
    known = [each._asdict() for each in hashes_known(nic)]
    hashes = [each | {"flows": flow_type_words(each["flows"])} for each in known]
    return {"key": rss.key.hex(":"), "table": list(rss.table), "hashes": hashes}


def _flow_types(types: frozenset[tuple[int, int]] | None) -> list[str] | None:
    """`tcp4`, `udp6`; None: not limited."""
    return None if types is None else sorted(f"{_protocol(p)}{f}" for f, p in types)


def doctor_view(nics: Iterable[NicView], findings: Sequence[Finding]) -> View:
    """What `atfnd doctor` and `atfnctl doctor` show."""
    return {
        "nics": [nic_view(nic) for nic in nics],
        "findings": [finding_view(finding) for finding in findings],
        "clear": not in_the_way(findings),
    }


def in_the_way(findings: Sequence[Finding]) -> list[Finding]:
    """Those that hinder steering, worst first."""
    found = [each for each in findings if each.level in _IN_THE_WAY]
    return sorted(found, key=lambda each: _IN_THE_WAY.index(each.level))


def finding_view(finding: Finding) -> View:
    return asdict(finding) | {"level": finding.level.value}


def queue_views(nic: NicView) -> Iterator[View]:
    """One object per receive queue."""
    filters = Counter(each.queue for each in nic.filters)
    by_index = {stats.index: stats for stats in nic.stats.queues}
    for queue in nic.queues:
        stats = by_index.get(queue.index)
        yield {
            "nic": nic.name,
            "queue": queue.index,
            "napi_id": queue.napi_id,
            "irq": queue.irq,
            "threaded": queue.threaded,
            "pid": queue.pid,
            "held_by": nic.held_by(queue),
            **_reception_view(nic, queue.index),
            "cpu": queue.cpu,
            "owner": nic.owners.get(queue.index),
            "allowed_cpus": nic.settings.get(f"queue-cpu:{queue.index}"),
            "filters": filters[queue.index],
            **{name: getattr(stats, name, None) for name in _COUNTED},
            "read_ns": nic.read_ns,
        }


def _reception_view(nic: NicView, queue: int) -> View:
    found = Reception.found(nic.settings, queue)
    wanted, rule_name = nic.reception_of(queue)
    return {
        "reception": None if found is None else {"mode": found.mode.value, **_times(found)},
        "reception_wanted": {
            "mode": wanted.mode.value, **_times(wanted), "policy": rule_name or None
        },
        "reception_why_not": nic.not_received.get(queue),
        "reception_auto": nic.piloted.get(queue),
    }  # fmt: skip


def _times(reception: Reception) -> View:
    return {
        "timeout_ns": reception.timeout_ns,
        "polls": reception.polls,
        "limit_ns": reception.limit_ns,
    }


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


def filter_view(nic: NicView, entry: Filter) -> View:
    """For a filter of another shape, only the text of its match is known."""
    view: View = {
        "nic": nic.name,
        "location": entry.location,
        "queue": entry.queue,
        "hits": entry.hits,
        "ours": entry.location in nic.owned,
        "match": filter_text(entry),
    }
    return view | _match_view(entry.match)


_MATCH_FIELDS = ("family", "proto", "src", "src_port", "dst", "dst_port")


def _match_view(match: Match | None) -> View:
    if match is None:
        return dict.fromkeys(_MATCH_FIELDS)
    return {
        "family": match.family,
        "proto": None if match.protocol is None else _protocol(match.protocol),
        "src": None if match.src is None else _side(match.src, match.src_prefix, None),
        "src_port": match.src_port,
        "dst": None if match.dst is None else _side(match.dst, match.dst_prefix, None),
        "dst_port": match.dst_port,
    }


def cpu_view(cpu: Cpu, nics: Sequence[NicView]) -> View:
    return {
        "cpu": cpu.index,
        "online": cpu.online,
        "node": cpu.node,
        "package": cpu.package,
        "core": cpu.core,
        "smt": list(cpu.smt),
        "llc": list(cpu.llc),
        "isolated": cpu.isolated,
        "nohz_full": cpu.nohz_full,
        "queues": [
            {"nic": nic.name, "queue": queue.index}
            for nic in nics
            for queue in nic.queues
            if queue.cpu == cpu.index
        ],
    }


def cpu_time_view(spent: CpuTime, threads: Sequence[NapiTime]) -> View:
    """Counters, and when they were read."""
    return {
        "read_ns": spent.at_ns,
        "cpus": [
            {"cpu": cpu, "busy_ns": busy_ns, "softirq_ns": spent.softirq_ns[cpu]}
            for cpu, busy_ns in sorted(spent.busy_ns.items())
        ],
        "napi_threads": [thread._asdict() for thread in threads],
    }


def node_view(node: Node, nics: Sequence[NicView]) -> View:
    return {
        "node": node.index,
        "cpus": list(node.cpus),
        "distances": {str(other): distance for other, distance in node.distances.items()},
        "nics": [nic.name for nic in nics if nic.device.node == node.index],
    }


def event_view(event: Event) -> View:
    return {
        "seq": event.seq,
        "at_ns": event.at_ns,
        "time": datetime.fromtimestamp(event.wall_s, UTC).isoformat(timespec="milliseconds"),
        "kind": event.kind,
        "nic": event.nic,
        "flow": str(event.flow) if event.flow else None,
        "what": event.what,
        "why": event.why,
        "policy": event.policy,
        "old": event.old,
        "new": event.new,
        "source": event.source,
        "errno": event.errno,
    }


def restored_view(restored: Sequence[Restored]) -> View:
    """`errno` is the kernel's name for its refusal."""
    rows = [
        {
            "what": each.what,
            "done": each.done,
            "errno": None if each.done else errno.errorcode.get(each.errno, str(each.errno)),
            "left": each.left,
        }
        for each in restored
    ]
    return {"restored": rows, "clear": all(each.done for each in restored)}
