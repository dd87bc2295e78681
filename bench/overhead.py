# SPDX-License-Identifier: GPL-2.0-or-later
"""What the observer adds to a socket call, and what that does to throughput.

Calls are made in C (`bench/extension/py_calls.c`) by this process, pinned to one core, and timed
in its CPU time; the observer is attached and detached in the same process, in many short turns,
because the machine drifts by more in a second than the observer costs. Sockets of three kinds: `not
steered` come in through no NIC that is watched; `steered` do, and take the observer's fast path;
`left alone` do, and a rule of the policy leaves them. (They are sockets of lo, whose NAPI ids are
watched for this purpose only.)

`receive of a byte` is a socket call and nothing else: queued data is read byte by byte, `off its
core` on another one than it arrived on: one that is steered is reported there, and nobody moves it.
The `pairs` send and receive 64 bytes over lo, so that they also pay for the softirq and NAPI poll
of every packet: on a NIC a poll serves many packets.

Throughput is iperf3's through the lab NIC with the daemon only observing, so that better steering
cannot hide a cost.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial
from typing import NamedTuple

from atfnd.model import Clause, SocketSeen
from atfnd.observe import Qualify
from atfnd.observe.sockets.bpf import BpfObserver
from bench import plot
from bench.bed import Bed, lab_bed
from bench.children import on_one_cpu
from bench.daemon import daemon
from bench.extension import _bench
from bench.report import Report, Target
from bench.stats import Estimate, median, ratios
from bench.traffic import iperf

__all__ = ["run"]

PAIRS, BYTES, BEST_OF = 4_000, 20_000, 5
TURNS = 5  # of each state, a round
LO_NAPI_IDS = range(512)  # on lo sk_napi_id holds the sender's CPU (include/linux/skbuff.h)
NO_NAPI_ID = 2**32 - 1
IPERF_STREAMS = 4
IPERF_S = 3.0
CALL_NS, RATIO = 120.0, 0.98
STATES = ("detached", "not steered", "steered", "left alone")
RECEIVE = "receive of a byte"


class Loop(NamedTuple):
    """A timed loop: its name, how many socket calls it makes, and their CPU time in ns."""

    name: str
    calls: int
    run: Callable[[], int]


def _udp(stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    ends = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in "ab"]
    for end in ends:
        end.bind(("127.0.0.1", 0))
    for end, other in (ends, ends[::-1]):
        end.connect(other.getsockname())
    return ends[0], ends[1]


def _tcp(stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = stack.enter_context(socket.create_connection(listener.getsockname()))
        receiver = stack.enter_context(listener.accept()[0])
    for end in (sender, receiver):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.setblocking(True)
    return sender, receiver


@contextlib.contextmanager
def _loops(cpu: int, other: int) -> Iterator[list[Loop]]:
    """The sockets of every loop, used on `cpu` and open as long as the `with` lasts."""
    with ExitStack() as stack:
        udp, tcp = _udp(stack), _tcp(stack)
        here, elsewhere = _tcp(stack), _tcp(stack)

        def byte_receives(pair: tuple[socket.socket, socket.socket], sent_on: int) -> int:
            with on_one_cpu(sent_on):
                pair[0].sendall(bytes(BYTES))  # no more: the reader sends what waits
            return _bench.byte_receives(pair[1].fileno(), BYTES)

        yield [
            Loop(RECEIVE, BYTES, partial(byte_receives, here, cpu)),
            Loop(f"{RECEIVE}, off its core", BYTES, partial(byte_receives, elsewhere, other)),
            Loop(
                "udp pairs on lo",
                2 * PAIRS,
                lambda: _bench.call_pairs(udp[0].fileno(), udp[1].fileno(), PAIRS),
            ),
            Loop(
                "tcp pairs on lo",
                2 * PAIRS,
                lambda: _bench.call_pairs(tcp[0].fileno(), tcp[1].fileno(), PAIRS),
            ),
        ]


def _observing(state: str) -> AbstractContextManager[BpfObserver | None]:
    if state == "detached":
        return contextlib.nullcontext()
    left = (Clause(True),) if state == "left alone" else ()
    observer = BpfObserver(Qualify(10_000_000, 0, 0, clauses=left))
    napi_ids = [NO_NAPI_ID] if state == "not steered" else LO_NAPI_IDS
    observer.watch([None], dict.fromkeys(napi_ids, "lo"))
    return closing(observer)


def _calls(rounds: int) -> tuple[dict[str, dict[str, list[float]]], dict[str, int]]:
    """ns a call, by loop and state: the best of a few runs each turn. And how often all these
    sockets were reported, by state."""
    found: dict[str, dict[str, list[float]]] = {}
    events = dict.fromkeys(STATES[1:], 0)
    other, *_, cpu = sorted(os.sched_getaffinity(0))
    with on_one_cpu(cpu), _loops(cpu, other) as loops:
        for turn in range(rounds * TURNS):
            for state in STATES[:: 1 if turn % 2 else -1]:
                with _observing(state) as observer:
                    for name, calls, run in loops:
                        best = min(run() for _ in range(BEST_OF)) / calls
                        found.setdefault(name, {s: [] for s in STATES})[state].append(best)
                    if observer is not None:
                        seen = (isinstance(each, SocketSeen) for each in observer.drain())
                        events[state] += sum(seen)
    return found, events


def _throughput(bed: Bed) -> float:
    """Bits/s of two servers, one a core, as in the paper."""
    with ExitStack() as stack:
        for port, cpu in zip(iperf.PORTS, bed.cpus, strict=False):
            stack.enter_context(iperf.server(bed.host, bed.address, port, [cpu]))
        clients = [
            stack.enter_context(iperf.client(bed.peer, bed.address, port, IPERF_STREAMS, IPERF_S))
            for port, _ in zip(iperf.PORTS, bed.cpus, strict=False)
        ]
        return sum(iperf.received_bits_per_s(c.wait(IPERF_S + 20)) for c in clients)


def _rates(rounds: int) -> dict[str, list[float]]:
    """iperf3 with and without the daemon, the order alternating."""
    rates: dict[str, list[float]] = {"detached": [], "attached": []}
    with lab_bed() as bed:
        for turn in range(rounds):
            for state in list(rates)[:: 1 if turn % 2 else -1]:
                observing = daemon(bed.nic, arm=False) if state == "attached" else None
                with observing or contextlib.nullcontext():
                    rates[state].append(_throughput(bed))
    return rates


def run(rounds: int) -> Report:
    """`rounds` rounds; what is added is the median of differences within a turn."""
    report = Report("overhead", "what the observer adds to a socket call")
    (calls, events), rates = _calls(rounds), _rates(rounds)
    report.samples = {"call_ns": calls, "events": events, "iperf3_bits_per_s": rates}
    report.notes.append(f"reported: {', '.join(f'{s} {count}' for s, count in events.items())}")
    bars: dict[str, list[Estimate]] = {state: [] for state in STATES[1:]}
    for name, series in calls.items():
        report.add(name, "detached", "ns/call", median(series["detached"]))
        for state in STATES[1:]:
            paired = zip(series[state], series["detached"], strict=True)
            added = report.add(name, f"added, {state}", "ns/call", median(a - b for a, b in paired))
            bars[state].append(added)
            if name == RECEIVE:
                what = f"added to a call, {state}"
                report.targets.append(Target(what, added.value, CALL_NS, False, "ns"))
    for state, each in rates.items():
        report.add("iperf3 through the NIC", state, "Gbit/s", median(rate / 1e9 for rate in each))
    ratio = ratios(rates["attached"], rates["detached"])
    report.add("iperf3 through the NIC", "attached / detached", "×", ratio)
    report.targets.append(Target("iperf3 throughput ratio", ratio.value, RATIO, True, "×"))
    plot.bars("overhead", "Added to a socket call", "ns", list(calls), bars, CALL_NS)
    return report
