# SPDX-License-Identifier: GPL-2.0-or-later
"""What the observer adds to a socket call, and what that does to throughput.

Calls are made in C (`atfnd/bpf/py_calls.c`), the process pinned to one core, the daemon started and
stopped within each round; times are CPU time, the least of many short loops. `lo`: 64-byte send and
receive pairs over the host's loopback, sockets that are none of the observer's business, as most
are. `steered`: receives, a byte each, of data that waits in a socket whose flow is steered: the
observer's everyday path on the cheapest call there is. Throughput is iperf3's through the lab NIC
with the daemon only observing, so that better steering cannot hide a cost.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

from atfnd.bpf import _bpf
from bench import plot
from bench.bed import Bed, lab_bed
from bench.children import until
from bench.daemon import Daemon, daemon
from bench.netns import within
from bench.report import Report, Target
from bench.stats import Estimate, median, ratios
from bench.traffic import iperf

__all__ = ["run"]

PAIRS = 5_000
BYTES = 50_000
SO_RCVBUFFORCE, SO_INCOMING_CPU = 33, 49  # asm-generic/socket.h
REPEATS = 20
PORT = 7100
IPERF_STREAMS = 4
IPERF_S = 3.0
CALL_NS, RATIO = 120.0, 0.98
STATES = ("detached", "attached")


class Loop(NamedTuple):
    """A timed loop: what it calls, how many socket calls one unit is, how often."""

    name: str
    calls: int
    run: Callable[[], int]  # CPU ns of all of them


@contextlib.contextmanager
def _on_one_cpu(cpu: int) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _udp_pair() -> tuple[socket.socket, socket.socket]:
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", 0))
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.connect(receiver.getsockname())
    return sender, receiver


def _tcp_pair(
    listener: socket.socket, connect: Callable[[], socket.socket]
) -> tuple[socket.socket, socket.socket]:
    sender = connect()
    receiver = listener.accept()[0]
    for end in (sender, receiver):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.setblocking(True)
    return sender, receiver


def _readable_bytes(sock: socket.socket) -> int:
    """SIOCINQ (tcp(7)), which shares its number with FIONREAD."""
    return int(struct.unpack("i", fcntl.ioctl(sock, termios.FIONREAD, bytes(4)))[0])


@contextlib.contextmanager
def loops(bed: Bed) -> Iterator[tuple[int, list[Loop]]]:
    """The sockets of every loop, open as long as the `with` lasts; and a CPU to run them on that
    RSS does not deliver the `steered` one to, or there would be nothing to steer."""
    with contextlib.ExitStack() as stack:

        def owned(pair: tuple[socket.socket, socket.socket]) -> tuple[int, int]:
            for one in pair:
                stack.enter_context(one)
            return pair[0].fileno(), pair[1].fileno()

        def over_lo() -> tuple[socket.socket, socket.socket]:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                address = listener.getsockname()
                return _tcp_pair(listener, lambda: socket.create_connection(address))

        udp = owned(within(bed.host, _udp_pair))
        tcp = owned(within(bed.host, over_lo))
        listener = within(bed.host, lambda: socket.create_server((bed.address, PORT)))
        with listener:
            address = listener.getsockname()
            through_nic = _tcp_pair(
                listener,
                lambda: within(bed.peer, lambda: socket.create_connection(address, timeout=10)),
            )
        remote, local = through_nic
        owned(through_nic)
        local.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 * BYTES)

        def queued() -> bool:
            return _readable_bytes(local) == BYTES

        def byte_receives() -> int:
            remote.sendall(bytes(BYTES))
            until(queued, f"{BYTES} bytes wait in the receiver")
            return _bpf.byte_receives(local.fileno(), BYTES)

        arrives = local.getsockopt(socket.SOL_SOCKET, SO_INCOMING_CPU)
        yield (
            next(cpu for cpu in bed.cpus if cpu != arrives),
            [
                Loop("udp pair on lo", 2 * PAIRS, lambda: _bpf.call_pairs(*udp, PAIRS)),
                Loop("tcp pair on lo", 2 * PAIRS, lambda: _bpf.call_pairs(*tcp, PAIRS)),
                Loop("tcp receive of a byte, steered", BYTES, byte_receives),
            ],
        )


def _per_call_ns(loop: Loop) -> float:
    """The least of REPEATS: interference only ever adds."""
    loop.run()
    return min(loop.run() / loop.calls for _ in range(REPEATS))


def _get_steered(running: Daemon, loop: Loop) -> None:
    """Use the `steered` loop's socket until its flow has its rule."""
    port = f":{PORT}"

    def steered() -> bool:
        loop.run()
        rows = running.ask("flows")
        return any(row["state"] == "steered" and row["local"].endswith(port) for row in rows)

    until(steered, "the bench's flow is steered", 20)


def _state(bed: Bed, state: str, arm: bool) -> AbstractContextManager[Daemon | None]:
    return daemon(bed.name, arm=arm) if state == "attached" else contextlib.nullcontext()


def _throughput(bed: Bed) -> float:
    """Bits/s of two servers, one a core, as in the paper."""
    with contextlib.ExitStack() as stack:
        for port, cpu in zip(iperf.PORTS, bed.cpus, strict=False):
            stack.enter_context(iperf.server(bed.host, bed.address, port, [cpu]))
        clients = [
            stack.enter_context(iperf.client(bed.peer, bed.address, port, IPERF_STREAMS, IPERF_S))
            for port, _ in zip(iperf.PORTS, bed.cpus, strict=False)
        ]
        return sum(iperf.received_bits_per_s(c.wait(IPERF_S + 20)) for c in clients)


def run(rounds: int) -> Report:
    """`rounds` rounds, each with the observer detached and attached, the order alternating."""
    report = Report("overhead", "what the observer adds to a socket call")
    calls: dict[str, dict[str, list[float]]] = {}
    rates: dict[str, list[float]] = {state: [] for state in STATES}
    with lab_bed() as bed, loops(bed) as (cpu, timed):
        for turn in range(rounds):
            for state in STATES[:: 1 if turn % 2 else -1]:
                bed.clear_rules()
                with _state(bed, state, True) as running, _on_one_cpu(cpu):
                    if running is not None:
                        _get_steered(running, timed[-1])
                    for loop in timed:
                        series = calls.setdefault(loop.name, {name: [] for name in STATES})
                        series[state].append(_per_call_ns(loop))
            for state in STATES[:: 1 if turn % 2 else -1]:
                bed.clear_rules()
                with _state(bed, state, False):
                    rates[state].append(_throughput(bed))
    _report(report, calls, rates)
    return report


def _report(
    report: Report, calls: dict[str, dict[str, list[float]]], rates: dict[str, list[float]]
) -> None:
    report.samples = {"call_ns": calls, "iperf3_bits_per_s": rates}
    added: dict[str, Estimate] = {}
    for name, series in calls.items():
        for state in STATES:
            report.add(name, state, "ns/call", median(series[state]))
        paired = zip(series["attached"], series["detached"], strict=True)
        added[name] = report.add(name, "added", "ns/call", median(a - b for a, b in paired))
        report.targets.append(Target(f"added, {name}", added[name].value, CALL_NS, False, "ns"))
    for state in STATES:
        gbit = [rate / 1e9 for rate in rates[state]]
        report.add("iperf3 through the NIC", state, "Gbit/s", median(gbit))
    ratio = ratios(rates["attached"], rates["detached"])
    report.add("iperf3 through the NIC", "attached / detached", "×", ratio)
    report.targets.append(Target("iperf3 throughput ratio", ratio.value, RATIO, True, "×"))
    bars = {"added by the observer": list(added.values())}
    plot.bars("overhead", "Added to a socket call", "ns", list(added), bars, CALL_NS)
