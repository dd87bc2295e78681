# SPDX-License-Identifier: GPL-2.0-or-later
"""Which sockets listen on a port, and which threads read its connections."""

from __future__ import annotations

import pytest

from atfnd.engine.filters.listeners import Listeners
from atfnd.engine.filters.readers import Readers
from atfnd.engine.table.flow_table import FlowTable
from atfnd.model import FlowKey, Listening, Thread, ThreadReads
from tests.values import key

__all__: list[str] = []

SECOND_NS = 10**9
PORT = key(0)._replace(remote=bytes(4), remote_port=0)
ANYWHERE = PORT._replace(local=bytes(4))
OTHER_PORT = PORT._replace(local_port=8080)
ONE, TWO = (Thread(tid, tid, "app", None) for tid in (1, 2))


def listening(cookie: int, port: FlowKey = PORT, thread: Thread | None = None) -> Listening:
    return Listening(5, cookie, port, 1, thread)


def opened(*events: Listening, table: FlowTable | None = None) -> Listeners:
    listeners = Listeners()
    for each in events:
        listeners.opened(each, FlowTable(8) if table is None else table)
    return listeners


def reads(thread: Thread, at_ns: int = 0) -> ThreadReads:
    return ThreadReads(at_ns, key(1), 102, thread)


def test_a_port_is_closed_with_its_last_listener_and_open_with_the_next() -> None:
    listeners = opened(listening(1), listening(2))
    assert listeners.closed(1, 10)
    assert listeners.closed_ns == {}
    assert listeners.closed(2, 20)
    assert listeners.closed_ns == {PORT: 20}
    assert not listeners.closed(3, 30)
    listeners.opened(listening(4), FlowTable(8))
    assert listeners.closed_ns == {}


def test_who_listens_on_all_addresses_is_a_rival_of_who_listens_on_one() -> None:
    listeners = opened(listening(1), listening(2, ANYWHERE), listening(3, OTHER_PORT))
    assert {each.cookie for each in listeners.rivals(PORT)} == {1, 2}


@pytest.mark.parametrize("port", [PORT, ANYWHERE])
def test_a_port_is_named_once_when_two_threads_read_its_connections(port: FlowKey) -> None:
    listeners = opened(listening(1, port))
    assert listeners.read(reads(ONE)) is None
    assert listeners.read(reads(TWO)) == port
    assert listeners.read(reads(ONE)) is None
    assert str(listeners.several(PORT)) == "threads 1 and 2 both read its connections"
    assert listeners.several(OTHER_PORT) is None


def test_nobody_reads_for_a_port_on_which_nobody_listens() -> None:
    listeners = opened(listening(1, OTHER_PORT))
    assert [listeners.read(reads(each)) for each in (ONE, TWO)] == [None, None]
    assert listeners.readers == {}


def test_the_next_listener_is_not_judged_by_who_read_for_the_last() -> None:
    listeners = opened(listening(1))
    listeners.read(reads(ONE))
    listeners.closed(1, 10)
    listeners.opened(listening(2), FlowTable(8))
    assert listeners.read(reads(TWO, 20)) is None
    assert listeners.several(PORT) is None


def heard(*reads: tuple[Thread, float]) -> bool:
    """After these reads, with their times in seconds: several threads serve the port."""
    known = Readers()
    for thread, at_s in reads:
        known.heard(thread, int(at_s * SECOND_NS))
    return known.why_no_filter() is not None


def test_threads_read_together_within_ten_seconds() -> None:
    assert heard((ONE, 0), (TWO, 9.9))
    assert not heard((ONE, 0), (TWO, 10))


def test_one_thread_serves_alone_after_a_minute() -> None:
    """Counted from its first read without the other one; a read of the other begins it anew."""
    both = (ONE, 0), (TWO, 1)
    alone = tuple((ONE, at_s) for at_s in (12, 30, 60, 71))
    assert heard(*both, *alone)
    assert not heard(*both, *alone, (ONE, 72))
    assert heard(*both, *alone[:3], (TWO, 65), (ONE, 76), (ONE, 100))


def test_a_port_is_shared_if_several_threads_read_what_one_socket_accepts() -> None:
    listeners = opened(listening(1), listening(2, OTHER_PORT))
    assert listeners.shared_ports() == frozenset()
    listeners.read(reads(ONE))
    assert listeners.shared_ports() == frozenset()
    listeners.read(reads(TWO))
    assert listeners.shared_ports() == {PORT.local_port}
    listeners.opened(listening(3), FlowTable(8))  # SO_REUSEPORT: each thread may have its own
    assert listeners.shared_ports() == frozenset()
