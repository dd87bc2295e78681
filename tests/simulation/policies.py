# SPDX-License-Identifier: GPL-2.0-or-later
"""The policies that a run puts in force."""

from __future__ import annotations

__all__ = ["VALUES", "forwarding", "placement", "policy", "receiving", "wanted"]

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


RECEPTIONS = {
    "leave": "leave", "interrupt": "interrupt", "auto": "auto",
    "deferred": "{ deferred: { timeout: 50us, polls: 10 } }",
    "suspended": "{ suspended: { timeout: 20us, polls: 100, limit: 20ms } }",
    "dedicated": "{ dedicated: { pause: 100us, idle_after: 1s } }",
}  # fmt: skip
PILOTED = "auto", "leave", "auto", "interrupt", "auto", "deferred"
# By mode: gro-flush-timeout, defer-hard-irqs and irq-suspend-timeout; of `auto` what it may choose.
VALUES = {
    "interrupt": {("0", "0", "0")},
    "deferred": {("50000", "10", "0")},
    "suspended": {("20000", "100", "20000000")},
    "dedicated": {("100000", "10000", "0")},
    "auto": {("0", "0", "0"), ("200000", "100", "0"), ("200000", "100", "20000000")},
}
BUDGETS = "", "{ packets: 2 }", "{ time: 20ms }", "{ packets: 600, time: 2ms }"  # 2 ms is refused
PAIRS = (
    "{ pair: core }", "{ pair: llc }", "{ mode: II }", "{ pair: node }", "{ mode: I }",
    "{ pair: core }", "{ pair: leave }", "{ mode: 0 }",
)  # fmt: skip


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


def _host(number: int) -> str:
    asked = BUDGETS[number % len(BUDGETS)]
    return f"host: {{ softirq_budget: {asked} }}\n" if asked else ""


def receiving(number: int, *, pilots: bool = False) -> str:
    """Who polls differs, by interface and by the rule of the flows; `pilots`: mostly `auto`."""
    modes = PILOTED if pilots else tuple(RECEPTIONS)
    of_nic, of_flows = modes[number % 6], modes[number // 6 % 6]
    near = "dedicated: [1, 2]" if number % 5 == 2 else "near: core"
    return f"""\
version: 1
daemon: {{ on_stop: {"restore" if number % 3 == 0 else "keep"}, settle: {{ hold_down: 20ms }} }}
{_host(number // 5)}interfaces:
  - match: {{ name: "*" }}
    armed: true
    reception: {RECEPTIONS[of_nic]}
flows:
  - name: everything
    match: {{ protocol: [tcp, udp] }}
    placement: {{ {near} }}
    dwell: 5ms
    t_delete: 2s
    order: {ORDERS[number // 2 % 4]}
    reception: {RECEPTIONS[of_flows]}
"""


def forwarding(number: int) -> str:
    """Channels of NICs that forward to each other are placed; in some policies none is."""
    order = ("strict", "strict", "bounded")[number % 3]
    rule = f"""\
forwarding:
  - name: gateway
    match: {{ in: "*", out: "*" }}
    placement: {PAIRS[number // 2 % len(PAIRS)]}
    order: {order}
"""
    return f"""\
version: 1
daemon: {{ on_stop: {"restore" if number % 4 == 0 else "keep"}, settle: {{ hold_down: 20ms }} }}
{_host(number)}interfaces:
  - match: {{ name: "*" }}
    armed: true
{rule if number % 11 != 5 else ""}flows:
  - name: everything
    match: {{ protocol: [tcp, udp] }}
    placement: {{ near: core }}
    t_delete: 2s
    order: strict
"""
