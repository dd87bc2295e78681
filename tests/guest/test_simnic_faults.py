# SPDX-License-Identifier: GPL-2.0-or-later
"""simnic's faults: insertions that fail, vanish or come late, and resets that lose filters."""

from __future__ import annotations

import errno
import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.guest.hardware import behave, ethtool, held, packets, queue_of
from tests.guest.rxnfc import FlowSpec, capacity, delete, insert, listed, queue_at, refused
from tests.guest.simpair import HOST, PEER, fault, open_host, open_peer, simnic
from tests.wait import until

NIC = "sim0"
SLOTS = 16
FLOW = FlowSpec(PEER[socket.AF_INET], 5001, HOST[socket.AF_INET], 7001)


@pytest.fixture
def loaded() -> Iterator[None]:
    with simnic(max_queues=8, queues=4, table=SLOTS):
        yield


@pytest.fixture(scope="class")
def shared() -> Iterator[None]:
    with simnic(max_queues=8, queues=4, table=SLOTS):
        yield


@pytest.fixture
def empty(shared: None) -> Iterator[None]:
    yield
    for location in listed(NIC):
        delete(NIC, location)


def carrier() -> bool:
    with open(f"/sys/class/net/{NIC}/carrier") as file:
        return file.read().strip() == "1"


def flow(number: int) -> FlowSpec:
    return FLOW._replace(sport=6000 + number)


@pytest.mark.usefixtures("empty")
class TestInsertions:
    def test_the_next_one_fails_once(self) -> None:
        fault(NIC, "fail_insert", errno.ENOSPC)
        with refused(errno.ENOSPC):
            insert(NIC, flow(0), 1)
        assert (listed(NIC), held()) == ([], [])
        insert(NIC, flow(0), 1)

    def test_one_in_the_middle_fails(self) -> None:
        fault(NIC, "fail_insert", f"{errno.EBUSY} 3")
        for number in range(3):
            insert(NIC, flow(number), 1)
        with refused(errno.EBUSY):
            insert(NIC, flow(3), 1)
        insert(NIC, flow(4), 1)
        assert len(held()) == len(listed(NIC)) == 4

    def test_what_is_refused_anyway_does_not_count(self) -> None:
        fault(NIC, "fail_insert", f"{errno.EBUSY} 1")
        with refused(errno.EINVAL):
            insert(NIC, flow(0), 1, SLOTS)
        insert(NIC, flow(0), 1)
        with refused(errno.EBUSY):
            insert(NIC, flow(1), 1)

    def test_a_failed_move(self) -> None:
        """In place the old filter stays; deleted first it is lost, as mlx5 loses it."""
        insert(NIC, flow(0), 1, 5)
        fault(NIC, "fail_insert", errno.EIO)
        with refused(errno.EIO):
            insert(NIC, flow(0), 2, 5)
        assert [rule.queue for rule in held()] == ["1"]
        fault(NIC, "fail_insert", errno.EIO)
        with behave(overwrite="gap"), refused(errno.EIO):
            insert(NIC, flow(0), 2, 5)
        assert (listed(NIC), held()) == ([], [])

    def test_some_vanish(self) -> None:
        fault(NIC, "vanish", 2)
        for number in range(3):
            insert(NIC, flow(number), 1, number)
        until(lambda: listed(NIC) == [2], "two filters vanish")
        assert [rule.location for rule in held()] == [2]

    def test_one_that_is_to_vanish_is_deleted_first(self) -> None:
        fault(NIC, "vanish", 1)
        insert(NIC, flow(0), 1, 0)
        delete(NIC, 0)
        insert(NIC, flow(1), 1, 0)
        assert len(listed(NIC)) == 1

    def test_nonsense_is_refused(self) -> None:
        for name, words in (
            ("fail_insert", ("", "x", "-1", "99999", "5" * 40)),
            ("vanish", ("x", str(2**40))),
            ("reset", ("", "all")),
        ):
            for word in words:
                with refused(errno.EINVAL):
                    fault(NIC, name, word)


def test_asynchronous_insertion() -> None:
    with simnic(max_queues=8, table=SLOTS, async_ms=500):
        assert capacity(NIC) == (2 * SLOTS, True)
        insert(NIC, flow(0), 1, 3)
        assert (listed(NIC), held()) == ([3], [])
        until(lambda: [rule.location for rule in held()] == [3], "it takes effect")

        insert(NIC, flow(0), 2, 3)  # moved, and moved again before that took effect
        insert(NIC, flow(0), 3, 3)
        assert [rule.queue for rule in held()] == ["1"]
        assert queue_at(NIC, 3) == 3
        until(lambda: [rule.queue for rule in held()] == ["3"], "the last one takes effect")

        insert(NIC, flow(1), 1, 4)
        delete(NIC, 4)
        delete(NIC, 3)
        for number in range(SLOTS + 2):
            insert(NIC, flow(number), 1)
        assert len(listed(NIC)) == SLOTS + 2
        until(lambda: len(listed(NIC)) == SLOTS, "a full table is discovered")
        assert [rule.location for rule in held()] == listed(NIC)


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize("how", ["keep", "wipe", "phantom"])
def test_a_reset(how: str) -> None:
    with (
        open_peer(socket.AF_INET, socket.SOCK_DGRAM, 5001) as sender,
        open_host(socket.AF_INET, socket.SOCK_DGRAM, 7001) as receiver,
    ):
        by_rss = queue_of(sender, receiver)
        queue = (by_rss + 1) % 4
        insert(NIC, FLOW, queue, 2)
        before = sum(packets())
        fault(NIC, "reset", how)
        until(carrier, "there is a carrier again")
        assert sum(packets()) >= before
        assert listed(NIC) == ([] if how == "wipe" else [2])
        assert len(held()) == (1 if how == "keep" else 0)
        assert queue_of(sender, receiver) == (queue if how == "keep" else by_rss)
        insert(NIC, FLOW, queue, 2)  # an ineffective filter's place can be taken
        assert queue_of(sender, receiver) == queue


@pytest.mark.usefixtures("loaded")
def test_what_persists() -> None:
    def cycle() -> Iterator[str]:
        for command in (f"ip link set {NIC} down", f"ip link set {NIC} up"):
            subprocess.run(command.split(), check=True)
        yield "ifdown"
        ethtool("-L", NIC, "combined", 8)
        ethtool("-L", NIC, "combined", 4)
        yield "channels"
        fault(NIC, "reset", "keep")
        yield "reset"

    insert(NIC, FLOW, 1, 2)
    for what in cycle():
        assert len(held()) == len(listed(NIC)) == 1, what
    with behave(persist="ifdown"):
        for what in cycle():
            assert (held(), listed(NIC)) == ([], []), what
            insert(NIC, FLOW, 1, 2)


def test_no_filters_at_all() -> None:
    with simnic(rules=0, drvname="virtio_net"):
        assert "driver: virtio_net" in ethtool("-i", NIC)
        assert "ntuple-filters: off [fixed]" in ethtool("-k", NIC)
        with refused(errno.EOPNOTSUPP):
            insert(NIC, FLOW, 1)
        with refused(errno.EOPNOTSUPP):
            capacity(NIC)


def test_the_feature_can_be_off_at_first() -> None:
    with simnic(ntuple_on=0):
        assert "ntuple-filters: off\n" in ethtool("-k", NIC)
        with refused(errno.EOPNOTSUPP):
            insert(NIC, FLOW, 1)
