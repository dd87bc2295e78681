# SPDX-License-Identifier: GPL-2.0-or-later
"""Handoffs: how often a CPU interrupted another to have it take packets over, as RPS and RFS do.

Reads /proc/net/softnet_stat, a line a CPU in hexadecimal (net/core/net-procfs.c,
softnet_seq_show). Packets that come while the other CPU is still at it come without an interrupt.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["handoffs"]

_RECEIVED_RPS = 9  # column


def handoffs(root: str = "/proc") -> int | None:
    """Since boot, of all CPUs. None: the kernel has no such column."""
    try:
        rows = [line.split() for line in Path(f"{root}/net/softnet_stat").read_text().splitlines()]
    except FileNotFoundError:
        return None
    if any(len(row) <= _RECEIVED_RPS for row in rows):
        return None
    return sum(int(row[_RECEIVED_RPS], 16) for row in rows)
