# SPDX-License-Identifier: GPL-2.0-or-later
"""The policies that a run puts in force."""

from __future__ import annotations

__all__ = ["excluding", "placement", "policy", "wanted"]

ORDERS = "strict", "strict", "bounded", "immediate"
CPUS = frozenset({1, 2})
# Most runs place near the core: what moves and follows is found there.
PLACEMENTS = (
    "core", "core", "core", "llc", "core", "cpus", "core", "auto", "core", "dedicated", "core",
    "node",
)  # fmt: skip
WRITTEN = {
    "core": "{ near: core }", "llc": "{ near: llc }", "node": "{ near: node }", "auto": "auto",
    "cpus": "{ cpus: [1, 2] }", "dedicated": "{ dedicated: [1, 2] }",
}  # fmt: skip


def placement(number: int) -> str:
    """Of everything that this policy steers."""
    return PLACEMENTS[number // 2 % len(PLACEMENTS)]


def wanted(kind: str, cpu: int, cpus: int) -> frozenset[int]:
    """Where packets may arrive for a thread on this CPU. All CPUs share a last-level cache."""
    every = frozenset(range(cpus))
    if kind == "core":
        return frozenset({cpu})
    if kind == "auto":
        return every
    return CPUS if kind in ("cpus", "dedicated") else every - {cpu}


def policy(number: int) -> str:
    """Every flow by one placement, but those of one port in some; what differs besides is how
    carefully flows move, what owns queues, and how long filters stay."""
    order, stop = ORDERS[number % 4], "restore" if number % 5 == 0 else "keep"
    budget = "\n    filters: { max: 4 }" if number % 6 == 1 else ""
    late = "reception: { deferred: { timeout: 50us, polls: 10 } }"
    budget += f"\n    {late}" if number % 11 == 4 else ""
    received = f"\n    {late}" if number % 11 == 8 else ""
    left = "  - { name: left, match: { ports: [8080] }, placement: leave }\n" * (number % 4 == 3)
    owner = "process" if number % 7 == 3 else "thread"
    full_core = "leave" if number % 3 == 0 else "stay"
    return f"""\
version: 1
daemon: {{ on_stop: {stop}, settle: {{ hold_down: {10 + number % 90}ms }} }}
interfaces:
  - match: {{ name: "*" }}
    armed: true{budget}
flows:
{left}  - name: everything
    match: {{ protocol: [tcp, udp] }}
    placement: {WRITTEN[placement(number)]}
    dwell: {1 + number % 20}ms
    t_delete: {2 + number % 4}s
    order: {order}
    owner: {owner}
    full_core: {full_core}{received}
"""


def excluding(number: int) -> str:
    """The cpusets of applications exclude CPUs 1 and 2; in every fifth policy none does."""
    cpu_exclusion = "" if number // 2 % 5 == 4 else ", cpu_exclusion: true"
    by = "process: app" if number % 3 == 0 else "protocol: [tcp, udp]"
    return f"""\
version: 1
daemon: {{ on_stop: {"restore" if number // 4 % 2 else "keep"} }}
interfaces:
  - match: {{ name: "*" }}
    armed: true
flows:
  - name: everything
    match: {{ {by} }}
    placement: {{ dedicated: [1, 2]{cpu_exclusion} }}
    t_delete: 2s
    order: {ORDERS[number // 4 % 4]}
"""
