# SPDX-License-Identifier: GPL-2.0-or-later
"""Policies for the whole daemon, by number."""

from __future__ import annotations

__all__ = ["policy"]

ORDERS = "strict", "strict", "bounded", "immediate"
OWNERS = "thread", "process", "core"


def policy(number: int) -> str:
    """Every flow near its thread, but those of one port in some; what differs is how carefully, and
    how long filters stay."""
    order, stop = ORDERS[number % 4], "restore" if number % 5 == 0 else "keep"
    budget = "\n    rules: { max: 4 }" if number % 6 == 1 else ""
    left = "  - { name: left, match: { ports: [8080] }, placement: leave }\n" * (number % 4 == 3)
    return f"""\
version: 1
daemon: {{ on_stop: {stop}, settle: {{ hold_down: {10 + number % 90}ms }} }}
interfaces:
  - match: {{ name: "*" }}
    armed: true{budget}
flows:
{left}  - name: everything
    match: {{ protocol: [tcp, udp] }}
    placement: {{ near: core }}
    dwell: {1 + number % 20}ms
    t_delete: {2 + number % 4}s
    order: {order}
"""
