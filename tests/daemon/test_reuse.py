# SPDX-License-Identifier: GPL-2.0-or-later
"""A 5-tuple that is used again within the second: its rule stays, and no packet changes its queue.

However late the daemon hears of it: it is stopped while one socket is closed and the next opened.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atfnd.model import FlowKey, Protocol
from tests.applications import CPUS, rss_cpu
from tests.bed import Bed, a_bed
from tests.daemons import Row, policy
from tests.labs import HOST, PEER, Lab, key_of, packed
from tests.wait import until

pytestmark = pytest.mark.usefixtures("own_affinity")

V4 = socket.AF_INET
PORTS = iter(range(6000, 7000))
QUIET_S = 1.5  # a closed socket's rule is gone by then
LONG_S = 60.0
Ends = tuple[socket.socket, socket.socket]  # the host's, the peer's


@contextmanager
def steering(lab: Lab, folder: Path, order: str) -> Iterator[Bed]:
    with a_bed(lab, folder, "bpf", policy(order=order, hold_down="50ms")) as bed:
        bed.start()
        yield bed


def a_socket(lab: Lab, role: str, port: int) -> socket.socket:
    """One that leaves nothing behind when it is closed, and takes a port that was used."""
    made = lab.open(role, V4, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    made.bind(((HOST if role == "host" else PEER)[V4], port))
    return made


def connecting(lab: Lab) -> tuple[FlowKey, Callable[[], Ends]]:
    """The host connects to the peer, from the same port each time."""
    here, there = next(PORTS), next(PORTS)
    listener = a_socket(lab, "peer", there)
    listener.listen(5)

    def opened() -> Ends:
        made = a_socket(lab, "host", here)
        made.connect((PEER[V4], there))
        return made, listener.accept()[0]

    key = FlowKey(Protocol.TCP, packed(HOST[V4]), here, packed(PEER[V4]), there)
    return key, opened


def talk(ends: Ends) -> None:
    for _ in range(20):
        ends[1].send(b"x")
        assert ends[0].recv(1) == b"x"


def close(ends: Ends) -> None:
    for end in reversed(ends):
        end.close()


def steered(bed: Bed, key: FlowKey, ends: Ends, cpu: int) -> int:
    """Talk until a rule leads it to this CPU, and return the rule's location."""
    row: Row | None = None

    def there() -> Row | None:
        nonlocal row
        talk(ends)
        row = bed.daemon.flow(key)
        if row is None or row["state"] != "steered" or bed.cpu_of(row["target_queue"]) != cpu:
            return None
        return row

    try:
        until(there, f"{key} is steered to CPU {cpu}", LONG_S)
    except AssertionError as late:
        raise AssertionError(f"{late}; its row is {row}") from late
    assert row is not None
    return int(row["filter"])


@pytest.mark.parametrize("order", ["strict", "immediate"])
def test_a_5_tuple_that_is_used_again_keeps_its_rule(lab: Lab, tmp_path: Path, order: str) -> None:
    key, opened = connecting(lab)
    cpu = next(each for each in CPUS if each != rss_cpu(lab, key))
    with steering(lab, tmp_path, order) as bed:
        os.sched_setaffinity(0, {cpu})  # not the daemon's
        ends = opened()
        assert key_of(ends[0], Protocol.TCP) == key
        location = steered(bed, key, ends, cpu)
        [queue] = [rule.queue for rule in lab.nic.filters() if rule.location == location]
        assert bed.daemon.process is not None
        bed.daemon.process.send_signal(signal.SIGSTOP)
        close(ends)
        ends = opened()
        talk(ends)
        assert lab.queue_of(ends[0]) == queue
        bed.daemon.process.send_signal(signal.SIGCONT)
        began_s = time.monotonic()

        def quiet() -> bool:
            talk(ends)
            assert lab.queue_of(ends[0]) == queue
            return time.monotonic() - began_s > QUIET_S

        until(quiet, "the time of the delete is over", LONG_S)
        assert bed.daemon.events("delete", "rewrite", "refused") == []
        assert location in {rule.location for rule in lab.nic.filters()}
        assert steered(bed, key, ends, cpu) == location
        close(ends)
        until(
            lambda: location not in {rule.location for rule in lab.nic.filters()},
            "the rule goes with the last socket", LONG_S,
        )  # fmt: skip
