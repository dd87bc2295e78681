# SPDX-License-Identifier: GPL-2.0-or-later
"""Which rule catches a flow, and how a match is written."""

from __future__ import annotations

import pytest

from atfnd.model import FlowKey, Match, Protocol
from atfnd.serve.api.nic_views import match_text
from atfnd.serve.explain.chain import catching_filter, covers
from tests.serve.published import key, rule


def test_rules_are_tried_in_location_order() -> None:
    late, early = rule(50, Match.of(key(1)), 1), rule(2, Match.of(key(1)), 2)
    assert catching_filter([late, early], key(1)) == early
    assert catching_filter([late, early], key(2)) is None


@pytest.mark.parametrize(
    ("match", "caught"),
    [
        (Match(4, None, None, 0, None, 0, None, None), True),
        (Match(6, None, None, 0, None, 0, None, None), False),
        (Match(4, Protocol.UDP, None, 0, None, 0, None, None), False),
        (Match(4, None, bytes([10, 9, 0, 0]), 16, None, 0, None, None), True),
        (Match(4, None, bytes([10, 8, 0, 0]), 16, None, 0, None, None), False),
        (Match(4, None, bytes([10, 8, 0, 0]), 15, None, 0, None, None), True),
        (Match(4, None, None, 0, bytes([10, 0, 0, 2]), 32, 40_000, 5201), True),
        (Match(4, None, None, 0, bytes([10, 0, 0, 3]), 32, 40_000, 5201), False),
        (Match(4, None, None, 0, None, 0, None, 40_000), False),
    ],
)
def test_what_a_match_covers(match: Match, caught: bool) -> None:
    assert covers(match, key(40_000)) is caught


def test_a_rule_for_one_remote_does_not_cover_an_open_socket() -> None:
    open_ended = FlowKey(Protocol.UDP, bytes(4), 53, bytes(4), 0)
    assert not covers(Match(4, None, bytes([10, 9, 0, 0]), 16, None, 0, None, 53), open_ended)
    assert covers(Match.of(open_ended), open_ended)


def test_how_a_match_is_written() -> None:
    assert match_text(Match.of(key(40_000))) == "tcp from 10.9.0.1:40000 to 10.0.0.2:5201"
    v6 = Match(6, None, b"\x20\x01" + bytes(14), 32, None, 0, None, 53)
    assert match_text(v6) == "ipv6 any from 2001::/32 to *:53"
