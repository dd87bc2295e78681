# SPDX-License-Identifier: GPL-2.0-or-later
"""The answer of `atfnctl pairs`: a table of what is forwarded, then sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from atfnd.ctl.client import Row
from atfnd.ctl.empty import explained
from atfnd.ctl.output import say, show, text
from atfnd.ctl.tables import plain, size
from atfnd.errors import OperatorError

__all__ = ["DISTANCES", "elsewhere", "pair_named", "say_pairs"]

DISTANCES = {"cpu": "same CPU", "core": "same core", "llc": "LLC", "node": "node", "machine": "far"}


def pair_named(words: Sequence[str]) -> dict[str, object]:
    """Ends of a pair as the API takes them, from `IN OUT`, each `NIC` or `NIC:QUEUE`.
    OperatorError: these are not two."""
    if len(words) != 2:
        raise OperatorError(f"`{' '.join(words)}` is no pair", "write --pair IN:QUEUE OUT:QUEUE")
    (ingress, rx_queue), (egress, tx_queue) = map(_end, words)
    return {"ingress": ingress, "rx_queue": rx_queue, "egress": egress, "tx_queue": tx_queue}


def _end(word: str) -> tuple[str, str | None]:
    """The name of a lab NIC has a colon of its own."""
    nic, _, queue = word.rpartition(":")
    return (nic, queue) if queue.isdecimal() and nic not in ("", "lab") else (word, None)


def say_pairs(answer: Row) -> None:
    """One row for each ingress, TX queue and CPU, and how much of it stays on one CPU."""
    if answer["why_not"] is not None:
        say(text(answer["why_empty"]))
        return
    columns = ("IN", ">RXQ", "OUT", ">TXQ", ">PPS", ">BYTES/S", ">CPU", ">TX-CPU", "DISTANCE")
    fields = "ingress rx_queue egress tx_queue pps bytes cpu tx_cpu distance"
    rows = [_shown(row) for row in answer["pairs"]]
    grid = plain("pairs", columns, fields, rows)
    show(explained(grid, lambda: answer["why_empty"]))
    shares = Counter[str]()
    for row in answer["pairs"]:
        shares[row["distance"] or "unknown"] += row["packets_pps"]
    if total := shares.total():
        local, unknown = shares["cpu"] / total, shares["unknown"] / total
        more = f", of {unknown:.0%} it is not known" if unknown else ""
        say(f"{local:.0%} of the packets are received and sent on one CPU{more}")
    whys = {(row["ingress"], row["egress"]): row for row in answer["pairs"] if row["rule"]}
    for (ingress, egress), row in sorted(whys.items()):
        say(f"{text(ingress)} to {text(egress)}: {text(row['rule'])}: {text(row['why'])}")
    for other in answer["elsewhere"]:
        say(f"{elsewhere(other)}, no interface there is watched")
    if answer["missed_packets"]:
        say(f"{answer['missed_packets']} packets are not in this: no room")


def elsewhere(other: Row) -> str:
    """What a namespace forwards in which no interface is watched."""
    return f"namespace {text(other['netns'])}: {other['packets_pps']:.0f} packets/s forwarded"


def _shown(row: Row) -> Row:
    return row | {
        "pps": f"{row['packets_pps']:.0f}",
        "bytes": size(row["bytes_per_s"]),
        "distance": DISTANCES.get(row["distance"] or ""),
    }
