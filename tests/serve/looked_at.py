# SPDX-License-Identifier: GPL-2.0-or-later
"""The page in a browser's tab, as somebody who looks at it sees it."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from tests.serve.chromium import Tab
from tests.wait import until

__all__ = ["LookedAt"]

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

    def style(self, selector: str, name: str) -> str:
        """Of the first such element, as it is computed."""
        found = f"getComputedStyle(document.querySelector({json.dumps(selector)}))"
        return str(self.tab.value(f"{found}[{json.dumps(name)}]"))

    def is_by_itself(self) -> None:
        """AssertionError: it asked another program for something, or the browser complained."""
        assert self.tab.faults() == []
        places = {urlsplit(each)[:2] for each in self.tab.asked}
        assert places == {("http", f"localhost:{self.port}")}
