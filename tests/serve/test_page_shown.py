# SPDX-License-Identifier: GPL-2.0-or-later
"""The page in a browser, over a daemon of model values: a large machine, hostile names, light and
dark, a keyboard, a narrow window, a daemon that goes and comes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from atfnd.model import (
    Cpu,
    CpuTime,
    NapiTime,
    NicReads,
    NicView,
    QueueStats,
    ReadBytes,
    Status,
    Topology,
)
from tests.chromium import chromium
from tests.looked_at import LookedAt
from tests.paged import Paging, free_port, paging
from tests.published import Published, flow, lab
from tests.wait import until

__all__: list[str] = []

HOSTILE = [
    "<img src=x onerror=document.body.remove()>",
    "<script>document.title='taken'</script>",
    "\"><svg onload=document.title='taken'>",
    "</td></table><h1 id=planted>",
    "&lt;b&gt; ${1} {{1}} \u202e\x1b[31m",
]
CELLS = "#heat tbody td"
EVERY_MS = 2000  # as page.js has it
LONG_S = 120.0  # each look lays out a thousand rows


class Large(Published):
    """64 queues on the first of 256 CPUs, and as many flows as a test puts there."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: tuple[tuple[str, str, int], ...] = ()
        self.more = [0] * 64  # packets of each queue from one look to the next
        self.packets = [0] * 64
        self.reads_seen = True
        self.local: int | None = None  # percent of the bytes that were read lately
        self.busy: dict[int, float] = {}  # share of the time from one look to the next
        self.looks = 0

    def status(self) -> Status:
        recent = ReadBytes() if self.local is None else ReadBytes(self.local, 100 - self.local)
        reads = NicReads("lab:lab", ReadBytes(50, 50), ReadBytes(), recent, 10_000_000_000)
        measured = (reads,) if self.reads_seen else None
        return replace(super().status(), moves=self.moved, reads=measured)

    def cpu_time(self) -> tuple[CpuTime, Sequence[NapiTime]]:
        self.looks += 1
        at_ns = self.looks * 2 * 10**9
        busy_ns = {cpu: int(share * at_ns) for cpu, share in self.busy.items()}
        return CpuTime(at_ns, busy_ns, dict.fromkeys(busy_ns, 0), {}, {}, {}), []

    def nics(self) -> list[NicView]:
        self.packets = [n + more for n, more in zip(self.packets, self.more, strict=True)]
        counted = tuple(QueueStats(n, packets, 0, 0, 0) for n, packets in enumerate(self.packets))
        one = lab()
        queues = tuple(replace(one.queues[0], index=n, cpu=n) for n in range(64))
        return [replace(one, queues=queues, stats=replace(one.stats, queues=counted))]

    def topology(self) -> Topology:
        cpus = (Cpu(n, n != 255, 0, 0, n, (n,), (n,), False, False) for n in range(256))
        return Topology(tuple(cpus), ())

    def put(self, *ports: int, **changes: object) -> None:
        for port in ports:
            self.table.put(flow(port)._replace(**changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LookedAt]:
    with chromium(tmp_path_factory.mktemp("chromium")) as tab:
        yield LookedAt(tab, 0)


@pytest.fixture
def daemon() -> Iterator[tuple[int, Paging, Large]]:
    source, port = Large(), free_port()
    with paging(source, port) as made:
        yield port, made, source


@pytest.fixture
def page(browser: LookedAt, daemon: tuple[int, Paging, Large]) -> LookedAt:
    return LookedAt(browser.tab, daemon[0])


@pytest.fixture
def source(daemon: tuple[int, Paging, Large]) -> Large:
    return daemon[2]


@pytest.fixture
def made(daemon: tuple[int, Paging, Large]) -> Paging:
    return daemon[1]


def test_names_of_others_are_text(page: LookedAt, source: Large) -> None:
    thread = flow(1).thread
    assert thread is not None
    for n, name in enumerate(HOSTILE):
        hostile = replace(thread, comm=name, pid=n + 1, tid=n + 1)
        source.put(n, thread=hostile, rule_name=name, why=name)
    page.open()
    expected = sorted(f"{name} ({n + 1})" for n, name in enumerate(HOSTILE))
    assert sorted(page.column("comm")) == expected
    assert sorted(page.column("why")) == sorted(page.column("policy")) == sorted(HOSTILE)
    page.filter("<IMG onerror")
    assert page.column("why") == HOSTILE[:1]
    assert page.tab.value("document.title") == "atfnd"
    assert page.count("img, #planted, body script, svg:not(figure svg)") == 0
    page.is_by_itself()


def test_markup_is_refused_even_if_the_page_would_set_it(page: LookedAt) -> None:
    """What the policy of its content is for."""
    page.open()
    refused = "try { document.body.%s; 'set' } catch (fault) { fault.name }"
    assert page.tab.value(refused % "innerHTML = '<b>x</b>'") == "TypeError"
    assert page.tab.value("try { eval('1') } catch (fault) { fault.name }") == "EvalError"
    loads = "fetch('http://192.0.2.1/').then(() => 'loaded', () => 'refused')"
    assert page.tab.value(loads) == "refused"
    assert any("Content Security Policy" in each for each in page.tab.faults())


def test_64_queues_and_256_cpus(page: LookedAt, source: Large) -> None:
    source.more[7], source.more[63] = 6_000, 4_000_000
    source.put(1, rx_queue=63, rx_cpu=63, app_cpu=200)
    page.open()
    until(lambda: (page.heat(7, 7), page.heat(63, 63)) == (3, 5), "queues 7 and 63 are hot")
    assert page.heat(8, 8) == 0
    assert page.heat(7, 8) is None
    assert "packets/s arrive" in page.attribute('td[data-cpu="63"][data-queue="63"]', "title")
    read = page.text('td[data-cpu="200"][data-queue="63"]')
    assert (read or "").strip() == "1 flow"
    assert page.count(CELLS) == 65 * 64
    page.do("#every-cpu", "each.click()")
    until(lambda: page.count(CELLS) == 255 * 64, "all that are online are shown")
    assert page.texts("#heat tbody th")[-1].startswith("CPU 254 ")
    page.is_by_itself()


def test_the_fastest_1000_flows_are_shown_and_that_there_are_more(
    page: LookedAt, made: Paging, source: Large
) -> None:
    def fill(faster: int) -> None:
        now_ns = time.monotonic_ns()
        for n in range(1500):
            fast = 1_000_000 * faster * (n >= 1490)
            source.put(n + 1, bytes=2000 - n + fast, used_ns=now_ns)

    made.do(lambda: fill(0))
    page.open()
    assert page.count("#flows tbody") == 1000
    assert page.text("#cut") == "the fastest 1,000 of 1,500 flows"
    biggest = "tcp 10.0.0.2:5201 ← 10.9.0.1:1"  # as long as no rate is known
    assert page.column("flow")[0] == biggest
    faster = iter(range(1, 1000))

    def fastest() -> bool:
        made.do(lambda: fill(next(faster)))
        return sorted(page.column("flow")[:10]) == sorted(
            f"tcp 10.0.0.2:5201 ← 10.9.0.1:{n + 1}" for n in range(1490, 1500)
        )

    until(fastest, "the ten that have become fast come first", LONG_S)
    assert "bit/s" in page.column("rate")[0]
    page.filter("10.9.0.1:777 steered")
    assert page.column("flow") == ["tcp 10.0.0.2:5201 ← 10.9.0.1:777"]
    page.filter("no such")
    assert (page.column("flow"), page.text("#cut")) == ([], "0 that pass, of 1,500 flows")


def test_only_those_misplaced_and_those_of_which_it_is_not_known(
    page: LookedAt, source: Large
) -> None:
    source.put(1)
    source.put(2, rx_cpu=1, bytes=2)
    source.put(3, rx_cpu=None, rx_queue=None, bytes=1)
    page.open()
    assert page.text("#cut") == "3 flows"
    page.do("#misplaced", "each.click()")
    assert page.column("flow") == [f"tcp 10.0.0.2:5201 ← 10.9.0.1:{port}" for port in (2, 3)]
    assert page.column("placed") == ["✗ no", "not known"]
    assert page.text("#cut") == "2 that pass, of 3 flows: 1 misplaced, 1 not known"


def test_why_a_flow_is_not_where_its_policy_wants_it(page: LookedAt, source: Large) -> None:
    source.put(1, fell_back="no queue is delivered there; core instead")
    page.open()
    assert page.column("why") == ["no queue is delivered there; core instead"]


def line(page: LookedAt) -> list[list[tuple[float, float]]]:
    """The parts of the line of read locality: minutes ago, and percent."""
    parts = page.attribute(".locality path", "d").split("M")[1:]
    points = [[each.split() for each in part.replace("h0", "").split("L")] for part in parts]
    return [[(10 - float(x) / 100, 100 - float(y)) for x, y in part] for part in points]


def test_read_locality_over_time(page: LookedAt, made: Paging, source: Large) -> None:
    source.local = 25
    page.open()
    assert page.text("#locality") == "Now: 25.0 %. Since start: 50.0 % while armed."
    source.local = 75
    until(lambda: [y for _, y in line(page)[0]][-1:] == [75], "the line goes on")
    [[first, *_, last]] = line(page)
    assert first[1] == 25
    assert last[0] == pytest.approx(0, abs=0.05)
    assert page.attribute(".locality svg", "aria-label") == (
        "Read locality of the last 10 minutes: from 25.0 % to 75.0 %"
    )
    made.want(None)
    until(lambda: "does not answer" in (page.text("#connection") or ""), "it says so")
    made.want(page.port)
    until(lambda: len(line(page)) == 2, "nothing is drawn for the time without an answer")
    source.local = None
    until(lambda: (page.text("#locality") or "").startswith("No data read lately."), "it says so")
    assert {y for part in line(page) for _, y in part} == {25, 75}
    source.reads_seen = False
    until(lambda: (page.text("#locality") or "").startswith("Not measured: "), "it says so")
    assert not page.tab.value("document.querySelector('.locality').checkVisibility()")


def test_the_load_of_each_cpu(page: LookedAt, source: Large) -> None:
    source.busy = {0: 0.004, 7: 0.37, 63: 1.5}
    page.open()
    until(lambda: [page.load(n) for n in (0, 7, 63)] == [0, 37, 100], "each CPU has its load")
    assert page.load(8) is None


def test_moves_over_time(page: LookedAt, made: Paging, source: Large) -> None:
    source.moved = (("hold", "proven", 3),)
    page.open()
    assert page.texts(".totals td") == ["hold", "proven", "0", "3"]
    assert page.count("rect") == 0
    source.moved = (("gap", "violated", 2), ("hold", "proven", 8))
    rows = ["gap", "violated", "2", "2", "hold", "proven", "5", "8"]
    until(lambda: page.texts(".totals td") == rows, "those that ended are counted")
    reported = page.attribute('[data-by="verdict"] svg', "aria-label")
    assert reported == "Moves by verdict: proven 5, violated 2"
    assert page.texts('[data-by="mechanism"] li') == ["hold 5", "gap 2"]
    heights = "[...document.querySelectorAll('[data-by=\"verdict\"] rect')].map((each) => %s)"
    assert page.tab.value(heights % "each.height.baseVal.value") == pytest.approx(
        [500 / 7, 200 / 7]
    )


def test_forwarded_packets_only_where_they_are_asked_for(page: LookedAt, source: Large) -> None:
    page.open()
    assert source.pairs_wanted == []
    assert page.texts(".pairs td") == []
    page.do("#count-forwarded", "each.click()")
    rows = "document.querySelectorAll('.pairs tbody tr').length"
    until(lambda: page.tab.value(rows) == 3, "they are shown")
    assert page.texts(".pairs tr:first-child td") == [
        "lab:lab", "0", "0", "eth1", "0", "2", "LLC", "3K", "12 Mbit/s"
    ]  # fmt: skip
    assert page.text("#forwarded-said") == "30.0 % are received and sent on one CPU."
    source.unseen = "the kernel refuses the program"
    said = "Not counted: the kernel refuses the program."
    until(lambda: page.text("#forwarded-said") == said, "it says so")
    source.unseen, source.forwarded = None, ()
    until(lambda: page.text("#forwarded-said") == "No packet was forwarded.", "it says so")
    page.do("#count-forwarded", "each.click()")
    assert page.text("#forwarded-said") == ""
    page.is_by_itself()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_readable(page: LookedAt, made: Paging, source: Large, scheme: str) -> None:
    source.more[:6] = [0, 20, 600, 6_000, 60_000, 6_000_000]
    for n in range(6):
        source.put(n, rx_queue=n, app_cpu=n, rx_cpu=n)
    page.open(scheme)
    page.do("#count-forwarded", "each.click()")
    verdicts = ["proven", "verified", "quiet", "unproven", "violated", "no effect", "refused"]
    verdicts += ["deferred", "resync", "done"]
    ways = ["birth", "follow", "hold", "gap", "none"] * 2
    source.moved = tuple((how, each, 9) for how, each in zip(ways, verdicts, strict=True))
    until(lambda: page.count('[data-by="verdict"] rect') == 10, "each verdict has its bar")
    until(lambda: [page.heat(n, n) for n in range(6)] == [*range(6)], "each level is there")
    assert page.column("placed").count("✗ no") == 5
    page.is_readable()
    backs = {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}
    back = page.tab.value("getComputedStyle(document.body).backgroundColor")
    assert back == backs[scheme]
    made.want(None)
    until(lambda: "does not answer" in (page.text("#connection") or ""), "it says so")
    page.is_readable()


def test_the_daemon_may_go_and_come(page: LookedAt, made: Paging) -> None:
    page.open()
    made.want(None)
    until(lambda: "does not answer" in (page.text("#connection") or ""), "it says so")
    made.want(page.port)
    until(lambda: page.text("#connection") == "live", "it is live again")


def test_with_a_keyboard(page: LookedAt, source: Large) -> None:
    source.put(30, 4, 200)
    page.open()
    for _ in range(40):
        page.tab.key("Tab")
        if page.tab.value("document.activeElement.textContent") == "flow":
            break
    assert page.tab.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    ports = ["4", "30", "200"]
    for order, wanted in (("ascending", ports), ("descending", ports[::-1])):
        page.tab.key("Enter")
        assert page.attribute('#flows th[data-of="flow"]', "aria-sort") == order
        assert [each.rpartition(":")[2] for each in page.column("flow")] == wanted


def test_in_a_narrow_window(page: LookedAt, source: Large) -> None:
    source.put(1, why="because of a reason " * 20)
    page.open(pixels=360)
    page.fits()
    assert page.style("#flows td", "display") == "flex"


def test_it_asks_for_nothing_while_nobody_looks(page: LookedAt, source: Large) -> None:
    def a_while_later() -> int:
        """How much it asked for in a time in which it would three times, by its own timers."""
        before = len(page.tab.asked)
        page.tab.value(f"new Promise(over => setTimeout(over, {3 * EVERY_MS}))")
        return len(page.tab.asked) - before

    source.local = 25
    page.open()
    look = "Object.defineProperty(document, 'hidden', {{ value: {}, configurable: true }});"
    look += "document.dispatchEvent(new Event('visibilitychange'))"
    page.tab.value(look.format("true"))
    assert page.text("#connection") == "paused while hidden"
    assert a_while_later() == 0
    page.tab.value(look.format("false"))
    assert a_while_later() > 0
    until(lambda: len(line(page)) == 2, "nothing is drawn for the time while nobody looked")
