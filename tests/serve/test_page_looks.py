# SPDX-License-Identifier: GPL-2.0-or-later
"""How the page looks: light and dark, on a wide screen and on a phone. Pictures are in build/page.

The page's clock is fast, so that its line is one of minutes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from atfnd.model import (
    CpuTime,
    Flow,
    FlowKey,
    FlowState,
    Move,
    NapiTime,
    NicReads,
    NicView,
    Protocol,
    QueueStats,
    ReadBytes,
    Status,
)
from tests.chromium import chromium
from tests.looked_at import LookedAt
from tests.paged import free_port, paging
from tests.published import Published, flow, lab
from tests.wait import until

__all__: list[str] = []

PICTURES = Path(__file__).parents[2] / "build" / "page"
TIMES = 40  # faster than time
WIDE, PHONE = 1400, 360
NOT_THERE = "core: no filter can be written, because the table of the NIC is full; RSS instead"
LONG = (
    "its thread runs on CPU 1; near llc: CPU 5 shares no cache with it, CPU 6 is isolated, CPU 7 "
    "is offline, and the queues of the others follow their threads; core instead: queue 1 is "
    "delivered there, and its filter waits until the old queue has drained"
)


class Office(Published):
    """Steering pays: locality rises from a quarter to nearly all, with a time without reads."""

    def __init__(self) -> None:
        super().__init__()
        self._looks = count(1)
        self._passed = 0
        thread = flow(1).thread
        assert thread is not None
        nginx = replace(thread, tid=811, pid=811, comm="nginx")
        far = bytes.fromhex("20010db80000000000000000ffff0001")
        near = bytes.fromhex("20010db800000000000000000000abcd")
        long_key = FlowKey(Protocol.TCP, near, 65_443, far, 61_234)
        for each in (
            flow(40_001)._replace(move=Move("hold", "proven", "", 0, 40_000)),
            flow(40_002)._replace(thread=nginx, app_cpu=2, rx_cpu=0, rx_queue=0, target_cpu=2,
                                  state=FlowState.WANTED, location=None, fell_back=NOT_THERE),
            flow(40_003)._replace(thread=nginx, app_cpu=1, rx_cpu=None, rx_queue=None, why=LONG),
            flow(1)._replace(key=long_key, app_cpu=1, rx_cpu=1, rx_queue=1, target_cpu=1, why=LONG),
        ):  # fmt: skip
            self.table.put(each)

    def status(self) -> Status:
        self._passed += 1
        passed = self._passed
        local = min(24 + 2 * passed, 98)
        recent = ReadBytes() if 15 <= passed < 20 else ReadBytes(local, 100 - local)
        reads = NicReads("lab:lab", ReadBytes(980, 20), ReadBytes(50, 150), recent, 10**10)
        moved = ("birth", "verified", passed // 3), ("hold", "proven", passed // 5)
        return replace(super().status(), reads=(reads,), moves=moved)

    def flows(self) -> Sequence[Flow | None]:
        now_ns = time.monotonic_ns()
        for each in list(self.table):
            more = each._replace(bytes=each.bytes + 300_000_000 // each.cookie, used_ns=now_ns)
            self.table.put(more._replace(moved_ns=now_ns - 200 * 10**9))
        return super().flows()

    def nics(self) -> list[NicView]:
        each = next(self._looks)
        packets = (0, 40, 700, 250_000)
        counted = tuple(QueueStats(n, rate * each, 0, 0, 0) for n, rate in enumerate(packets))
        one = lab()
        shown = replace(one, stats=replace(one.stats, queues=counted))
        return [shown, self.views[1]]

    def cpu_time(self) -> tuple[CpuTime, Sequence[NapiTime]]:
        at_ns = self._passed * 10**9
        busy_ns = {n: at_ns * percent // 100 for n, percent in enumerate((3, 12, 58, 100))}
        return CpuTime(at_ns, busy_ns, dict.fromkeys(busy_ns, 0), {}, {}, {}), []


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LookedAt]:
    port = free_port()
    with paging(Office(), port), chromium(tmp_path_factory.mktemp("chromium")) as tab:
        tab.hurry(TIMES)
        made = LookedAt(tab, port)
        made.open(pixels=WIDE)
        until(lambda: percents(made)[-1:] == [98], "the line has reached its height", 60)
        yield made


def percents(page: LookedAt) -> list[float]:
    """Of the line of read locality."""
    line = page.attribute(".locality path", "d").replace("h0", "").replace("M", "L")
    return [100 - float(each.split()[1]) for each in line.split("L") if each]


@pytest.mark.parametrize("pixels", [WIDE, PHONE])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read(page: LookedAt, scheme: str, pixels: int) -> None:
    page.tab.scheme(scheme)
    page.tab.width(pixels)
    page.tab.picture(PICTURES / f"{scheme}-{pixels}.png")
    page.fits()
    page.is_readable()
    page.is_by_itself()


def test_a_wide_screen_shows_all_columns(page: LookedAt) -> None:
    page.tab.width(WIDE)
    across = "document.querySelector('.across')"
    assert page.tab.value(f"{across}.scrollWidth <= {across}.clientWidth")


@pytest.mark.parametrize("pixels", [WIDE, PHONE])
def test_misplaced_rows_are_marked_by_more_than_a_colour(page: LookedAt, pixels: int) -> None:
    page.tab.width(pixels)
    edges = {
        placed: page.style(f'#flows [data-placed="{placed}"]', "borderLeftStyle")
        for placed in ("yes", "no", "unknown")
    }
    assert edges == {"yes": "none", "no": "solid", "unknown": "dotted"}
    assert page.texts('#flows [data-placed="no"] [data-of="placed"]') == ["✗ no"]
    assert page.texts('#flows [data-placed="unknown"] [data-of="placed"]') == ["not known"]
    assert sorted(page.column("placed")) == ["not known", "yes", "yes", "✗ no"]


def test_each_row_of_the_map_has_the_load_of_its_cpu_with_its_unit(page: LookedAt) -> None:
    assert page.texts("#heat .load")[:5] == ["3 %", "12 %", "58 %", "100 %", "–"]


def test_after_ten_minutes_the_line_ends(page: LookedAt) -> None:
    until(lambda: min(percents(page)) > 30, "what is older is not drawn", 60)
    assert percents(page)[-1] == 98
