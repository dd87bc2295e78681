# SPDX-License-Identifier: GPL-2.0-or-later
"""What steering in software costs beside the packet: one core interrupting another.

Reads /proc/net/softnet_stat, a line a CPU in hexadecimal (net/core/net-procfs.c, softnet_seq_show).
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["handovers"]

RECEIVED_RPS = 9  # column


def handovers(path: Path = Path("/proc/net/softnet_stat")) -> int:
    """Times since boot that a CPU was interrupted by another one to take packets over, as RPS and
    RFS do; packets that come while it is still at it come without another interrupt."""
    lines = path.read_text().splitlines()
    return sum(int(line.split()[RECEIVED_RPS], 16) for line in lines)
