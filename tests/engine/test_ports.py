# SPDX-License-Identifier: GPL-2.0-or-later
"""Which flows a port's filter catches: one that is taken for narrower than it is moves flows of
others, one that is taken for wider leaves flows without a filter."""

from __future__ import annotations

import pytest

from atfnd.model import FlowKey, Protocol
from tests.values import key

__all__: list[str] = []

ANY = bytes(4)
PORT = key(0)._replace(remote=ANY, remote_port=0)
EVERYWHERE = PORT._replace(local=ANY)


def test_a_port_covers_the_connections_to_it_from_any_remote() -> None:
    assert PORT.covers(key(1))
    assert EVERYWHERE.covers(key(256))


@pytest.mark.parametrize(
    "other",
    [
        key(1)._replace(local_port=80),
        key(1)._replace(local=bytes([10, 0, 1, 1])),
        key(1)._replace(protocol=Protocol.UDP),
        FlowKey(Protocol.TCP, bytes(16), 443, bytes(15) + b"\1", 1000),
    ],
)
def test_a_port_covers_no_other_flow(other: FlowKey) -> None:
    assert not PORT.covers(other)
    assert not PORT.overlaps(other)


def test_a_port_of_every_address_shares_connections_with_that_of_one() -> None:
    assert EVERYWHERE.covers(PORT)
    assert not PORT.covers(EVERYWHERE)
    assert PORT.overlaps(EVERYWHERE)
    assert EVERYWHERE.overlaps(PORT)
