# SPDX-License-Identifier: GPL-2.0-or-later
"""The view of forwarded packets: an answer of `/v1/pairs/latest` to lines. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import set_cell_size
from rich.text import Text

from atfnd.ctl.client import Row
from atfnd.ctl.output import text
from atfnd.ctl.pairs import DISTANCES, elsewhere
from atfnd.ctl.top.cells import AT, BAD, FAINT, HEAD, rate
from atfnd.ctl.top.view import View

__all__ = ["forwarded_lines", "how_forwarded", "pairs_in"]

_COLUMNS = (
    ("PKT/S", 6), ("IN", 15), ("RXQ", 4), ("CPU", 4), ("OUT", 15), ("TXQ", 4), ("TX", 4),
    ("DISTANCE", 9), ("BIT/S", 6),
)  # fmt: skip
_WORDS = {"IN", "OUT", "DISTANCE"}


def pairs_in(answer: Row | None) -> Sequence[Row]:
    """None: not asked yet."""
    pairs: Sequence[Row] = () if answer is None else answer["pairs"]
    return pairs


def how_forwarded(answer: Row | None) -> str:
    """What the lines are of."""
    if answer is None:
        return "forwarded packets: asking"
    if answer["why_not"] is not None:
        return f"forwarded packets: {text(answer['why_not'])}"
    missed = answer["missed_packets"]
    more = f", and {missed} packets that are not here" if missed else ""
    others = "".join(f"; {elsewhere(each)}" for each in answer["elsewhere"])
    return f"forwarded packets of {answer['seconds']:.1f} s{more}{others}"


def forwarded_lines(answer: Row | None, view: View, lines: int) -> list[Text]:
    """A header, so many pairs, most packets first, and two lines on the pair at hand."""
    pairs = pairs_in(answer)
    found = [Text(_line([name for name, _ in _COLUMNS]), HEAD)]
    for number in range(view.first, view.first + lines):
        if number >= len(pairs):
            found.append(Text(""))
            continue
        pair = pairs[number]
        far = BAD if pair["distance"] in ("node", "machine") else ""
        found.append(Text(_line(_values(pair)), AT if number == view.at else far))
    if not pairs:
        return [*found, Text("no forwarded packet", FAINT), Text("")]
    return [*found, *_at_hand(pairs[view.at], f"{view.at + 1}/{len(pairs)}")]


def _values(pair: Row) -> list[str]:
    known = {name: text(pair[name]) for name in ("rx_queue", "cpu", "tx_queue", "tx_cpu")}
    return [
        rate(pair["packets_pps"]), text(pair["ingress"]), known["rx_queue"], known["cpu"],
        text(pair["egress"]), known["tx_queue"], known["tx_cpu"],
        text(DISTANCES.get(pair["distance"] or "")), rate(pair["bytes_per_s"] * 8),
    ]  # fmt: skip


def _line(values: Sequence[str]) -> str:
    cells = (
        set_cell_size(value if name in _WORDS else value.rjust(width), width)
        for value, (name, width) in zip(values, _COLUMNS, strict=True)
    )
    return " ".join(cells)


def _at_hand(pair: Row, which: str) -> list[Text]:
    queue = "" if pair["rx_queue"] is None else f":{pair['rx_queue']}"
    ends = f"{text(pair['ingress'])}{queue} {text(pair['egress'])}:{pair['tx_queue']}"
    return [Text(f"{which}  {ends}"), Text(f"  why: atfnctl explain --pair {ends}")]
