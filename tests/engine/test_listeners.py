# SPDX-License-Identifier: GPL-2.0-or-later
"""Which sockets listen on a port, which flows its filter catches, and which threads read its
connections."""

from __future__ import annotations

import pytest

from atfnd.engine.filters.listeners import Listeners
from atfnd.engine.filters.readers import Readers
from atfnd.engine.table.flow_table import FlowTable
from atfnd.model import FlowKey, Listening, Protocol, Thread, ThreadReads
from tests.values import key

__all__: list[str] = []

SECOND_NS = 10**9
PORT = key(0)._replace(remote=bytes(4), remote_port=0)
ANYWHERE = PORT._replace(local=bytes(4))
OTHER_PORT = PORT._replace(local_port=8080)
ONE, TWO = (Thread(tid, tid, "app", None) for tid in (1, 2))


@pytest.mark.parametrize(
    ("other", "of_one", "of_all"),
    [
        (key(1), True, True),
        (key(1)._replace(local=bytes([10, 0, 1, 1])), False, True),
        (key(1)._replace(local_port=80), False, False),
        (key(1)._replace(protocol=Protocol.UDP), False, False),
        (FlowKey(Protocol.TCP, bytes(16), 443, bytes(15) + b"\1", 1000), False, False),
        (PORT, True, True),
        (ANYWHERE, False, True),
    ],
)
def test_a_port_covers_the_connections_to_it(other: FlowKey, of_one: bool, of_all: bool) -> None:
    """One that is taken for narrower than it is moves flows of others."""
    assert (PORT.covers(other), ANYWHERE.covers(other)) == (of_one, of_all)
    assert PORT.overlaps(other) is (of_one or other == ANYWHERE)


def opened(*ports: FlowKey) -> Listeners:
    """Sockets 1, 2, ... listen."""
    listeners = Listeners()
    for cookie, port in enumerate(ports, 1):
        listeners.opened(Listening(5, cookie, port, 1), FlowTable(8))
    return listeners


def reads(thread: Thread, at_ns: int = 0) -> ThreadReads:
    return ThreadReads(at_ns, key(1), 102, thread)


def test_who_listens_on_all_addresses_is_a_rival_of_who_listens_on_one() -> None:
    listeners = opened(PORT, ANYWHERE, OTHER_PORT)
    assert {each.cookie for each in listeners.rivals(PORT)} == {1, 2}


def test_the_next_listener_is_not_judged_by_who_read_for_the_last() -> None:
    listeners = opened(PORT)
    listeners.read(reads(ONE))
    listeners.closed(1, 10)
    listeners.opened(Listening(15, 2, PORT, 1), FlowTable(8))
    assert listeners.read(reads(TWO, 20)) is None
    assert listeners.several(PORT) is None


ALONE = tuple((ONE, at_s) for at_s in (12, 30, 60, 71))
BOTH = (ONE, 0), (TWO, 1)


@pytest.mark.parametrize(
    ("reads", "several"),
    [
        (((ONE, 0), (TWO, 9.9)), True),  # together within ten seconds
        (((ONE, 0), (TWO, 10)), False),
        ((*BOTH, *ALONE), True),
        ((*BOTH, *ALONE, (ONE, 72)), False),  # alone for a minute, from its first read on
        ((*BOTH, *ALONE[:3], (TWO, 65), (ONE, 76), (ONE, 100)), True),
    ],
)
def test_several_threads_serve_a_port(
    reads: tuple[tuple[Thread, float], ...], several: bool
) -> None:
    known = Readers()
    for thread, at_s in reads:
        known.heard(thread, int(at_s * SECOND_NS))
    assert (known.why_no_filter() is not None) is several


def test_a_port_is_shared_if_several_threads_read_what_one_socket_accepts() -> None:
    listeners = opened(PORT, OTHER_PORT)
    for thread, shared in ((ONE, set[int]()), (TWO, {PORT.local_port})):
        listeners.read(reads(thread))
        assert listeners.shared_ports() == shared
    listeners.opened(Listening(5, 3, PORT, 1), FlowTable(8))  # SO_REUSEPORT: one for each thread
    assert listeners.shared_ports() == frozenset()
