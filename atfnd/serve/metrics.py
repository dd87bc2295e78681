# SPDX-License-Identifier: GPL-2.0-or-later
"""`GET /metrics`: what the daemon counts, for Prometheus.

Names and units follow its conventions (https://prometheus.io/docs/practices/naming/). Locality of
an interface is what recording rules make of `atfnd_read_bytes_total` (monitoring/).
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections import Counter
from collections.abc import Iterable, Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from atfnd.model import (
    Counts,
    CpuUse,
    ForwardedTotals,
    GuardState,
    Lateness,
    NicCounts,
    NicGuard,
    ReadBytes,
)
from atfnd.serve import Source
from atfnd.serve.api.answers import TURN
from atfnd.serve.api.route import Route, Whole

__all__ = ["Metrics", "families"]

SCRAPED_S = 150.0  # a scrape a minute may fail once
PAIRS = Whole("pairs", 0, 1, 0, "1, to count what is forwarded for 150 s.")
KINDS = "text/plain", "application/openmetrics-text"
MOST_PAIRS = 64  # that have series


class Metrics:
    """Handler over one source, and the registry that asks it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collected(source))
        ProcessCollector(registry=self._registry)

    def routes(self) -> list[Route]:
        return [Route("GET", "/metrics", "metrics", self.metrics, str, (PAIRS,), KINDS)]

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        """Counters for Prometheus.

        The text format, or OpenMetrics if `Accept` asks for it; docs/monitoring.md lists the
        metrics. With `pairs` 1, what is forwarded is counted until the next scrape, at least."""
        if PAIRS.of(request):
            self._source.want_pairs(SCRAPED_S)
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        async with request.app[TURN]:
            began_s = time.perf_counter()
            body = encode(self._registry)
            await asyncio.sleep(time.perf_counter() - began_s)
        return web.Response(body=body, headers={"Content-Type": content_type})


class _Collected(Collector):
    def __init__(self, source: Source) -> None:
        self._source = source

    def collect(self) -> Iterable[Metric]:
        return families(self._source.counts())


def families(counts: Counts) -> Iterator[Metric]:
    """Every metric family of ours."""
    status = counts.status
    build = {"version": status.version, "observer": status.observer}
    yield InfoMetricFamily("atfnd_build", "Version and observer.", build)
    yield from _table(counts)
    yield from _changes(counts)
    yield from _nics(counts.nics)
    yield _counter(
        "atfnd_events_lost", "Observations that found no room in the ring.", status.events_lost
    )
    yield from _own_cpu(status.cpu)
    yield _counter("atfnd_resyncs", "Times every socket was read again.", status.resyncs)
    yield _counter(
        "atfnd_log_messages_lost", "Log messages the journal did not take.", counts.log_lost
    )
    yield from _guards(counts.status.guards)
    yield _lateness(counts.lateness)
    if counts.forwarded is not None:
        yield from _forwarded(counts.forwarded)


def _counter(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(name, about, value=value)


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(name, about, value=value)


def _table(counts: Counts) -> Iterator[Metric]:
    status = counts.status
    flows = GaugeMetricFamily(
        "atfnd_flows", "Flows of the Flow-to-Core table.", labels=("interface", "state", "rule")
    )
    for (nic, state, rule), count in sorted(counts.flows.items(), key=_order):
        flows.add_metric((nic, state.value, rule), count)
    yield flows
    capacity = status.table_capacity
    yield _gauge("atfnd_flow_table_capacity", "Flows the table may hold.", capacity)
    yield _gauge(
        "atfnd_flow_timeout_seconds",
        "T_delete in force: shorter as the table fills.",
        status.t_delete_ns / 1e9,
    )
    yield _counter(
        "atfnd_flow_table_overflows", "Flows that found the table full.", status.overflow
    )


def _order(item: tuple[tuple[str, object, str], int]) -> tuple[str, str, str]:
    nic, state, rule = item[0]
    return nic, str(state), rule


def _changes(counts: Counts) -> Iterator[Metric]:
    moves = CounterMetricFamily(
        "atfnd_moves", "Moves of flows and queues that ended.", labels=("mechanism", "verdict")
    )
    for mechanism, verdict, count in counts.status.moves:
        moves.add_metric((mechanism, verdict), count)
    yield moves
    yield _counter(
        "atfnd_order_violations",
        "Packets that others overtook in a move.",
        counts.status.late_packets,
    )
    applied = CounterMetricFamily(
        "atfnd_changes", "Changes of an interface, by kind.", labels=("interface", "kind")
    )
    refused = CounterMetricFamily(
        "atfnd_refusals",
        "Changes that the kernel refused.",
        labels=("interface", "kind", "errno"),
    )
    for (nic, kind, code), count in sorted(counts.changes.items()):
        if code:
            refused.add_metric((nic, kind, errno.errorcode.get(code, str(code))), count)
        else:
            applied.add_metric((nic, kind), count)
    yield applied
    yield refused


def _nics(nics: Iterable[NicCounts]) -> Iterator[Metric]:
    def gauge(name: str, about: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(name, about, labels=("interface", *labels))

    armed = gauge("atfnd_interface_armed", "1 where atfnd may change the interface.")
    paused = gauge("atfnd_interface_paused", "1 where an operator or the guard paused it.")
    up = gauge("atfnd_interface_up", "1 where the link is up.")
    rules = gauge("atfnd_filters", "Filters in the interface, by whose they are.", "owner")
    most = gauge("atfnd_filters_max", "Filters that may be atfnd's: policy, and room in the table.")
    slots = gauge("atfnd_filter_slots", "Size of the filter table.")
    read = CounterMetricFamily(
        "atfnd_read_bytes",
        "Bytes that applications read, by whether the kernel had processed them on the reading "
        "CPU, and whether the interface was armed.",
        labels=("interface", "local", "armed"),
    )
    for nic in nics:
        of = (nic.name,)
        armed.add_metric(of, nic.armed)
        paused.add_metric(of, nic.paused)
        up.add_metric(of, nic.up)
        rules.add_metric((nic.name, "atfnd"), nic.filters)
        for family, owner, value in (
            (rules, ("others",), nic.foreign),
            (most, (), nic.filters_max),
            (slots, (), nic.filter_slots),
        ):
            if value is not None:
                family.add_metric((nic.name, *owner), value)
        if nic.reads is None:
            continue
        for when, count in (("true", nic.reads.armed), ("false", nic.reads.unarmed)):
            for where, value in _by_locality(count):
                read.add_metric((nic.name, where, when), value)
    yield from (armed, paused, up, rules, most, slots, read)


def _guards(guards: Iterable[NicGuard]) -> Iterator[Metric]:
    stopped = GaugeMetricFamily(
        "atfnd_guard_stopped",
        "1 where the guard stopped steering, because it cost more than it saved.",
        labels=("interface",),
    )
    stops = CounterMetricFamily(
        "atfnd_guard_stops", "How often the guard stopped steering.", labels=("interface",)
    )
    pairs = CounterMetricFamily(
        "atfnd_guard_pairs",
        "Pairs of slots with steering and without it, by whether they could be compared.",
        labels=("interface", "compared"),
    )
    change = GaugeMetricFamily(
        "atfnd_guard_cpu_per_byte_change_ratio",
        "CPU per byte steered less unsteered, as a share of that, of the last pairs.",
        labels=("interface",),
    )
    for each in guards:
        of = (each.nic,)
        stopped.add_metric(of, each.state is GuardState.STOPPED)
        stops.add_metric(of, each.stops)
        pairs.add_metric((each.nic, "true"), each.pairs)
        pairs.add_metric((each.nic, "false"), each.lost)
        if each.change is not None:
            change.add_metric(of, each.change)
    yield from (stopped, stops, pairs, change)


def _forwarded(totals: ForwardedTotals) -> Iterator[Metric]:
    packets = CounterMetricFamily(
        "atfnd_forwarded_packets",
        "Forwarded packets of the pairs with most.",
        labels=("ingress", "egress", "tx_queue", "cpu"),
    )
    counts = Counter[tuple[str, ...]]()  # interfaces of two namespaces may have one name
    for each in totals.pairs[:MOST_PAIRS]:
        counts[each.ingress, each.egress, str(each.tx_queue), str(each.cpu)] += each.packets
    for of, count in counts.items():
        packets.add_metric(of, count)
    distances = CounterMetricFamily(
        "atfnd_forwarded_distance_packets",
        "All forwarded packets, by what the CPU that sent them shares with that of the TX queue.",
        labels=("distance",),
    )
    for distance, count in totals.by_distance.items():
        distances.add_metric(("unknown" if distance is None else distance.value,), count)
    left_out = max(0, len(totals.pairs) - MOST_PAIRS)
    yield from (packets, distances)
    yield _gauge("atfnd_forwarded_pairs_left_out", "Pairs that have no series.", left_out)
    about = "Forwarded packets that found no room to be counted."
    yield _counter("atfnd_forwarded_missed_packets", about, totals.missed)


def _own_cpu(cpu: CpuUse | None) -> Iterator[Metric]:
    if cpu is None:
        return
    yield _gauge("atfnd_cpu_allowed_ratio", "CPU time it may use, of one core.", cpu.allowed)
    yield _gauge("atfnd_cpu_used_ratio", "The same, used in the last ten seconds.", cpu.used)
    about = "Flows whose moves wait for CPU time of atfnd itself."
    yield _gauge("atfnd_cpu_waiting_flows", about, cpu.waiting)


def _by_locality(count: ReadBytes) -> tuple[tuple[str, int], ...]:
    return ("true", count.local), ("false", count.remote), ("unseen", count.unseen)


def _lateness(lateness: Lateness) -> Metric:
    buckets, below = [], 0
    for bound_s, count in zip((*lateness.bounds_s, float("inf")), lateness.counts, strict=True):
        below += count
        buckets.append(("+Inf" if bound_s == float("inf") else str(bound_s), below))
    return HistogramMetricFamily(
        "atfnd_loop_lateness_seconds",
        "How late the daemon's loop was, looked at four times a second.",
        buckets=buckets,
        sum_value=lateness.sum_s,
    )
