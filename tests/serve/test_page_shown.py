# SPDX-License-Identifier: GPL-2.0-or-later
"""The page in a browser, over a daemon of model values. One browser for all of it: its start takes
seconds. Pictures of the page are in build/page.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from atfnd.model import (
    Cpu,
    CpuTime,
    Finding,
    FlowKey,
    FlowState,
    GuardState,
    History,
    Level,
    Move,
    NapiTime,
    NicGuard,
    NicReads,
    NicView,
    Protocol,
    QueueStats,
    ReadBytes,
    Sample,
    SocketFound,
    Status,
    Topology,
)
from atfnd.model.reason import Code
from tests.serve.chromium import Tab, chromium
from tests.serve.paged import free_port, paging
from tests.serve.published import Published, flow, key, lab
from tests.wait import until

PICTURES = Path(__file__).parents[2] / "build" / "page"
WIDE, PHONE = 1400, 360
S = 10**9
HOSTILE = [
    "<img src=x onerror=document.body.remove()>",
    "<script>document.title='taken'</script>",
    "\"><svg onload=document.title='taken'>",
    "</td></table><h1 id=planted>",
    "&lt;b&gt; ${1} {{1}} \u202e\x1b[31m",
]
EVERY_MS = 2000  # as page.js has it
NOT_THERE = "core: no filter can be written, because the table of the NIC is full; RSS instead"
LONG = (
    "its thread runs on CPU 1; near llc: CPU 5 shares no cache with it, CPU 6 is isolated, CPU 7 "
    "is offline, and the queues of the others follow their threads; core instead: queue 1 is "
    "delivered there, and its filter waits until the old queue has drained"
)
STOPPED = NicGuard(
    "lab:lab", GuardState.STOPPED, 31, 2, 1, 0.124,
    "steering took +12.4% CPU per byte, by 31 pairs of slots",
)  # fmt: skip
VERDICTS = ["proven", "verified", "quiet", "unproven", "violated", "no effect", "refused", "done"]
WAYS = ["hold", "birth", "follow", "hold", "none", "gap", "none", "birth"]


class Office(Published):
    """An hour in which locality rises from a quarter to nearly all, with a time without reads."""

    def __init__(self) -> None:
        super().__init__()
        self.since_ns = time.monotonic_ns() - 4000 * S
        self.samples = [
            Sample(
                self.since_ns + (400 + 10 * n) * S,
                None if 90 <= n < 110 else min(0.25 + n / 300, 0.98),
                ((WAYS[n % 8], VERDICTS[n % 8], 1 + n % 5),) if n % 3 == 0 else (),
            )
            for n in range(360)
        ]
        self.guard = STOPPED
        self.looks = 0
        self.packets = (0, 40, 700, 250_000)  # of each queue, from one look to the next
        self.put(40_001, move=Move("hold", "proven", Code.DRAINS(), 0, 40_000))
        thread = flow(1).thread
        assert thread is not None
        nginx = replace(thread, tid=811, pid=811, comm="nginx")
        far = bytes.fromhex("20010db80000000000000000ffff0001")
        near = bytes.fromhex("20010db800000000000000000000abcd")
        long_key = FlowKey(Protocol.TCP, near, 65_443, far, 61_234)
        self.put(40_002, thread=nginx, app_cpu=2, rx_cpu=0, rx_queue=0, target_cpu=2,
                 state=FlowState.WANTED, location=None, fell_back=NOT_THERE)  # fmt: skip
        self.put(40_003, thread=nginx, app_cpu=1, rx_cpu=None, rx_queue=None, why=Code.KERNEL(LONG))
        self.put(
            1, key=long_key, app_cpu=1, rx_cpu=1, rx_queue=1, target_cpu=1, why=Code.KERNEL(LONG)
        )
        what = "irqbalance (pid 812) moves its interrupts 40-47: no queue stays on its CPU"
        self.findings += [
            Finding("lab:lab", Level.BLOCKER, "ntuple filters are off", "ethtool -K lab ntuple on"),
            Finding("eth1", Level.WARNING, what, "ban them in IRQBALANCE_ARGS"),
        ]

    def put(self, *ports: int, **changes: object) -> None:
        for port in ports:
            self.table.put(flow(port)._replace(**changes))  # type: ignore[arg-type]

    def status(self) -> Status:
        reads = NicReads(
            "lab:lab", ReadBytes(980, 20), ReadBytes(50, 150), ReadBytes(98, 2), 10 * S
        )
        moved = tuple((how, each, 9_000) for how, each in zip(WAYS, VERDICTS, strict=True))
        return replace(super().status(), since_ns=self.since_ns, reads=(reads,), moves=moved)

    def history(self) -> History:
        return History(10.0, tuple(self.samples))

    def nics(self) -> list[NicView]:
        self.looks += 1
        counted = (QueueStats(n, p * self.looks, 0, 0, 0) for n, p in enumerate(self.packets))
        one = lab()
        return [replace(one, stats=replace(one.stats, queues=tuple(counted))), self.views[1]]

    def cpu_time(self) -> tuple[CpuTime, Sequence[NapiTime]]:
        at_ns = self.looks * S
        busy_ns = {n: at_ns * percent // 100 for n, percent in enumerate((3, 12, 58, 100))}
        return CpuTime(at_ns, busy_ns, dict.fromkeys(busy_ns, 0), {}, {}, {}), []


class Large(Office):
    """64 queues on the first of 256 CPUs, and 1500 flows."""

    def __init__(self) -> None:
        super().__init__()
        for port in range(2, 1500):
            self.put(port, bytes=port)
        self.put(1, bytes=10**12, rx_queue=63, rx_cpu=63, app_cpu=200)

    def nics(self) -> list[NicView]:
        self.looks += 1
        packets = {7: 6_000 * self.looks, 63: 4_000_000 * self.looks}
        counted = tuple(QueueStats(n, packets.get(n, 0), 0, 0, 0) for n in range(64))
        one = lab()
        queues = tuple(replace(one.queues[0], index=n, cpu=n) for n in range(64))
        return [replace(one, queues=queues, stats=replace(one.stats, queues=counted))]

    def topology(self) -> Topology:
        cpus = (Cpu(n, n != 255, 0, 0, n, (n,), (n,), False, False) for n in range(256))
        return Topology(tuple(cpus), ())


class Quiet(Published):
    """No flow has an entry, nothing is remembered, and an order keeps one interface disarmed."""

    def __init__(self) -> None:
        super().__init__()
        thread = flow(1).thread
        here = SocketFound(key(7), 7, "lab:lab", thread, 3, 3, 3, 1000, S)
        self.found = [here, here._replace(key=key(8), cookie=8, thread=None, app_cpu=None)]

    def history(self) -> History:
        return History(10.0, ())

    def status(self) -> Status:
        return replace(super().status(), armed=(), disarmed=("lab:lab",))


# Text that is seen, its color and the color behind it; bars and lines, and the color behind them.
CONTRASTS = """
(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const light = (color) => {
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const parts = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((each) => each / 255);
    const [r, g, b] = parts.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [more, less] = [light(one), light(other)].sort((a, b) => b - a);
    return (more + 0.05) / (less + 0.05);
  };
  const behind = (where) => {
    for (let each = where; each; each = each.parentElement) {
      const color = getComputedStyle(each).backgroundColor;
      if (!color.endsWith(", 0)")) return color;
    }
    return "white";
  };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const where = texts.currentNode.parentElement;
    const text = texts.currentNode.data.trim();
    if (text && where.checkVisibility() && !["SCRIPT", "NOSCRIPT"].includes(where.tagName)) {
      found.push([text, contrast(getComputedStyle(where).color, behind(where)), 4.5]);
    }
  }
  for (const bar of document.querySelectorAll("rect")) {
    const seen = contrast(getComputedStyle(bar).fill, behind(bar));
    found.push([`bar ${bar.dataset.of}`, seen, 3]);
  }
  for (const line of document.querySelectorAll("svg path")) {
    found.push(["line", contrast(getComputedStyle(line).stroke, behind(line)), 3]);
  }
  return found;
})()
"""
# Elements that are seen and reach out of the window; not what scrolls by itself.
OUTSIDE = """
[...document.body.querySelectorAll("*")]
  .filter((each) => each.checkVisibility() && !each.closest("#heat .scroll > *"))
  .filter((each) => each.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)
  .map((each) => `${each.tagName} ${each.dataset.of ?? each.className}: ${each.textContent}`)
"""
# Reasons that are cut, or that are beside their flow instead of below it.
CUT = """
[...document.querySelectorAll('#flows td[data-of="why"] div')].filter((why) => {
  const [row, around] = [why.closest("tbody").rows[0], why.closest(".scroll")];
  const [here, above, bounds] = [why, row, around].map((each) => each.getBoundingClientRect());
  const whole = why.scrollWidth <= why.clientWidth && why.scrollHeight <= why.clientHeight + 1;
  const inside = here.left >= bounds.left && here.right <= bounds.right;
  return !whole || !inside || here.top < above.bottom - 1;
}).map((why) => why.textContent)
"""


class LookedAt:
    """One tab with the page of `port`."""

    def __init__(self, tab: Tab, port: int) -> None:
        self.tab, self.port = tab, port

    def open(self, scheme: str = "light", pixels: int = 1280) -> None:
        """Load it anew, and wait until it has shown everything once."""
        self.tab.open("about:blank")  # what was there may ask a daemon that is gone
        self.tab.value("0")
        self.tab.seen.clear()
        self.tab.scheme(scheme)
        self.tab.width(pixels)
        self.tab.open(f"http://localhost:{self.port}/")
        until(lambda: self.text("#connection") == "live", f"the page is live: {self.tab.faults()}")

    def text(self, selector: str) -> str | None:
        """Of the first such element."""
        found = self.tab.value(f"document.querySelector({json.dumps(selector)})?.textContent")
        return None if found is None else str(found)

    def texts(self, selector: str) -> list[str]:
        every = f"[...document.querySelectorAll({json.dumps(selector)})]"
        found: list[str] = self.tab.value(f"{every}.map((each) => each.textContent)")
        return found

    def count(self, selector: str) -> int:
        found: int = self.tab.value(f"document.querySelectorAll({json.dumps(selector)}).length")
        return found

    def attribute(self, selector: str, name: str) -> Any:
        return self.tab.value(
            f"document.querySelector({json.dumps(selector)})?.getAttribute({json.dumps(name)})"
        )

    def column(self, name: str) -> list[str]:
        """Of the table of flows, in the order shown."""
        return self.texts(f'#flows td[data-of="{name}"]')

    def do(self, selector: str, action: str) -> None:
        """Something to the first such element, `each`."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.tab.value(f"((each) => {{ {action} }})({found})")

    def filter(self, text: str) -> None:
        self.do(
            "#filter", f"each.value = {json.dumps(text)}; each.dispatchEvent(new Event('input'))"
        )

    def heat(self, cpu: int, queue: int) -> int | None:
        """The level of a cell; None: nothing is delivered there."""
        cell = f'td[data-cpu="{cpu}"][data-queue="{queue}"]'
        level = self.attribute(cell, "data-heat")
        return None if level is None else int(level)

    def load(self, cpu: int) -> int | None:
        """Percent, as it is beside the CPU; None: not known."""
        rows = "[...document.querySelectorAll('#heat tbody tr')]"
        said = self.tab.value(f"{rows}.find((row) => row.cells[1].dataset.cpu === '{cpu}')"
                              ".querySelector('.load').textContent")  # fmt: skip
        return None if said == "–" else int(said.removesuffix(" %"))

    def is_readable(self) -> None:
        """AssertionError: some text or bar is too faint."""
        found = self.tab.value(CONTRASTS)
        assert len(found) > 20
        assert [each for each in found if each[1] < each[2]] == []

    def fits(self) -> None:
        """AssertionError: something reaches out of the window, or a reason is cut."""
        inside = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        assert self.tab.value(inside)
        assert self.tab.value(OUTSIDE) == []
        assert self.count('#flows td[data-of="why"] div') > 0
        assert self.tab.value(CUT) == []

    def is_by_itself(self) -> None:
        """AssertionError: it asked another program for something, or the browser complained."""
        assert self.tab.faults() == []
        places = {urlsplit(each)[:2] for each in self.tab.asked}
        assert places == {("http", f"localhost:{self.port}")}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LookedAt]:
    with chromium(tmp_path_factory.mktemp("chromium")) as tab:
        yield LookedAt(tab, 0)


@pytest.fixture(scope="module")
def office(browser: LookedAt) -> Iterator[LookedAt]:
    """Opened once; what is on it stays."""
    port = free_port()
    with paging(Office(), port):
        made = LookedAt(browser.tab, port)
        made.open(pixels=WIDE)
        until(lambda: made.heat(3, 3) not in (None, 0), "packets have been counted twice")
        yield made


def shown(browser: LookedAt, port: int) -> LookedAt:
    """Of this daemon, once it has shown everything."""
    page = LookedAt(browser.tab, port)
    page.open()
    return page


def test_what_is_on_top(office: LookedAt) -> None:
    """Does it pay, and what prevents it."""
    assert office.texts("dt")[:3] == ["guard", "doctor", "armed"]
    assert office.text('[data-of="guard"]') == (
        "lab:lab: stopped: steering took +12.4% CPU per byte, by 31 pairs of slots"
    )
    assert office.text('[data-of="doctor"]') == (
        "1 blocker, 2 warnings: nothing can be steered before these are removed"
    )
    assert office.texts("#findings li")[:2] == [
        "blocker, lab:lab: ntuple filters are off → ethtool -K lab ntuple on",
        "warning, eth1: irqbalance (pid 7) moves it → ban them",
    ]


def test_the_hour_before_the_page_was_opened(office: LookedAt) -> None:
    line = office.attribute(".locality path", "d")
    assert line.count("M") == 2  # broken where nothing was read
    assert office.text("#locality") == (
        "Now: 98.00% of bytes processed on the CPU that read them, last 10 s. "
        "Since start: 98.0 % while armed, 25.0 % while not armed."
    )
    assert office.count('[data-by="verdict"] rect') > 60
    rows = [office.texts(f".totals tr:nth-child({n}) td") for n in (1, 2)]
    assert [row[:2] for row in rows] == [["hold", "proven"], ["birth", "verified"]]
    assert all(0 < int(row[2]) < 9_000 == int(row[3].replace(",", "")) for row in rows)


@pytest.mark.parametrize("pixels", [WIDE, PHONE])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read(office: LookedAt, scheme: str, pixels: int) -> None:
    office.tab.scheme(scheme)
    office.tab.width(pixels)
    office.tab.picture(PICTURES / f"{scheme}-{pixels}.png")
    office.fits()
    office.is_readable()
    office.is_by_itself()


def test_a_row_has_the_load_of_its_cpu_and_the_reason_of_a_flow(office: LookedAt) -> None:
    assert office.texts("#heat .load")[:5] == ["3 %", "12 %", "58 %", "100 %", "–"]
    assert NOT_THERE in office.column("why")
    office.do("#misplaced", "each.click()")
    assert sorted(office.column("placed")) == ["not known", "✗ no"]
    assert office.text("#cut") == "2 that pass, of 4 flows: 1 misplaced, 1 not known"
    office.do("#misplaced", "each.click()")


def test_with_a_keyboard(office: LookedAt) -> None:
    for _ in range(40):
        office.tab.key("Tab")
        if office.tab.value("document.activeElement.textContent") == "comm":
            break
    names = ["iperf3", "iperf3", "nginx", "nginx"]
    for order, wanted in (("ascending", names), ("descending", names[::-1])):
        office.tab.key("Enter")
        assert office.attribute('#flows th[data-of="comm"]', "aria-sort") == order
        assert [each.split()[0] for each in office.column("comm")] == wanted


def test_it_asks_for_nothing_while_hidden(office: LookedAt) -> None:
    def a_while_later() -> int:
        """How much it asked for in a time in which it would twice, by its own timers."""
        before = len(office.tab.asked)
        office.tab.value(f"new Promise(over => setTimeout(over, {2 * EVERY_MS}))")
        return len(office.tab.asked) - before

    look = "Object.defineProperty(document, 'hidden', {{ value: {}, configurable: true }});"
    look += "document.dispatchEvent(new Event('visibilitychange'))"
    office.tab.value(look.format("true"))
    assert office.text("#connection") == "paused while hidden"
    assert a_while_later() == 0
    office.tab.value(look.format("false"))
    until(lambda: office.text("#connection") == "live", "it goes on")


def test_names_of_others_are_text_and_markup_is_refused(browser: LookedAt) -> None:
    source, port = Office(), free_port()
    thread = flow(1).thread
    assert thread is not None
    for n, name in enumerate(HOSTILE):
        hostile = replace(thread, comm=name, pid=n + 1, tid=n + 1)
        source.put(n + 1, thread=hostile, rule_name=name, why=Code.KERNEL(name))
    with paging(source, port):
        page = shown(browser, port)
        found = set(page.column("comm"))
        assert {f"{name} ({n + 1})" for n, name in enumerate(HOSTILE)} <= found
        assert set(HOSTILE) <= set(page.column("why")) & set(page.column("rule"))
        page.filter("<IMG onerror")
        assert page.column("why") == HOSTILE[:1]
        assert page.tab.value("document.title") == "atfnd"
        assert page.count("img, #planted, body script, svg:not(figure svg)") == 0
        page.is_by_itself()
        refused = "try { document.body.%s; 'set' } catch (fault) { fault.name }"
        assert page.tab.value(refused % "innerHTML = '<b>x</b>'") == "TypeError"
        assert page.tab.value("try { eval('1') } catch (fault) { fault.name }") == "EvalError"
        loads = "fetch('http://192.0.2.1/').then(() => 'loaded', () => 'refused')"
        assert page.tab.value(loads) == "refused"
        assert any("Content Security Policy" in each for each in page.tab.faults())


def test_64_queues_256_cpus_and_1500_flows(browser: LookedAt) -> None:
    cells, port = "#heat tbody td", free_port()
    with paging(Large(), port):
        page = shown(browser, port)
        assert page.count("#flows tbody") == 1000
        assert page.text("#cut") == "the fastest 1,000 of 1,503 flows"
        assert page.column("flow")[0].endswith("← 10.9.0.1:1")  # most bytes, while no rate is known
        page.filter("10.9.0.1:777 steered")
        assert page.column("flow") == ["tcp 10.0.0.2:5201 ← 10.9.0.1:777"]
        until(lambda: (page.heat(7, 7), page.heat(63, 63)) == (3, 5), "queues 7 and 63 are hot")
        assert (page.heat(8, 8), page.heat(7, 8)) == (0, None)
        assert page.count(cells) == 65 * 64
        page.do("#every-cpu", "each.click()")
        assert page.count(cells) == 255 * 64  # all that are online


def test_what_is_empty_says_why_as_atfnctl_does(browser: LookedAt) -> None:
    source, port = Quiet(), free_port()
    with paging(source, port) as made:
        page = shown(browser, port)
        disarmed = "lab:lab by an order, although the policy arms it"
        assert page.text('[data-of="disarmed"]') == disarmed
        said = "no misdelivered flow in the table; 2 interfaces watched; 99.50% of bytes processed"
        assert (page.text("#no-flows") or "").startswith(said)
        assert (page.text("#moves p") or "").startswith("no move has ended in the last ")
        page.do("#every-flow", "each.click()")
        until(lambda: sorted(page.column("state")) == ["left", "local"], "RSS has them")
        assert source.pairs_wanted == []
        page.do("#count-forwarded", "each.click()")
        rows = "document.querySelectorAll('.pairs tbody tr').length"
        until(lambda: page.tab.value(rows) == 3, "they are shown")
        assert page.texts(".pairs tr:first-child td") == [
            "lab:lab", "0", "0", "eth1", "0", "2", "LLC", "3K", "12 Mbit/s"
        ]  # fmt: skip
        said = "30.0 % are received and sent on one CPU, of 10.0 % it is not known. Namespace "
        assert (page.text("#forwarded-said") or "").startswith(said)
        made.do(source.views.clear)
        source.unseen = "the kernel refuses the program"
        said = "not counted: the kernel refuses the program"
        until(lambda: page.text("#forwarded-said") == said, "it says so")
        none = "no interface is watched: `atfnctl doctor NIC` says why"
        until(lambda: page.text("#heat") == none, "it says so")


def test_the_daemon_may_go_and_come(browser: LookedAt) -> None:
    port = free_port()
    with paging(Published(), port) as made:
        page = shown(browser, port)
        made.want(None)
        until(lambda: "does not answer" in (page.text("#connection") or ""), "it says so")
        page.is_readable()
        made.want(port)
        until(lambda: page.text("#connection") == "live", "it is live again")
