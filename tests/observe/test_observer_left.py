# SPDX-License-Identifier: GPL-2.0-or-later
"""The BPF observer says nothing of flows that the policy leaves alone, and all of the others.

All packets arrive on RIGHT, and every socket is used on WRONG: each would be reported.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from atfnd.model import FlowRule, Network, Placement, Policy, Protocol, SocketSeen
from atfnd.observe import Qualify
from atfnd.observe.sockets.bpf import BpfObserver
from atfnd.policy.match.compile import compiled
from tests.labs import HOST, PEER, Lab, packed
from tests.observe.observing import (
    RIGHT,
    WRONG,
    Pair,
    cookie,
    directed,
    lockstep,
    napis,
    on_cpu,
    use,
)
from tests.values import RULE

V4, V6 = socket.AF_INET, socket.AF_INET6
RETELL_NS = 3600 * 10**9
LEAVE = replace(RULE, name="leave", placement=Placement.LEAVE)
MANY = 30  # calls

pytestmark = pytest.mark.usefixtures("own_affinity")

Make = Callable[[Lab], Pair]


def under(*rules: FlowRule) -> Qualify:
    """What these rules have an observer tell of; the last one steers everything."""
    policy = Policy((), (*rules, RULE), "auto", 1, 0, ())
    return Qualify(0, 0, 0, clauses=compiled(policy).clauses)


@pytest.fixture
def observer(shared_lab: Lab) -> Iterator[BpfObserver]:
    with closing(BpfObserver(under(), RETELL_NS)) as made:
        made.watch([shared_lab.netns["host"]], napis(shared_lab))
        on_cpu(WRONG)
        yield made


def reported(observer: BpfObserver, *pairs: Pair) -> list[int]:
    """Which of these sockets are reported, by their place, when all are used."""
    for _ in range(MANY):
        for pair in pairs:
            lockstep(*pair)
    seen = [each.cookie for each in observer.drain() if isinstance(each, SocketSeen)]
    return [at for at, pair in enumerate(pairs) if cookie(pair[1]) in seen]


def mapped_tcp(lab: Lab, port: int) -> Pair:
    listener = lab.open("host", V6, socket.SOCK_STREAM)
    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind(("::", port))
    listener.listen()
    client = lab.open("peer", V4, socket.SOCK_STREAM)
    client.connect((HOST[V4], port))
    return client, listener.accept()[0]


def unconnected_udp(lab: Lab, family: int, port: int) -> Pair:
    receiver = lab.open("host", family, socket.SOCK_DGRAM)
    receiver.bind((HOST[family], port))
    sender = lab.open("peer", family, socket.SOCK_DGRAM)
    sender.connect((HOST[family], port))
    return sender, receiver


KINDS: dict[str, tuple[Make, int, Protocol]] = {
    "tcp4": (lambda lab: directed(lab, lab.tcp_pair), V4, Protocol.TCP),
    "tcp6": (lambda lab: directed(lab, lab.tcp_pair, V6), V6, Protocol.TCP),
    "tcp4-mapped": (
        lambda lab: directed(lab, lambda _, port: mapped_tcp(lab, port)), V4, Protocol.TCP,
    ),
    "udp6": (lambda lab: directed(lab, lab.udp_pair, V6), V6, Protocol.UDP),
    "udp4-unconnected": (
        lambda lab: directed(lab, lambda family, port: unconnected_udp(lab, family, port)),
        V4,
        Protocol.UDP,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_is_left_alone_is_silent_until_another_policy_steers_it(
    shared_lab: Lab, observer: BpfObserver, kind: str
) -> None:
    """One live flow under one policy after the other. What does not hold silences nobody. (How a
    rule is judged is tested in test_policy_compile.py.)"""
    make, family, protocol = KINDS[kind]
    pair = make(shared_lab)
    port, version = pair[1].getsockname()[1], 4 if family == V4 else 6
    addresses = (packed(ends[family]) for ends in (HOST, PEER))
    host, peer = (Network(version, each, 8 * len(each)) for each in addresses)
    asks: list[tuple[dict[str, Any], bool]] = [
        ({"protocols": frozenset({protocol}), "ports": ((port, port),), "local": (host,)}, True),
        ({"protocols": frozenset(Protocol) - {protocol}}, False),
        ({"ports": ((1, 2),)}, False),
        ({"local": (peer,)}, False),
        ({"remote": (peer,)}, kind != "udp4-unconnected"),
        ({"remote": (host,)}, False),
    ]
    for asked, holds in asks:
        observer.qualify(under(replace(LEAVE, **asked)))
        assert reported(observer, pair) == ([] if holds else [0]), asked
        observer.forget([cookie(pair[1])])
    observer.qualify(under())
    assert reported(observer, pair) == [0]


def test_each_has_the_thresholds_of_its_own_rules(shared_lab: Lab, observer: BpfObserver) -> None:
    pairs = [directed(shared_lab, shared_lab.tcp_pair) for _ in range(3)]
    one, two, _ = (pair[1].getsockname()[1] for pair in pairs)
    late = replace(RULE, ports=((one, one),), min_bytes=MANY + MANY // 2)
    never = replace(RULE, ports=((two, two),), min_age_ns=3600 * 10**9)
    observer.qualify(under(late, never, replace(LEAVE, ports=((one, two),))))
    assert reported(observer, *pairs) == [2]
    assert reported(observer, *pairs) == [0]


def test_a_datagram_socket_that_is_connected_elsewhere(
    shared_lab: Lab, observer: BpfObserver
) -> None:
    pair = directed(shared_lab, shared_lab.udp_pair)
    here, port = pair[0].getsockname(), pair[1].getsockname()[1]
    observer.qualify(under(replace(LEAVE, ports=((here[1], here[1]),))))
    assert reported(observer, pair) == []
    other = shared_lab.open("peer", V4, socket.SOCK_DGRAM)
    other.connect((HOST[V4], port))
    pair[1].connect(other.getsockname())
    use((other, pair[1]), observer.drain, "the flow that it is now is reported")


def test_one_that_was_reported_is_reported_on(shared_lab: Lab, observer: BpfObserver) -> None:
    """A filter may be there that has to go; one that is forgotten has none."""
    pair = directed(shared_lab, shared_lab.tcp_pair)
    observer.adopt({cookie(pair[1]): RIGHT})
    observer.qualify(under(LEAVE))
    assert reported(observer, pair) == [0]
    observer.forget([cookie(pair[1])])
    assert reported(observer, pair) == []


def test_what_is_written_takes_the_place_of_what_was(
    shared_lab: Lab, observer: BpfObserver
) -> None:
    """A long policy, then a short one, each as often as its half of the map is written."""
    pair = directed(shared_lab, shared_lab.tcp_pair)
    port = pair[1].getsockname()[1]
    long = [replace(LEAVE, ports=((at, at),)) for at in (*range(1, 200), port)]
    for _ in range(3):
        observer.qualify(under(*long))
        assert reported(observer, pair) == []
        observer.qualify(under(replace(LEAVE, ports=((1, 2),))))
        assert reported(observer, pair) == [0]
        observer.forget([cookie(pair[1])])
