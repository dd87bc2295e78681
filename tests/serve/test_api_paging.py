# SPDX-License-Identifier: GPL-2.0-or-later
"""Pages of a table that changes between them: complete, and nothing twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atfnd.engine.table.slots import FlowSlots
from atfnd.model import FlowState
from tests.serve.asking import get
from tests.serve.published import Serving, flow, key, serving, three_flows


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path / "atfnd.sock", three_flows()) as running:
        yield running


def walk(daemon: Serving, between: Callable[[], None], query: str = "") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    cursor: int | None = 0
    while cursor is not None:
        page = get(daemon, f"/v1/flows?limit=1000&cursor={cursor}{query}")
        assert len(page["flows"]) <= 1000
        rows += page["flows"]
        cursor = page["next"]
        daemon.do(between)
    return rows


def test_paging_is_complete_while_flows_come_and_go(daemon: Serving) -> None:
    """Of 5,000 flows 4,000 stay; the others go, and as many come, between every two pages."""
    source = daemon.source
    stay = {n for n in range(50_000, 55_000) if n % 5}
    go = iter([n for n in range(50_000, 55_000) if n not in stay])
    come = iter(range(20_000, 30_000))

    def fill() -> None:
        for n in range(3):
            source.table.remove(key(40_000 + n))
        source.fill(range(50_000, 55_000))

    def churn() -> None:
        for _ in range(150):
            source.table.remove(key(next(go)))
            source.table.put(flow(next(come)))
            source.table.put(flow(next(come)))

    daemon.do(fill)
    cookies = [row["cookie"] - 1_000_000 for row in walk(daemon, churn)]
    seen = [n for n in cookies if n >= 50_000]
    assert len(seen) == len(set(seen))
    assert stay <= set(seen)


def test_a_filter_pages_through_the_whole_table(daemon: Serving) -> None:
    def fill() -> None:
        for n in range(3000):
            state = FlowState.OVERFLOW if n % 100 == 0 else FlowState.STEERED
            daemon.source.table.put(flow(n, state))

    daemon.do(fill)
    assert len(walk(daemon, lambda: None, "&state=overflow")) == 30


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 20), st.booleans())), st.integers(1, 7))
def test_slots_keep_their_flow(changes: list[tuple[int, bool]], step: int) -> None:
    """Against a plain set: who stays from the first page to the last is met exactly once."""
    slots = FlowSlots()
    slot = {n: slots.add(flow(n)) for n in range(10)}
    present, always = set(range(10)), set(range(10))
    met: list[int] = []
    at = 0
    work = iter(changes)
    while at < len(slots):
        met += [f.key.remote_port for f in slots[at : at + step] if f is not None]
        at += step
        n, add = next(work, (0, True))
        if add and n in present:
            slots.replace(slot[n], flow(n))
        elif add:
            slot[n] = slots.add(flow(n))
            present.add(n)
        elif n in present:
            slots.drop(slot.pop(n))
            present.discard(n)
            always.discard(n)
    assert {f.key.remote_port for f in slots if f is not None} == present
    assert all(met.count(n) == 1 for n in always)


def test_slots_are_used_again() -> None:
    slots = FlowSlots()
    for n in range(1000):
        slots.drop(slots.add(flow(n)))
    assert len(slots) <= 1
