# SPDX-License-Identifier: GPL-2.0-or-later
"""Flows that come by a tunnel, and UDP sockets that share a port, are left to RSS."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest

from atfnd.engine.placement import steer
from atfnd.kernel.netlink import rtnl
from atfnd.kernel.netlink.requests import attribute
from atfnd.kernel.netlink.rtnl import Link, LinkNews
from atfnd.kernel.netlink.tunnels import (
    KINDS,
    IpsecPolicy,
    Tunnel,
    encrypted,
    ipsec_policies,
    under,
)
from atfnd.kernel.system.netns import open_socket
from atfnd.model import ActionKind, FlowKey, FlowState, Mode, Protocol, SocketSeen
from tests.bed import a_bed
from tests.daemons import policy
from tests.engine.test_birth import memory
from tests.labs import HOST, PEER, Lab, key_of, packed
from tests.observe.observing import RIGHT, WRONG, Watch, on_cpu
from tests.values import NIC, RULE, flow, key, seen
from tests.wait import until

pytestmark = pytest.mark.usefixtures("own_affinity")

V4 = socket.AF_INET
INNER = {"host": "10.77.0.1", "peer": "10.77.0.2"}
STRICT = replace(RULE, order=Mode.STRICT)
VXLAN = Tunnel("vx0", "vxlan")
UNCONNECTED = key(0)._replace(protocol=Protocol.UDP, remote=bytes(4), remote_port=0)


@pytest.mark.parametrize(
    ("steered", "event"),
    [
        (key(1), seen(1, 1, tunnel=str(VXLAN))),
        (UNCONNECTED, seen(2, 1, key=UNCONNECTED, group=True)),  # of a second socket on its port
    ],
    ids=["a tunnel", "a group"],
)
def test_the_filter_of_a_flow_that_is_left_to_rss_from_now_on_goes(
    steered: FlowKey, event: SocketSeen
) -> None:
    known = memory()
    known.table.put(flow(1, key=steered, location=7, target_queue=2, state=FlowState.STEERED))
    (delete,) = steer.seen(event, NIC, STRICT, known, 10**9)
    assert (delete.kind, delete.location, delete.live) == (ActionKind.DELETE, 7, True)


@pytest.mark.parametrize(
    ("links", "found"),
    [
        ({1: Link("eth0", None)}, {}),
        ({2: Link("vx0", "vxlan")}, {2: "vx0"}),
        ({2: Link("wg0", "wireguard"), 3: Link("tun0", "tun")}, {2: "wg0", 3: "tun0"}),
        ({2: Link("vx0", "vxlan", master=3), 3: Link("br0", "bridge")}, {2: "vx0", 3: "vx0"}),
        ({2: Link("gre1", "gretap"), 3: Link("v", "vlan", lower=2)}, {2: "gre1", 3: "gre1"}),
        ({2: Link("v", "vlan", lower=1)}, {}),
        (
            {1: Link("eth0", None, master=3), 2: Link("vx0", "vxlan", master=3),
             3: Link("br0", "bridge")},
            {2: "vx0"},
        ),
    ],
)  # fmt: skip
def test_what_stands_on_a_tunnel(links: dict[int, Link], found: dict[int, str]) -> None:
    assert {index: each.name for index, each in under(links, nic=1).items()} == found


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_of_tunnel_is_known_as_the_kernel_names_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a notification and in a list: IFLA_LINKINFO with IFLA_INFO_KIND."""
    info = struct.pack("=BxHiII", 0, 0, 5, 0, 0)
    answer = info + attribute(3, b"t0\0") + attribute(18, attribute(1, kind.encode() + b"\0"))
    monkeypatch.setattr(rtnl, "_request", lambda *_: [answer])
    assert under(rtnl.links(), nic=1) == {5: Tunnel("t0", kind)}
    (news,) = rtnl._news(struct.pack("=IHHII", 16 + len(answer), 16, 0, 0, 0) + answer)
    assert news == LinkNews(5, Link("t0", kind))


def test_the_first_ipsec_policy_that_covers_a_flow_decides() -> None:
    local, remote = packed("10.0.0.1"), packed("10.1.0.9")
    net = IpsecPolicy(local, 32, 0, packed("10.1.0.0"), 16, 0, 0, 10, True)
    but = net._replace(local_port=22, protocol=6, priority=5, encrypts=False)
    ends = 6, local, 443, remote, 1000
    assert encrypted((net,), *ends)
    assert encrypted((but, net), *ends)
    assert not encrypted((but, net), 6, local, 22, remote, 1000)
    assert encrypted((but, net), 17, local, 22, remote, 1000)
    assert not encrypted((net,), 6, local, 443, packed("10.2.0.9"), 1000)
    assert not encrypted((net,), 6, bytes(16), 443, bytes(16), 1000)
    assert not encrypted((), *ends)


def ip(lab: Lab, role: str, *words: str) -> None:
    subprocess.run(["ip", "-n", f"{lab.name}-{role}", *words], check=True, timeout=30)


def test_ipsec_policies_are_read(lab: Lab) -> None:
    assert ipsec_policies(lab.netns["host"]) == ()
    selector = ["src", "10.8.0.0/16", "dst", "10.9.0.1/32", "proto", "tcp", "dport", "80"]
    template = ["tmpl", "src", "10.8.0.1", "dst", "10.9.0.1", "proto", "esp", "mode", "transport"]
    add = ["xfrm", "policy", "add", *selector]
    ip(lab, "host", *add, "dir", "in", "priority", "7", *template)
    ip(lab, "host", *add, "dir", "out", "priority", "7", *template)
    assert ipsec_policies(lab.netns["host"]) == (
        IpsecPolicy(packed("10.9.0.1"), 32, 80, packed("10.8.0.0"), 16, 0, 6, 7, True),
    )


def vxlan(lab: Lab) -> None:
    """Between the namespaces, over the NIC."""
    ends = {"host": (HOST[V4], PEER[V4]), "peer": (PEER[V4], HOST[V4])}
    for role, (local, remote) in ends.items():
        ip(lab, role, "link", "add", "vx0", "type", "vxlan", "id", "7", "dstport", "4789",
           "local", local, "remote", remote)  # fmt: skip
        ip(lab, role, "address", "add", f"{INNER[role]}/24", "dev", "vx0")
        ip(lab, role, "link", "set", "vx0", "up")


def test_a_flow_in_vxlan_is_left_to_rss_and_says_so(lab: Lab, tmp_path: Path) -> None:
    vxlan(lab)
    address = "10.78.0.1"  # on a device of the host that is no tunnel
    ip(lab, "host", "address", "add", f"{address}/32", "dev", "lo")
    ip(lab, "peer", "route", "add", f"{address}/32", "via", INNER["host"])
    with a_bed(lab, tmp_path, "bpf", policy(order="immediate")) as bed:
        bed.start()
        with (
            open_socket(lab.netns["host"], V4, socket.SOCK_STREAM) as listener,
            open_socket(lab.netns["peer"], V4, socket.SOCK_STREAM) as client,
        ):
            listener.bind((address, 5200))
            listener.listen(1)
            client.settimeout(10)
            client.connect((address, 5200))
            accepted, _ = listener.accept()
            inner = key_of(accepted, Protocol.TCP)
            turns = cycle(os.sched_getaffinity(0))

            def used() -> bool:
                """On each CPU in turn: off its packets' for long enough, until it is back there."""
                on_cpu(next(turns))
                for _ in range(500):
                    client.send(b"x")
                    accepted.recv(1)
                row = bed.daemon.flow(inner)
                assert row is None or row["state"] == "wanted", row
                return row is not None and "vx0 (vxlan)" in row["why"]

            with accepted:
                until(used, "it is seen, and left")
                assert all(rule.match is None or rule.match.dst_port != 5200 for rule in
                           lab.nic.filters())  # fmt: skip


@pytest.mark.parametrize("sockets", [1, 2])
def test_sockets_of_one_udp_port_are_reported_as_a_group(
    shared_lab: Lab, watch: Watch, sockets: int
) -> None:
    observer, port = watch(shared_lab), 5300 + sockets
    made = [shared_lab.open("host", V4, socket.SOCK_DGRAM) for _ in range(sockets)]
    for each in made:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        each.bind((HOST[V4], port))
        each.setblocking(False)
    sender = shared_lab.open("peer", V4, socket.SOCK_DGRAM)
    sender.connect((HOST[V4], port))

    def reported() -> list[SocketSeen]:
        sender.send(b"x")
        for cpu in (RIGHT, WRONG):
            on_cpu(cpu)
            for each in made:
                with contextlib.suppress(BlockingIOError):
                    each.recv(10)
        return [each for each in observer.drain() if isinstance(each, SocketSeen)]

    found = until(reported, "one of them is reported")
    assert {each.group for each in found} == {sockets > 1}
