# SPDX-License-Identifier: GPL-2.0-or-later
"""Filters of a NIC in every class of driver: what ethtool(8) lists is what was asked for."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from atfnd.model import Filter, Match, Protocol
from atfnd.nic import Nic
from tests.guest.filters import V4, V6, add_foreign, listed, match_of, shown
from tests.guest.simlab import a_simlab, ethtool

NET6 = bytes.fromhex("fd0a") + bytes(14)
MATCHES = [
    *(match_of(1, protocol, family) for family in (4, 6) for protocol in (6, 17)),
    Match(4, 6, None, 0, V4[1], 32, None, 443),
    Match(4, 17, None, 0, None, 0, None, 53),
    Match(4, 6, b"\x0a\x01\0\0", 16, V4[1], 32, 1000, None),
    Match(4, 6, b"\x80\0\0\0", 1, None, 0, None, None),
    Match(6, 17, NET6, 16, None, 0, None, 53),
    Match(6, 6, None, 0, V6[1], 127, 7, 7)._replace(dst=V6[1][:15] + b"\0"),
    Match(4, 47, V4[0], 32, None, 0, None, None),
    Match(4, None, V4[0], 32, V4[1], 32, None, None),
    Match(6, 47, None, 0, V6[1], 128, None, None),
    Match(6, None, NET6, 16, None, 0, None, None),
]
SLOTS = 16


@pytest.fixture(scope="module", params=["explicit", "any", "both"])
def nic(request: pytest.FixtureRequest) -> Iterator[Nic]:
    with a_simlab(table=SLOTS, location=request.param) as lab:
        yield lab.nic


@pytest.fixture
def clean(nic: Nic) -> Iterator[Nic]:
    """A NIC without filters, before and after."""
    yield nic
    for location in listed():
        ethtool("-N", nic.name, "delete", location)


def refusal(call: object, *arguments: object) -> int | None:
    assert callable(call)
    with pytest.raises(OSError, match=r".") as refused:
        call(*arguments)
    return refused.value.errno


def test_what_is_asked_for_is_listed(clean: Nic) -> None:
    for match in MATCHES:
        location = clean.insert(match, 2)
        rule = Filter(location, match, 2)
        assert listed() == {location: shown(rule)}
        assert clean.filters() == [rule]
        assert clean.filter(location) == rule
        clean.delete(location)
        assert listed() == {}
        assert clean.filters() == []
        assert clean.filter(location) is None


def test_a_filter_gets_another_queue_and_stays_one(clean: Nic) -> None:
    match = match_of(1)
    other = clean.insert(match_of(2), 1)
    location = clean.insert(match, 1)
    for queue in (2, 0, 0, 3):  # the same once more: written anew
        location = clean.insert(match, queue, location)
        assert listed().keys() == {other, location}
        assert listed()[location] == shown(Filter(location, match, queue))
    assert clean.filter(other) == Filter(other, match_of(2), 1)


def test_a_full_table_is_enospc_until_there_is_room(clean: Nic) -> None:
    foreign = add_foreign("flow-type tcp4 dst-port 22 action 0")
    locations = [clean.insert(match_of(n), 1) for n in range(SLOTS - 1)]
    assert {foreign, *locations} == set(range(SLOTS))
    before = listed()
    for _ in range(2):
        assert refusal(clean.insert, match_of(99), 1) == errno.ENOSPC
    assert listed() == before
    ethtool("-N", clean.name, "delete", foreign)
    assert clean.insert(match_of(99), 1) == foreign
    clean.delete(locations[3])
    assert clean.insert(match_of(98), 1) == locations[3]


def test_what_cannot_be_is_refused(clean: Nic) -> None:
    location = clean.insert(match_of(1), 1)
    before = listed()
    free = next(at for at in range(SLOTS) if at != location)
    assert refusal(clean.insert, match_of(2), 4) == errno.EINVAL  # of four queues
    assert refusal(clean.insert, match_of(2), 1, location) == errno.EEXIST
    assert refusal(clean.insert, match_of(2), 1, free) == errno.ENOENT
    assert refusal(clean.delete, free) == errno.ENOENT
    assert refusal(clean.delete, SLOTS + 100) == errno.ENOENT
    sctp = match_of(2, Protocol.SCTP)
    assert refusal(clean.insert, sctp, 1) == errno.EOPNOTSUPP
    assert listed() == before
    clean.delete(location)
    assert clean.insert(match_of(3), 1) == location  # no refused one has taken it


FOREIGN = [
    "flow-type tcp4 src-ip 10.0.0.1 m 0.255.0.255 action 1",
    "flow-type udp4 dst-port 4660 m 255 action 2",
    "flow-type tcp6 dst-ip fd09::1 m ff00:: dst-port 80 action 3",
    "flow-type tcp4 src-ip 10.0.0.2 dst-ip 10.0.0.1 src-port 5 dst-port 443 action -1",
]


def test_a_foreign_filter_of_another_shape_is_reported_as_it_is(clean: Nic) -> None:
    """Given to `ethtool -N` again, what we say of it makes the same filter."""
    for words in FOREIGN:
        location = add_foreign(words)
        before = listed()
        (rule,) = clean.filters()
        assert (rule.location, rule.match) == (location, None)
        assert rule.queue == (None if words.endswith("-1") else int(words.split()[-1]))
        assert rule.other is not None
        ethtool("-N", clean.name, "delete", location)
        assert listed() == {}
        add_foreign(rule.other if clean.caps().location_any else f"{rule.other} loc {location}")
        assert listed() == before
        assert clean.filters() == [rule]
        ethtool("-N", clean.name, "delete", location)


def test_a_foreign_filter_to_an_rss_context_is_reported_as_it_is(clean: Nic) -> None:
    ethtool("-X", clean.name, "context", "new", "equal", 2)
    try:
        location = add_foreign("flow-type tcp4 dst-port 80 context 1")
        (rule,) = clean.filters()
        assert rule == Filter(
            location, None, None, None, "flow-type tcp4 dst-port 80 action 0 context 1"
        )
        ethtool("-N", clean.name, "delete", location)
    finally:
        ethtool("-X", clean.name, "context", 1, "delete")


OF_OUR_SHAPES = {
    "flow-type tcp4 dst-port 22 action 1": Match(4, 6, None, 0, None, 0, None, 22),
    "flow-type udp6 src-ip fd0a::3 src-port 1001 action 2": Match(
        6, 17, V6[0], 128, None, 0, 1001, None
    ),
    "flow-type ip4 src-ip 10.1.2.0 m 0.0.0.255 l4proto 47 action 0": Match(
        4, 47, b"\x0a\x01\x02\0", 24, None, 0, None, None
    ),
    "flow-type ip6 dst-ip fd09::1 action 3": Match(6, None, None, 0, V6[1], 128, None, None),
}


def test_a_foreign_filter_of_our_shapes_is_read(clean: Nic) -> None:
    for words, match in OF_OUR_SHAPES.items():
        location = add_foreign(words)
        assert clean.filter(location) == Filter(location, match, int(words.split()[-1]))


def test_foreign_filters_before_and_meanwhile_stay_as_they_are(clean: Nic) -> None:
    foreign = {add_foreign(words) for words in FOREIGN}
    first = {at: lines for at, lines in listed().items() if at in foreign}
    ours = {clean.insert(match_of(n), 1): match_of(n) for n in range(3)}
    later = add_foreign("flow-type udp4 dst-port 53 action 0")
    first[later] = listed()[later]
    for location, match in list(ours.items()):
        del ours[location]
        ours[clean.insert(match, 2, location)] = match
    ours[clean.insert(match_of(7), 3)] = match_of(7)
    assert {at: lines for at, lines in listed().items() if at not in ours} == first
    for location in ours:
        clean.delete(location)
    assert listed() == first
