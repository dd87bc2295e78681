# SPDX-License-Identifier: GPL-2.0-or-later
"""API objects to tables, and to lines where a table would be too wide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from shlex import quote
from typing import Any

from rich.table import Table

from atfnd.ctl.client import Row
from atfnd.ctl.columns import ORDERS, Grid
from atfnd.ctl.output import say, show, text

__all__ = [
    "filter_table",
    "flow_table",
    "moves",
    "nic_table",
    "node_table",
    "plain",
    "queue_table",
    "reception",
    "say_explanation",
    "say_findings",
    "size",
    "span",
    "status_table",
    "stay_disarmed",
    "summed",
    "topology_table",
]


def say_explanation(answer: Row) -> None:
    """The chain, link by link, or the flows that it may be; what it comes to; what to do."""
    if answer.get("flows"):
        show(flow_table(answer["flows"]))
    for link in answer["chain"]:
        say(f"  {text(link)}")
    say(f"=> {text(answer['verdict'])}")
    if answer["advice"]:
        say(f"do: {text(answer['advice'])}")


def _table(name: str, columns: Sequence[str], rows: Iterable[Iterable[object]]) -> Grid:
    """Columns named with a leading `>` hold numbers; `name` is one of `ORDERS`."""
    return Grid(columns, [[*map(text, row)] for row in rows], ORDERS[name])


def span(seconds: float) -> str:
    """`1.5s`, `3m20s`, `2h05m`, `4d03h`."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours < 48 else f"{hours // 24}d{hours % 24:02}h"


def size(count: int) -> str:
    """Bytes in binary units."""
    amount = float(count)
    for unit in ("", "K", "M", "G", "T"):
        if amount < 1024:
            return f"{amount:.0f}{unit}" if not unit else f"{amount:.1f}{unit}"
        amount /= 1024
    return f"{amount:.1f}P"


_IN_ORDER, _POSTPONED, _REORDERED = "in order", "postponed", "reordered"
_ENDED = {  # `Verdict`, in words of an admin; the others say it themselves
    **dict.fromkeys(("proven", "verified", "quiet", "done"), _IN_ORDER),
    "unproven": "not proven", "violated": _REORDERED, "deferred": _POSTPONED,
}  # fmt: skip


def status_table(status: Row) -> Table:
    by_state = status["flows_by_state"].items()
    states = ", ".join(f"{count} {state}" for state, count in by_state if count)
    entries, capacity = status["table_entries"], status["table_capacity"]
    fill = f" ({entries / capacity:.1%})" if capacity else ""
    applied, refused = status["actions_applied"], status["actions_refused"]
    rows = [
        ("atfnd", f"{status['version']}, pid {status['pid']}, up {span(status['uptime_s'])}"),
        ("observer", f"{status['observer']}: {status['observer_why']}"),
        ("armed", _armed(status)),
        *(("guard", f"{each['nic']}: {each['said']}") for each in status["guard"]),
        *(("machine", _host(each)) for each in status["host"] if each["state"] != "left"),
        ("policies", ", ".join(status["policy_files"]) or "built in"),
        ("table", f"{entries} of {capacity} flows{fill}, t_delete {status['t_delete_s']:g} s"),
        ("flows", states or "none"),
        ("locality", status["locality_said"]),
        ("since start", _since_start(status)),
        ("own CPU", _own_cpu(status)),
    ]
    full, lost, resyncs = status["overflow"], status["events_lost"], status["resyncs"]
    counted = [  # a line of zeros says nothing
        (full, "overflow", f"{full} flows found the table or the NIC full"),
        (applied or refused, "actions", f"{applied} applied, {refused} refused"),
        (status["moves"], "moves", moves(status)),
        (lost or resyncs, "events lost", f"{lost}, {resyncs} re-syncs"),
    ]
    rows += [(name, said) for count, name, said in counted if count]
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in rows:
        table.add_row(name, text(value))
    return table


def _armed(status: Row) -> str:
    armed = ", ".join(status["armed"])
    if not status["disarmed"]:
        return armed or "none: observing only"
    return f"{armed or 'none'}; {stay_disarmed(status['disarmed'])}"


def stay_disarmed(names: Sequence[str]) -> str:
    """What an order keeps from being armed."""
    arm = " && ".join(f"atfnctl arm {quote(name)}" for name in names)
    return f"{', '.join(names)} disarmed by an order, although the policy arms: {arm}"


def _host(row: Row) -> str:
    """`netdev-budget: 2, set, was 300`."""
    was = "" if row["original"] is None else f", was {row['original']}"
    asked = "" if row["wanted"] in (None, row["now"]) else f", the policy asks for {row['wanted']}"
    said = f"{row['setting']}: {row['now'] or 'not known'}, {row['state']}{was}{asked}"
    return f"{said}: {row['why']}" if row["why"] else said


def _since_start(status: Row) -> str:
    """Read locality with us and without."""
    said = []
    for when, name in (("armed", "armed"), ("unarmed", "not armed")):
        local, remote, _ = _read(status, when)
        if local + remote:
            said.append(f"{local / (local + remote):.2%} of {size(local + remote)} while {name}")
    return ", ".join(said) or "-"


def _read(status: Row, when: str) -> tuple[int, int, int]:
    """Bytes that were read through all NICs: on the processing CPU, on another, on an unknown
    one."""
    counts = [nic[when] for nic in status["reads"] or ()]
    local, remote, unseen = (
        sum(c[where] for c in counts) for where in ("local", "remote", "unseen")
    )
    return local, remote, unseen


def moves(status: Row) -> str:
    """`35 in order (20 by hold, 15 by birth), 197 postponed, 0 reordered`."""
    ends = Counter[str]()
    means = Counter[str]()
    for each in status["moves"]:
        word = _ENDED.get(each["verdict"], each["verdict"])
        ends[word] += each["count"]
        if word == _IN_ORDER and each["mechanism"] != "none":
            means[each["mechanism"]] += each["count"]
    by = ", ".join(f"{count} by {name}" for name, count in means.most_common())
    said = [f"{ends.pop(_IN_ORDER, 0)} {_IN_ORDER}{f' ({by})' if by else ''}"]
    said.append(f"{ends.pop(_POSTPONED, 0)} {_POSTPONED}")
    late = status["late_packets"]
    packets = f" ({late} packets late)" if late else ""
    said.append(f"{ends.pop(_REORDERED, 0)} {_REORDERED}{packets}")
    return ", ".join([*said, *(f"{count} {word}" for word, count in ends.most_common())])


def _own_cpu(status: Row) -> str:
    cpu = status["cpu"]
    if cpu is None:
        return "-"
    said = f"{cpu['used']:.2%} of a core, may use {cpu['allowed']:.2%}"
    waits = f": {cpu['waiting']} flows wait for it" if cpu["waiting"] else ""
    return f"{said}; over{waits}" if cpu["over"] else said + waits


def flow_table(rows: Iterable[Row]) -> Grid:
    columns = (
        "PROTO", "LOCAL", "REMOTE", ">TID", "COMM", ">APP-CPU", ">RX-QUEUE", ">RX-CPU",
        ">TARGET", "PLACED", "STATE", ">FILTER", ">BYTES", ">AGE", "NIC", "RULE", "HABIT", "HOME",
        "WHY",
    )  # fmt: skip
    names = "proto local remote tid comm app_cpu rx_queue rx_cpu target_cpu placed state filter"
    return _table(
        "flows",
        columns,
        (
            [
                *(row[name] for name in names.split()),
                size(row["bytes"]),
                span(row["age_s"]),
                row["nic"],
                row["rule"] or None,
                row["habit"],
                row["home"],
                row["why"],
            ]
            for row in rows
        ),
    )


def plain(name: str, columns: Sequence[str], fields: str, rows: Iterable[Row]) -> Grid:
    """The fields of rows, in the order of `fields`, under `columns`."""
    return _table(name, columns, ([row[field] for field in fields.split()] for row in rows))


def queue_table(rows: Iterable[Row]) -> Grid:
    columns = (
        "NIC", ">QUEUE", ">NAPI", ">IRQ", "THREADED", ">PID", ">CPU", "OWNER", "ALLOWED",
        ">FILTERS", ">PACKETS", ">BY-FILTER", ">BY-RSS", "RECEPTION", "HELD-BY",
    )  # fmt: skip
    names = (
        "nic queue napi_id irq threaded pid cpu owner allowed_cpus filters packets by_filter by_rss"
    )
    shown = (
        [*(row[name] for name in names.split()), reception(row), row["held_by"]] for row in rows
    )
    return _table("queues", columns, shown)


def reception(row: Row) -> str | None:
    """`interrupt`, `deferred 50us x 100`, `auto: interrupt`; and what the policy asks for
    instead."""
    found, wanted = row["reception"], row["reception_wanted"]["mode"]
    if found is None and not row["reception_why_not"]:
        return None
    said = "unknown" if found is None else str(found["mode"])
    if found is not None and found["timeout_ns"]:
        said += f" {found['timeout_ns'] / 1000:g}us x {found['polls']}"
    if row["reception_why_not"]:
        return f"{said} (not {wanted})"
    return f"auto: {said}" if wanted == "auto" else said


_FILTER_COUNTS = "filters", "filters_ours", "filters_foreign", "filter_slots"


def nic_table(rows: Iterable[Row]) -> Grid:
    columns = (
        "NIC", "STATE", "UP", "DRIVER", "CLASS", "PROBED", ">NODE", ">QUEUES", ">MOST", ">FILTERS",
        ">OURS", ">FOREIGN", ">SLOTS", ">RING", ">DROPS", ">CONFLICTS", "HASH", "NETNS", "METHOD",
        "WHY",
    )  # fmt: skip
    return _table(
        "nics",
        columns,
        (
            [
                row["nic"],
                "paused" if row["paused"] else "armed" if row["armed"] else "observed",
                row["up"],
                row["driver"],
                row["caps"]["actuator"],
                row["caps"]["probed"],
                row["device"]["node"],
                row["queues"],
                row["device"]["channels_max"],
                *(row[name] for name in _FILTER_COUNTS),
                *(row[name] for name in ("ring_size", "ring_drops")),
                len(row["conflicts"]),
                _hash(row["rss"]),
                row["netns"],
                row["method"],
                row["method_why"] or row["caps"]["why"],
            ]
            for row in rows
        ),
    )


def _hash(rss: Row | None) -> str | None:
    """Of its RSS; `atfnctl doctor` says why it is not known."""
    known = [] if rss is None else [each["known"] for each in rss["hashes"]]
    if not known:
        return None
    return "known" if all(known) else "in part" if any(known) else "unknown"


def filter_table(rows: Iterable[Row]) -> Grid:
    columns = ("NIC", ">LOCATION", ">QUEUE", ">HITS", "OURS", "MATCH")
    return plain("filters", columns, "nic location queue hits ours match", rows)


def topology_table(rows: Iterable[Row]) -> Grid:
    columns = (
        ">CPU", "ONLINE", "ISOLATED", ">NODE", ">PACKAGE", ">CORE", "SMT", "LLC", "QUEUES",
    )  # fmt: skip
    names = "cpu online isolated node package core smt llc"
    return _table(
        "topology",
        columns,
        (
            [
                *(row[name] for name in names.split()),
                [f"{queue['nic']}/{queue['queue']}" for queue in row["queues"]],
            ]
            for row in rows
        ),
    )


def node_table(rows: Iterable[Row]) -> Grid:
    """Distances in the order of the nodes, 10 is one's own."""
    columns = (">NODE", "CPUS", "DISTANCES", "NICS")
    return _table(
        "nodes",
        columns,
        ([row["node"], row["cpus"], list(row["distances"].values()), row["nics"]] for row in rows),
    )


def summed(findings: Sequence[Row]) -> str:
    """`1 warning, 0 blockers`; of a blocker, what that means."""
    counts = Counter(finding["level"] for finding in findings)
    warnings, blockers = counts["warning"], counts["blocker"]
    said = f"{warnings} warning{'s' * (warnings != 1)}, {blockers} blocker{'s' * (blockers != 1)}"
    return f"{said}: nothing can be steered before these are removed" if blockers else said


def say_findings(answer: Mapping[str, Any]) -> None:
    """By interface, then of the machine: `level  what`, and what to do."""
    findings = answer["findings"]
    for nic in dict.fromkeys(finding["nic"] for finding in findings):
        say(text(nic or "machine"))
        for finding in findings:
            if finding["nic"] == nic:
                say(f"  {finding['level']:<8} {text(finding['what'])}")
                if finding["advice"]:
                    say(f"  {'':<8} -> {text(finding['advice'])}")
    say(summed(findings))
