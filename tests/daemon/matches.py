# SPDX-License-Identifier: GPL-2.0-or-later
"""Rules that differ in one match alone, and flows that meet it.

Every rule asks for a port, too: each kind has its own, as ports stay in TIME-WAIT.
"""

from __future__ import annotations

from atfnd.lab.wiring import HOST4, PEER4
from tests.applications import Application
from tests.bed import Bed
from tests.observe.groups import GROUP, UNIT

__all__ = ["KINDS", "MATCHES", "port", "rules", "under"]

# The match that holds, and one that does not.
MATCHES = {
    "protocol": ("protocol: tcp", "protocol: [udp, sctp]"),
    "local": (f"local: {HOST4}/32", f"local: {PEER4}/32"),
    "remote": (f"remote: {PEER4}/32", f"remote: {HOST4}/32"),
    "process": ('process: "perl|python*"', "process: perl"),
    "command": ('command: "*tests.talker echo tcp *"', "command: tests.talker"),
    "user": ("user: root", "user: [nobody, 4294967294]"),
    "interface": ('interface: "lab:*|sim*"', 'interface: "eth*|lo"'),
    "accepted": ("direction: accepted", "direction: connected"),
    "bytes": ("min_bytes: 64KiB", "min_bytes: 1TiB"),
    "age": ("min_age: 200ms", "min_age: 1h"),
    "rate": ("min_rate: 1Mbit", "min_rate: 1Tbit"),
    "cgroup": (f"cgroup: /{GROUP}/*", f"cgroup: /{GROUP}"),
    "unit": (f"unit: {UNIT}", "unit: other.service"),
    "connected": ("direction: connected", "direction: accepted"),
    "before": ("direction: accepted", "direction: connected"),
}
KINDS = [kind for kind in MATCHES if kind not in ("cgroup", "unit", "connected", "before")]


def port(first: int, kind: str) -> int:
    """Of the ports from `first` on, that of a kind."""
    return first + list(MATCHES).index(kind)


def rules(first: int) -> str:
    """Both of each, in this order, as `no-KIND` and `yes-KIND`."""
    return "\n".join(
        f"  - {{ name: {word}-{kind}, match: {{ ports: {port(first, kind)}, {match} }}, "
        f"placement: {{ near: core }}, full_core: stay, dwell: 20ms, order: immediate }}"
        for kind, (holds, fails) in MATCHES.items()
        for word, match in (("no", fails), ("yes", holds))
    )


def under(bed: Bed, app: Application, rule: str) -> None:
    row = bed.row(app, lambda row: row["rule"] == rule, f"falls under `{rule}`")
    assert row["pid"] == app.pid
