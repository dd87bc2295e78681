# SPDX-License-Identifier: GPL-2.0-or-later
"""`bench table`: a simulation that the real decisions make, and what it reports."""

from __future__ import annotations

import pytest

from bench import plot, table
from bench.table import CONTENDERS, Run


def test_filters_that_are_spent_where_they_pay_place_more() -> None:
    found = {each: table.measured(16, each, 1, flows=120) for each in CONTENDERS}
    assert found["rss"].rules == found["rss"].writes == 0
    assert found["rss"].placed < found["first come"].placed < found["worth"].placed
    assert all(each.rules <= 16 for each in found.values())


def test_flows_of_one_port_leave_filters_to_others() -> None:
    alone, ports = (table.measured(96, each, 1, flows=120) for each in ("worth", "worth, ports"))
    assert ports.placed >= alone.placed
    assert ports.rules < alone.rules


def test_it_is_compared_with_who_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(plot, "bars", lambda name, *_, **__: drawn.append(name))
    runs = [Run(8, each, 0.5, 8, 8) for each in CONTENDERS]
    assert all(target.met for target in table.report(runs).targets)
    worse = [each._replace(placed=0.4) if each.contender == "worth" else each for each in runs]
    assert not all(target.met for target in table.report(worse).targets)
    assert drawn == ["table", "table"]
