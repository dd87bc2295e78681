# SPDX-License-Identifier: GPL-2.0-or-later
"""Figures as a few characters, and how they look. Pure."""

from __future__ import annotations

from rich.style import Style

__all__ = ["AT", "BAD", "BOLD", "FAINT", "GOOD", "HEAD", "bar", "rate"]

HEAD = Style(reverse=True)
AT = Style(bold=True, reverse=True)
BAD, GOOD, FAINT, BOLD = map(Style.parse, ("red", "green", "dim", "bold"))


def rate(per_s: float | None) -> str:
    """`0`, `87`, `9.4k`, `941M`: five characters at most, `-` for an unknown rate."""
    if per_s is None:
        return "-"
    amount = float(per_s)
    for unit in ("", "k", "M", "G", "T", "P"):
        if amount < 999.5:
            return f"{amount:.1f}{unit}" if unit and amount < 99.95 else f"{amount:.0f}{unit}"
        amount /= 1000
    return ">999P"


def bar(first: float | None, second: float | None, width: int) -> tuple[int, int]:
    """How much of a bar two shares (0 to 1, together at most 1) take. Not known: nothing."""
    one = round((first or 0.0) * width)
    both = round(((first or 0.0) + (second or 0.0)) * width)
    return min(one, width), max(0, min(both, width) - min(one, width))
