# SPDX-License-Identifier: GPL-2.0-or-later
"""What the count of forwarded packets (`atfnctl pairs`) costs a packet.

Three namespaces: gen - f0 [forwards] f1 - sink, wired by veth. Without NAPI threads a packet goes
its whole way within the call that sends it, so that this call pays for all of it: datagrams of 64
bytes are sent and received in C by this process, on one CPU, and timed in its CPU time. `forwarded`
are received by the sink; each is given to a driver twice, by the sender's stack and by the one that
forwards, and the second is counted. `own` are received where the others are forwarded; each is
given to a driver once, and not counted. The program is attached and detached in many short turns,
because the machine drifts by more in a second than it costs.

What it adds to an own datagram is what a packet that is not forwarded pays. What it adds to a
forwarded one beyond that is what the counted packet pays.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial

from pyroute2 import netns

from atfnd.observe.nics.forwarded import ForwardedPackets, namespace
from bench.bed import succeed
from bench.children import on_one_cpu
from bench.extension import _bench
from bench.netns import within
from bench.report import Report
from bench.stats import median, ratios

__all__ = ["BEST_OF", "added", "measured", "run"]

DATAGRAMS, BEST_OF = 2_000, 5
TURNS = 20  # of each state, a round
STATES = ("detached", "attached")
KINDS = ("forwarded", "own")
PORT = 9
Ends = tuple[socket.socket, socket.socket]  # sender, receiver
Samples = dict[str, dict[str, list[float]]]  # ns a datagram, by kind and state


@contextlib.contextmanager
def _bed() -> Iterator[tuple[str, dict[str, Ends]]]:
    """The name of the namespace that forwards, and sockets by kind, which have been used once."""
    gen, forwards, sink = (f"bench{os.getpid()}{name}" for name in ("gen", "fwd", "sink"))
    with ExitStack() as stack:
        for name in (gen, forwards, sink):
            netns.create(name)
            stack.callback(netns.remove, name)
        for far, device, near, prefix in (
            (gen, "g0", "f0", "10.78.0"), (sink, "s0", "f1", "10.78.1"),
        ):  # fmt: skip
            wire = f"link add {near} netns {forwards} type veth peer name {device} netns {far}"
            succeed("ip", *wire.split())
            for net, name, last in ((forwards, near, 1), (far, device, 2)):
                succeed("ip", "-n", net, "addr", "add", f"{prefix}.{last}/24", "dev", name)
                succeed("ip", "-n", net, "link", "set", name, "up")
            succeed("ip", "-n", far, "route", "add", "default", "via", f"{prefix}.1")
        succeed("ip", "netns", "exec", forwards, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        places = {"forwarded": (sink, "10.78.1.2"), "own": (forwards, "10.78.0.1")}
        ends = {kind: _ends(stack, gen, *place) for kind, place in places.items()}
        for sender, receiver in ends.values():
            _bench.call_pairs(sender.fileno(), receiver.fileno(), 1)  # neighbours are known now
        yield forwards, ends


def _ends(stack: ExitStack, gen: str, net: str, address: str) -> Ends:
    made = partial(socket.socket, socket.AF_INET, socket.SOCK_DGRAM)
    sender, receiver = (
        stack.enter_context(within(gen, made)),
        stack.enter_context(within(net, made)),
    )
    receiver.bind((address, PORT))
    receiver.settimeout(None)
    sender.connect((address, PORT))
    return sender, receiver


def _counting(state: str) -> AbstractContextManager[ForwardedPackets | None]:
    return contextlib.nullcontext() if state == "detached" else closing(ForwardedPackets())


def measured(turns: int, datagrams: int = DATAGRAMS) -> tuple[Samples, int]:
    """The best of a few runs in each turn; and how many packets of the bed were counted."""
    found: Samples = {kind: {state: [] for state in STATES} for kind in KINDS}
    counted = 0
    with _bed() as (forwards, ends):
        for turn in range(turns):
            for state in STATES[:: 1 if turn % 2 else -1]:
                with _counting(state) as counter:
                    for kind, (sender, receiver) in ends.items():
                        took = [
                            _bench.call_pairs(sender.fileno(), receiver.fileno(), datagrams)
                            for _ in range(BEST_OF)
                        ]
                        found[kind][state].append(min(took) / datagrams)
                    if counter is not None:
                        ours = namespace(f"/run/netns/{forwards}")
                        counted += sum(
                            each.packets for each in counter.read() if each.netns == ours
                        )
    return found, counted


def added(found: Samples) -> tuple[Sequence[float], Sequence[float]]:
    """ns, by turn: to a packet that is sent and not forwarded, and to one that is counted."""
    own, both = (
        [a - b for a, b in zip(*(found[kind][s] for s in reversed(STATES)), strict=True)]
        for kind in reversed(KINDS)
    )
    return own, [a - b for a, b in zip(both, own, strict=True)]


def run(rounds: int) -> Report:
    """`rounds` rounds of TURNS turns."""
    report = Report("pairs-cost", "what the count of forwarded packets costs a packet")
    with on_one_cpu(max(os.sched_getaffinity(0))):
        found, counted = measured(rounds * TURNS)
    report.samples = {"datagram_ns": found, "counted": counted}
    for kind, series in found.items():
        for state in STATES:
            report.add(f"{kind} datagram", state, "ns", median(series[state]))
        ratio = ratios(series["attached"], series["detached"])
        report.add(f"{kind} datagram", "attached / detached", "×", ratio)
    own, one = added(found)
    report.add("added to a packet", "not forwarded", "ns", median(own))
    report.add("added to a packet", "forwarded", "ns", median(one))
    report.notes.append(f"counted: {counted}")
    return report
