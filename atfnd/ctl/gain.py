# SPDX-License-Identifier: GPL-2.0-or-later
"""The answer of `atfnctl gain`: applications, threads and interfaces in tables, then sentences on
each interface."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from atfnd.ctl.client import Row
from atfnd.ctl.empty import explained
from atfnd.ctl.output import say, show, text
from atfnd.ctl.tables import plain, size

__all__ = ["say_gain"]

_LEVELS = ("cpu", "core", "llc", "node")
_OFF = tuple(f">OFF-{level.upper()}" for level in _LEVELS)
_SHARES = " ".join(f"off_{level}" for level in _LEVELS)
_PARTS = {"cpus": "CPU", "cores": "core", "llcs": "last-level cache", "nodes": "NUMA node"}
_READERS = {
    "pinned": "by pinned threads",
    "settled": "by threads that stay",
    "wandering": "by threads that wander",
    "unknown": "by threads that made too few calls to say",
    "left_alone": "through sockets that the policy leaves alone",
}
_WRITES = {"filters": "filter", "queues": "queue to another CPU", "settings": "setting"}


def say_gain(answer: Row) -> None:
    """Three tables, then what arming would do, and whether to."""
    if answer["why_not"] is not None:
        say(f"not measured: {text(answer['why_not'])}")
        return
    say(f"looked for {answer['seconds']:.1f} s; {_machine(answer['machine'])}")
    say("")
    _applications(answer["applications"])
    _more(answer, "applications")
    say("")
    _threads(answer["threads"])
    _more(answer, "threads")
    say("")
    _nics(answer["nics"])
    say("")
    for nic in answer["nics"]:
        for line in _sentences(nic):
            say(f"{text(nic['nic'])}: {line}")
    if answer["missed_bytes"]:
        say(f"{size(answer['missed_bytes'])} bytes that were read are not in this: no room")
    if answer["note"]:
        say(text(answer["note"]))


def _machine(counts: Row) -> str:
    said = (
        f"{name}s not known" if counts[part] is None else _count(counts[part], name)
        for part, name in _PARTS.items()
    )
    return ", ".join(said)


def _count(count: int, name: str) -> str:
    """`1 filter`, `2 queues to another CPU`."""
    noun, of, rest = name.partition(" to ")
    return f"{count} {noun}{'' if count == 1 else 's'}{of}{rest}"


def _more(answer: Row, what: str) -> None:
    if answer[f"more_{what}"]:
        say(f"and {answer[f'more_{what}']} more {what} that read less")


def _shown(row: Row) -> Row:
    """Bytes and shares, as a table has them."""
    shares = {name: _percent(row[name]) for name in _SHARES.split()}
    return row | shares | {"read": size(row["bytes"]["total"])}


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.0%}"


def _applications(rows: Iterable[Row]) -> None:
    columns = (
        "APPLICATION", ">PROCESSES", ">PINNED", ">SETTLED", ">WANDERING", ">UNKNOWN", ">READ",
        *_OFF,
    )  # fmt: skip
    names = f"application processes pinned settled wandering unknown read {_SHARES}"
    grid = plain("applications", columns, names, (_shown(row) | row["threads"] for row in rows))
    show(explained(grid, lambda: "no application read data meanwhile"))


def _threads(rows: Iterable[Row]) -> None:
    columns = (
        ">TID", ">PID", "APPLICATION", "HABIT", "BY", "HOME", "CPUS", ">CALLS", ">READ", *_OFF,
    )  # fmt: skip
    names = f"tid pid application habit pinned_by home cpus calls read {_SHARES}"
    grid = plain("threads", columns, names, map(_shown, rows))
    show(explained(grid, lambda: "no thread read data meanwhile"))


def _nics(rows: Iterable[Row]) -> None:
    columns = ("NIC", "ARMED", "METHOD", "PROBED", ">READ", *_OFF)
    show(plain("gains", columns, f"nic armed method probed read {_SHARES}", map(_shown, rows)))


def _sentences(nic: Row) -> Iterator[str]:
    known = nic["bytes"]["total"] - nic["bytes"]["unseen"]
    off = nic["off_cpu_bytes"]
    said = [f"{off[name] / known:.0%} {who}" for name, who in _READERS.items() if off[name]]
    if said:
        yield f"read off its CPU: {', '.join(said)}"
    if nic["bytes"]["unseen"]:
        yield f"{size(nic['bytes']['unseen'])} bytes of unconnected UDP: no CPU is known"
    if (writes := nic["would_do"]) is not None:
        begins = [_count(writes[name], noun) for name, noun in _WRITES.items() if writes[name]]
        when = "to be done now" if nic["armed"] else "arming would begin with"
        how = f"{text(nic['method'])}: {text(nic['method_why'])}"
        yield f"{when}: {', '.join(begins) or 'nothing'}; by {how}"
    yield text(nic["advice"])
