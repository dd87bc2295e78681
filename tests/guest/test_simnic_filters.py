# SPDX-License-Identifier: GPL-2.0-or-later
"""The filters of simnic: what is accepted, where it lands, what it does to packets."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from tests.guest.hardware import behave, ethtool, held, queue_of, send, statistics
from tests.guest.rxnfc import (
    ANY,
    DROP,
    FlowSpec,
    capacity,
    delete,
    insert,
    insert_ether,
    listed,
    queue_at,
    refused,
)
from tests.guest.simpair import HOST, PEER, open_host, open_peer, simnic
from tests.wait import until

SECOND_GUEST = ["--kernel", "newest", "--nic", "every"]
NIC = "sim0"
SLOTS = 16
FLOW = FlowSpec(PEER[socket.AF_INET], 5001, HOST[socket.AF_INET], 7001)


class Ends(NamedTuple):
    """The sockets of one flow, the one FLOW matches when it is IPv4."""

    sender: socket.socket
    receiver: socket.socket

    @property
    def match(self) -> FlowSpec:
        (source, sport), (destination, dport) = (
            end.getsockname()[:2] for end in (self.sender, self.receiver)
        )
        return FlowSpec(source, sport, destination, dport, self.sender.family)


@pytest.fixture(scope="module", autouse=True)
def loaded() -> Iterator[None]:
    with simnic(max_queues=8, queues=4, table=SLOTS):
        yield


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    """Each test leaves the table to the next one empty."""
    yield
    for location in listed(NIC):
        delete(NIC, location)
    assert held() == []


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["v4", "v6"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    with (
        open_peer(request.param, socket.SOCK_DGRAM, 5001) as sender,
        open_host(request.param, socket.SOCK_DGRAM, 7001) as receiver,
    ):
        yield Ends(sender, receiver)


def refuses(error: int, match: FlowSpec, queue: int = 1, location: int = ANY) -> None:
    before = listed(NIC)
    with refused(error):
        insert(NIC, match, queue, location)
    assert listed(NIC) == before


def test_traffic_follows_a_filter(ends: Ends) -> None:
    by_rss = queue_of(*ends)
    for queue in range(4):
        location = insert(NIC, ends.match, queue)
        assert location == 0
        assert queue_of(*ends) == queue
        assert [rule.queue for rule in held()] == [str(queue)]
        assert held()[0].hits == 50
    assert statistics()["ntuple_hits"] >= 200
    delete(NIC, 0)
    assert queue_of(*ends) == by_rss


def test_the_lowest_location_wins(ends: Ends) -> None:
    port_only = FlowSpec(None, None, None, ends.match.dport, ends.match.family)
    insert(NIC, ends.match, 1, 9)
    insert(NIC, port_only, 2, 5)
    assert queue_of(*ends) == 2
    insert(NIC, ends.match, 3, 2)
    assert queue_of(*ends) == 3
    delete(NIC, 2)
    delete(NIC, 5)
    assert queue_of(*ends) == 1
    assert [rule.location for rule in held()] == listed(NIC) == [9]


def test_a_filter_that_drops(ends: Ends) -> None:
    before = statistics()["ntuple_drops"]
    insert(NIC, ends.match, DROP)
    for _ in range(10):
        ends.sender.sendto(b"x", ends.receiver.getsockname())
    until(lambda: statistics()["ntuple_drops"] == before + 10, "ten frames are dropped")
    delete(NIC, 0)
    send(*ends, 1)


def test_thousands_of_filters_need_one_lookup_each() -> None:
    """table=SLOTS here: full with one mask, and the last filter is found as the first is."""
    many = [FLOW._replace(sport=6000 + number) for number in range(SLOTS)]
    assert [insert(NIC, match, 1) for match in many] == list(range(SLOTS))
    assert capacity(NIC) == (SLOTS, True)
    refuses(errno.ENOSPC, FLOW)
    insert(NIC, many[3], 2)
    assert queue_at(NIC, 3) == 2


@pytest.mark.parametrize("location", [SLOTS, 2**31 - 1, 0x80000001])
def test_no_such_location(location: int) -> None:
    refuses(errno.EINVAL, FLOW, location=location)


def test_no_such_queue_rule_or_flow_type() -> None:
    refuses(errno.EINVAL, FLOW, queue=4)
    with refused(errno.ENOENT):
        delete(NIC, 3)
    with refused(errno.EINVAL):
        delete(NIC, SLOTS)
    with refused(errno.EOPNOTSUPP):
        insert_ether(NIC, 1)


def test_location_explicit() -> None:
    with behave(location="explicit"):
        assert capacity(NIC) == (SLOTS, False)
        refuses(errno.EINVAL, FLOW)
        assert insert(NIC, FLOW, 1, 7) == 7
        assert [rule.location for rule in held()] == [7]


def test_location_any() -> None:
    with behave(location="any"):
        assert capacity(NIC) == (SLOTS, True)
        refuses(errno.EINVAL, FLOW, location=7)
        assert insert(NIC, FLOW, 1) == insert(NIC, FLOW, 2) == 0
        assert [rule.queue for rule in held()] == ["2"]
        with behave(overwrite="exists"):
            refuses(errno.EEXIST, FLOW)


def test_overwrite() -> None:
    insert(NIC, FLOW, 1, 3)
    with behave(overwrite="exists"):
        refuses(errno.EEXIST, FLOW, 2, 3)
    assert held()[0].queue == "1"
    with behave(overwrite="gap", gap_us=20000):
        insert(NIC, FLOW, 2, 3)
    assert held()[0].queue == "2"
    insert(NIC, FLOW._replace(sport=5002), 3, 3)
    assert [rule.queue for rule in held()] == ["3"]


def test_a_gap_goes_through_rss_and_in_place_does_not(ends: Ends) -> None:
    """Ten moves under traffic between two queues that RSS does not use."""
    ethtool("-X", NIC, "equal", 1)
    with ExitStack() as undo:
        undo.callback(ethtool, "-X", NIC, "default")
        through_rss = {}
        for overwrite, gap_us in (("in_place", 0), ("gap", 200_000)):
            insert(NIC, ends.match, 1, 0)
            send(*ends, 1)
            hits = statistics()["ntuple_hits"]
            with behave(overwrite=overwrite, gap_us=gap_us):
                through_rss[overwrite] = 0
                for move in range(10):
                    sent = _send_while_moving(ends, 1 + move % 2)
                    now = statistics()["ntuple_hits"]
                    through_rss[overwrite] += sent - (now - hits)
                    hits = now
            delete(NIC, 0)
    assert through_rss["in_place"] == 0
    assert through_rss["gap"] > 0


def _send_while_moving(ends: Ends, queue: int) -> int:
    """Packets sent from before a move to after it."""
    mover = threading.Thread(target=insert, args=(NIC, ends.match, queue, 0))
    mover.start()
    sent = 0
    while mover.is_alive() or sent < 2:
        send(*ends, 1)
        sent += 1
    mover.join()
    return sent


def test_only_exact_tuples_without_masks() -> None:
    with behave(masks=0):
        refuses(errno.EINVAL, FLOW._replace(src=None))
        refuses(errno.EINVAL, FLOW._replace(sport=None))
        insert(NIC, FLOW, 1)


def test_no_v6() -> None:
    match = FlowSpec(PEER[socket.AF_INET6], 1, HOST[socket.AF_INET6], 2, socket.AF_INET6)
    with behave(v6=0):
        refuses(errno.EINVAL, match)
    insert(NIC, match, 1)


def test_duplicates() -> None:
    insert(NIC, FLOW, 1, 3)
    with behave(duplicates=0):
        refuses(errno.EEXIST, FLOW, 1, 4)
        insert(NIC, FLOW, 2, 3)
    insert(NIC, FLOW, 1, 4)
    assert listed(NIC) == [3, 4]


def test_the_feature_off_flushes_and_refuses() -> None:
    insert(NIC, FLOW, 1)
    ethtool("-K", NIC, "ntuple", "off")
    assert (listed(NIC), held()) == ([], [])
    refuses(errno.EOPNOTSUPP, FLOW)
    ethtool("-K", NIC, "ntuple", "on")
    insert(NIC, FLOW, 1)
