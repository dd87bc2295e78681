# SPDX-License-Identifier: GPL-2.0-or-later
"""A namespace that forwards: gen - f0 [forwards] f1 - sink; and what is counted there."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from atfnd.diagnose.gain import Parts
from atfnd.diagnose.pairs import Counted, paired
from atfnd.model import ForwardedCount, Topology
from atfnd.observe.nics.forwarded import ForwardedPackets, interfaces, namespace
from tests.kernel.netns import Net
from tests.wait import until

__all__ = ["PACKETS", "PAYLOAD", "PORT", "ForwardingNet", "between", "forwarding_net", "pairs_of"]
__all__ += ["send", "warmed"]

PACKETS, PAYLOAD = 50, 100
PORT = 9


class ForwardingNet(NamedTuple):
    gen: Net
    forwards: Net
    sink: Net

    def ip(self, where: str, command: str) -> None:
        """ip(8) in one of the three."""
        net: Net = getattr(self, where)
        subprocess.run(["ip", "-n", net.name, *command.split()], check=True)


@contextmanager
def forwarding_net() -> Iterator[ForwardingNet]:
    with ExitStack() as stack:
        made = ForwardingNet(Net(stack), Net(stack), Net(stack))
        host = made.forwards.name
        ends = (("gen", "g0", "f0", "10.78.0"), ("sink", "s0", "f1", "10.78.1"))
        for far, device, near, prefix in ends:
            peer = f"{device} netns {getattr(made, far).name}"
            made.ip("forwards", f"link add {near} type veth peer name {peer}")
            for where, name, last in (("forwards", near, 1), (far, device, 2)):
                made.ip(where, f"addr add {prefix}.{last}/24 dev {name}")
                made.ip(where, f"link set {name} up")
            made.ip(far, f"route add default via {prefix}.1")
        inside = ("ip", "netns", "exec", host, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        subprocess.run(inside, check=True)
        yield made


def send(sender: socket.socket, address: str, packets: int = PACKETS) -> None:
    for _ in range(packets):
        sender.sendto(bytes(PAYLOAD), (address, PORT))


def between(
    bed: ForwardingNet, counts: list[ForwardedCount]
) -> dict[tuple[str, str], list[ForwardedCount]]:
    """By the names of ingress and egress, as the kernel has them, of the namespace that
    forwards."""
    names = interfaces([bed.forwards.path]).names
    found = dict[tuple[str, str], list[ForwardedCount]]()
    for each in counts:
        if each.netns == namespace(bed.forwards.path):
            pair = (names[each.netns, each.ingress_ifindex], names[each.netns, each.egress_ifindex])
            found.setdefault(pair, []).append(each)
    return found


def pairs_of(bed: ForwardingNet, sender: socket.socket) -> set[tuple[tuple[str, ...], str]]:
    """Where packets that are sent now have come in, one of these, and gone out."""
    counter = ForwardedPackets()
    try:
        send(sender, "10.78.1.2")
        until(lambda: between(bed, counter.read()), "some are forwarded")
        counts = [each for of in between(bed, counter.read()).values() for each in of]
    finally:
        counter.close()
    known = interfaces([bed.forwards.path])
    found = paired(
        Counted(1.0, 0, tuple(counts)), known.names, known.below, {}, Parts(Topology(()))
    )
    return {(each.came_by, each.egress) for each in found.pairs}


def warmed(bed: ForwardingNet) -> tuple[socket.socket, socket.socket]:
    """A sender and a receiver; both neighbours are known, so no packet waits for an answer."""
    sender = bed.gen.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink = bed.sink.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.bind(("10.78.1.2", PORT))
    sink.setblocking(False)

    def came() -> bool:
        send(sender, "10.78.1.2", 1)
        try:
            return bool(sink.recv(PAYLOAD))
        except BlockingIOError:
            return False

    until(came, "a packet comes through")
    return sender, sink
