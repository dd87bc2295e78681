# SPDX-License-Identifier: GPL-2.0-or-later
"""Which flows a filter for many catches: one that is taken for narrower than it is moves flows of
others, one that is taken for wider leaves flows without a filter."""

from __future__ import annotations

import pytest

from atfnd.engine.table.wide_key import covers, may_catch, meet, overlap
from atfnd.model import FlowKey, Match, Protocol
from tests.values import key

__all__: list[str] = []

ANY = bytes(4)
PREFIX = key(0)._replace(remote=bytes([10, 1, 0, 0]), remote_port=0, remote_prefix=24)
PORT = key(0)._replace(remote=ANY, remote_port=0)
REMOTE_PORT = PREFIX._replace(local_port=0, remote_port=1000)


def test_a_prefix_covers_the_flows_of_its_network_to_its_port() -> None:
    assert covers(PREFIX, key(1))
    assert not covers(PREFIX, key(256))  # 10.1.1.0
    assert not covers(PREFIX, key(1)._replace(local_port=80))


@pytest.mark.parametrize(
    "wider",
    [
        PREFIX._replace(local=ANY),
        PREFIX._replace(local_port=0),
        PREFIX._replace(remote=bytes([10, 1, 0, 0]), remote_prefix=16),
    ],
)
def test_what_is_wider_is_not_covered_though_they_share_flows(wider: FlowKey) -> None:
    assert overlap(PREFIX, wider)
    assert covers(wider, PREFIX)
    assert not covers(PREFIX, wider)


def test_a_remote_port_covers_no_flows_from_any_port() -> None:
    assert overlap(REMOTE_PORT, PREFIX._replace(local_port=0))
    assert not covers(REMOTE_PORT, PREFIX._replace(local_port=0))


def test_no_flow_goes_from_a_service_to_a_service() -> None:
    assert overlap(PORT, REMOTE_PORT)
    assert not meet(PORT, REMOTE_PORT)
    assert not meet(REMOTE_PORT, PORT)
    assert meet(PORT, PREFIX)


def test_a_filter_of_which_nothing_is_known_may_catch_everything() -> None:
    assert may_catch(None, key(1))


def test_a_filter_of_another_program_is_no_rival_where_no_packet_matches_both() -> None:
    """Its flows would else be left without a filter."""
    exact = Match.of(key(1))
    assert may_catch(exact, key(1))
    assert not may_catch(exact._replace(family=6), key(1))
    assert not may_catch(exact._replace(protocol=Protocol.UDP), key(1))
    assert may_catch(exact._replace(protocol=None), key(1))
    assert not may_catch(exact._replace(src_port=1001), key(1))
    assert not may_catch(exact._replace(dst_port=80), key(1))


def test_of_two_prefixes_the_shorter_says_whether_they_meet() -> None:
    theirs = Match.of(PREFIX)._replace(src=bytes([10, 1, 0, 0]), src_prefix=16)
    assert may_catch(theirs, key(256))
    assert may_catch(theirs, PREFIX)
    assert not may_catch(theirs, key(1)._replace(remote=bytes([10, 2, 0, 1])))
    ours = theirs._replace(src=None, src_prefix=0, dst=bytes([10, 0, 0, 0]), dst_prefix=24)
    assert may_catch(ours, key(1))
    assert may_catch(ours, PORT._replace(local=ANY))
    assert not may_catch(ours, key(1)._replace(local=bytes([10, 0, 1, 1])))
