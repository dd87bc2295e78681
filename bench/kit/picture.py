# SPDX-License-Identifier: GPL-2.0-or-later
"""Ratios and their intervals as an SVG: a panel for each measure, a line for each contender. Pure;
no library draws it, because none travels in the kit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from bench.stats import Estimate

__all__ = ["drawn"]

LINE, HEAD, LABEL, WIDTH, GAP = 16, 40, 250, 220, 24
STEPS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the axis, which is logarithmic
COLOURS = {"rfs": "#777", "atfnd": "#c33", "same core": "#27a", "neighbour": "#292"}

Ratios = Mapping[tuple[str, str], Estimate]  # by cell and contender


def drawn(panels: Mapping[str, Ratios]) -> str:
    """One line for each cell and contender of any panel, in the order of the first that has it."""
    lines = list(dict.fromkeys(each for ratios in panels.values() for each in ratios))
    height = HEAD + LINE * (len(lines) + 1)
    width = LABEL + len(panels) * (WIDTH + GAP)
    inside = [_labels(lines)]
    for place, (title, ratios) in enumerate(panels.items()):
        inside.append(_panel(LABEL + place * (WIDTH + GAP), title, lines, ratios))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        f' font-family="sans-serif" font-size="11">{"".join(inside)}</svg>'
    )


def _labels(lines: Sequence[tuple[str, str]]) -> str:
    found, last = [], ""
    for row, (cell, name) in enumerate(lines):
        words = f"{cell}: {name}" if cell != last else name
        found.append(_text(LABEL - 6, _y(row) + 4, words, "end"))
        last = cell
    return "".join(found)


def _panel(left: int, title: str, lines: Sequence[tuple[str, str]], ratios: Ratios) -> str:
    bottom = HEAD + LINE * len(lines)
    found = [_text(left + WIDTH / 2, 14, title, "middle")]
    for step in STEPS:
        x, colour = left + _x(step), "#333" if step == 1 else "#ccc"
        found.append(f'<path d="M{x:.1f} {HEAD - 8}V{bottom}" stroke="{colour}"/>')
        found.append(_text(x, HEAD - 12, f"{step:g}", "middle"))
    for row, key in enumerate(lines):
        if (ratio := ratios.get(key)) is None:
            continue
        y, colour = _y(row), COLOURS[key[1]]
        low, value, high = (left + _x(each) for each in (ratio.low, ratio.value, ratio.high))
        found.append(f'<path d="M{low:.1f} {y}H{high:.1f}" stroke="{colour}" stroke-width="2"/>')
        words = escape(f"{key[0]}, {key[1]}: {ratio.text()}")
        found.append(f'<circle cx="{value:.1f}" cy="{y}" r="3.5" fill="{colour}">')
        found.append(f"<title>{words}</title></circle>")
    return "".join(found)


def _x(ratio: float) -> float:
    """Beyond the ends of the axis it is at its end."""
    first, last = STEPS[0], STEPS[-1]
    inside = min(max(ratio, first), last)
    return WIDTH * math.log(inside / first) / math.log(last / first)


def _y(row: int) -> int:
    return HEAD + LINE * row + LINE // 2


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">'
        f"{escape(words)}</text>"
    )
