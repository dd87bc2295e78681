# SPDX-License-Identifier: GPL-2.0-or-later
"""`bench pairs-cost` counts what it has forwarded, and nothing else; what it takes for the cost."""

from __future__ import annotations

import pytest

from bench import pairs_cost

__all__: list[str] = []

pytestmark = pytest.mark.usefixtures("own_affinity")


def test_only_datagrams_that_are_forwarded_are_counted() -> None:
    found, counted = pairs_cost.measured(turns=2, datagrams=50)
    assert counted == 2 * pairs_cost.BEST_OF * 50
    assert all(len(each) == 2 for series in found.values() for each in series.values())


def test_the_packet_that_is_sent_is_no_part_of_the_cost_of_the_forwarded_one() -> None:
    own = {"detached": [100.0, 110.0], "attached": [105.0, 117.0]}
    both = {"detached": [200.0, 200.0], "attached": [230.0, 240.0]}
    sent, forwarded = pairs_cost.added({"own": own, "forwarded": both})
    assert list(sent) == [5, 7]
    assert list(forwarded) == [25, 33]
