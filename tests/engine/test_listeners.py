# SPDX-License-Identifier: GPL-2.0-or-later
"""Which sockets listen on a port, and which threads read its connections."""

from __future__ import annotations

import pytest

from atfnd.engine.filters.listeners import Asked, Listeners
from atfnd.engine.filters.readers import Readers
from atfnd.engine.table.flow_table import FlowTable
from atfnd.model import FlowKey, Listening, Thread, ThreadReads
from atfnd.model.reason import Code
from tests.values import flow, key

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


def with_entry(cookie: int) -> FlowTable:
    table = FlowTable(8)
    table.put(flow(0, key=PORT, cookie=cookie))
    return table


def cookie_of_entry(table: FlowTable) -> int:
    entry = table.get(PORT)
    assert entry is not None
    return entry.cookie


def test_a_port_is_closed_with_its_last_listener_and_open_with_the_next() -> None:
    listeners = opened(listening(1), listening(2))
    assert listeners.closed(1, 10)
    assert listeners.closed_ns == {}
    assert listeners.closed(2, 20)
    assert listeners.closed_ns == {PORT: 20}
    assert not listeners.closed(3, 30)
    listeners.opened(listening(4), FlowTable(8))
    assert listeners.closed_ns == {}


def test_the_rule_of_an_earlier_listener_serves_the_next() -> None:
    """And it keeps the one that it serves, as long as that is open."""
    table = with_entry(cookie=9)
    listeners = opened(listening(1), table=table)
    assert cookie_of_entry(table) == 1
    listeners.opened(listening(2), table)
    assert cookie_of_entry(table) == 1


def test_a_list_of_all_listeners_keeps_the_threads_that_are_known() -> None:
    """A list does not say which thread listens."""
    listeners = opened(listening(1, thread=ONE), listening(2, OTHER_PORT))
    listeners.found([listening(1)], FlowTable(8), 70)
    assert [each.thread for each in listeners.rivals(PORT)] == [ONE]
    assert listeners.closed_ns == {OTHER_PORT: 70}


def test_who_listens_on_all_addresses_is_a_rival_of_who_listens_on_one() -> None:
    listeners = opened(listening(1), listening(2, ANYWHERE), listening(3, OTHER_PORT))
    assert {each.cookie for each in listeners.rivals(PORT)} == {1, 2}


def test_a_closed_port_is_in_use_until_its_rule_is_gone() -> None:
    """So that an audit of sockets does not end it."""
    table = with_entry(cookie=1)
    listeners = opened(listening(1), listening(3, OTHER_PORT), table=table)
    listeners.closed(1, 10)
    assert {(each.cookie, each.key) for each in listeners.uses(table, 20)} == {
        (1, PORT),
        (3, OTHER_PORT),
    }


def test_what_is_forgotten_of_a_port_without_a_rule() -> None:
    listeners = opened(listening(1))
    listeners.unwanted.add(PORT)
    listeners.asked[PORT], listeners.why_not[PORT] = Asked(5, 2), Code.UNWANTED()
    listeners.forget(PORT)
    assert (listeners.unwanted, listeners.asked, listeners.why_not) == (set(), {}, {})


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


def test_a_restart_begins_the_minute_anew() -> None:
    known = Readers()
    for thread, at_s in ((ONE, 0), (TWO, 1), (ONE, 12)):
        known.heard(thread, at_s * SECOND_NS)
    known.restarted()
    known.heard(ONE, 80 * SECOND_NS)
    assert known.why_no_filter() is not None
    known.heard(ONE, 140 * SECOND_NS)
    assert known.why_no_filter() is None


def test_many_readers_are_counted() -> None:
    known = Readers()
    for tid in (7, 3, 5, 9):
        known.heard(Thread(tid, tid, "app", None), tid)
    assert str(known.why_no_filter()) == "threads 3, 5 and 2 more read its connections"


def test_a_port_is_shared_if_several_threads_read_what_one_socket_accepts() -> None:
    listeners = opened(listening(1), listening(2, OTHER_PORT))
    assert listeners.shared_ports() == frozenset()
    listeners.read(reads(ONE))
    assert listeners.shared_ports() == frozenset()
    listeners.read(reads(TWO))
    assert listeners.shared_ports() == {PORT.local_port}
    listeners.opened(listening(3), FlowTable(8))  # SO_REUSEPORT: each thread may have its own
    assert listeners.shared_ports() == frozenset()
