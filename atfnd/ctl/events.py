# SPDX-License-Identifier: GPL-2.0-or-later
"""Events as `atfnctl events` shows them: which ones, repeats folded, and each in words. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from atfnd.ctl.client import Row
from atfnd.ctl.columns import wrapped
from atfnd.ctl.output import text

__all__ = ["Folded", "Selected", "event_lines", "folded", "repeats"]

_INDENT = " " * 8
_TO_AND_FRO = timedelta(minutes=5)


class Selected(NamedTuple):
    """Which events."""

    nic: str | None = None
    kinds: Sequence[str] = ()
    since_s: float | None = None  # CLOCK_REALTIME

    def takes(self, row: Row) -> bool:
        """Whether the event is one of them."""
        if self.nic not in (None, row["nic"]):
            return False
        if self.kinds and row["kind"] not in self.kinds:
            return False
        at = datetime.fromisoformat(row["time"])
        return self.since_s is None or at.timestamp() >= self.since_s


class Folded(NamedTuple):
    """The last of so many equal events, or of so many moves of a queue to and fro."""

    row: Row
    times: int


def folded(rows: Iterable[Row]) -> list[Folded]:
    """An event is a repeat if the one before it of the same flow, or of the same NIC without a
    flow, had the same kind and the same words. What happened in between to others does not count.
    So is a move of a queue back to where it was minutes ago.
    """
    found: dict[int, Folded] = {}
    last: dict[Hashable, int] = {}
    for number, row in enumerate(rows):
        about = row["nic"], row["flow"], _queue(row)
        before = last.get(about)
        repeats = 0
        if before is not None and _repeats(row, found[before].row):
            repeats = found.pop(before).times
        found[number] = Folded(row, repeats + 1)
        last[about] = number
    return list(found.values())


def _queue(row: Row) -> str | None:
    """The queue that another CPU was given."""
    return row["what"].partition(":")[0] if row["kind"] == "queue-cpu" else None


def _repeats(row: Row, before: Row) -> bool:
    if (row["kind"], row["what"]) == (before["kind"], before["what"]):
        return True
    if _queue(row) is None or (row["old"], row["new"]) != (before["new"], before["old"]):
        return False
    return (
        datetime.fromisoformat(row["time"]) - datetime.fromisoformat(before["time"]) < _TO_AND_FRO
    )


def repeats(row: Row, times: int) -> str:
    """How often in words: `×3`, or `×3 to and fro` of a queue's moves."""
    return f"×{times}{' to and fro' * (_queue(row) is not None)}"


def event_lines(row: Row, times: int, width: int | None) -> Iterator[str]:
    """`seq, local time, kind, NIC and flow, what, (why), ×times`. None: on one line."""
    at = datetime.fromisoformat(row["time"]).astimezone()
    about = " ".join(text(row[name]) for name in ("nic", "flow") if row[name] is not None)
    line = f"{row['seq']:>6}  {at:%m-%d %H:%M:%S}  {text(row['kind']):<9} {about}"
    words = [line.rstrip(), text(row["what"])]
    words += [f"({text(row['why'])})"] if row["why"] else []
    words += [repeats(row, times)] if times > 1 else []
    line = "  ".join(words)
    if width is None:
        yield line
    else:
        yield from wrapped(line, width, "", _INDENT)
