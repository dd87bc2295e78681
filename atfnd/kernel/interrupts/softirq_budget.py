# SPDX-License-Identifier: GPL-2.0-or-later
"""The budget of the receive softirq: net.core.netdev_budget (packets) and netdev_budget_usecs
(net/core/sysctl_net_core.c, Documentation/admin-guide/sysctl/net.rst).

They are of the whole machine, and the kernel shows them in its first network namespace only. One
pass of `net_rx_action()` (net/core/dev.c) ends when either is used up. NAPI threads do not ask.
"""

from __future__ import annotations

from pathlib import Path

from atfnd.model.softirq_budget import PACKETS, TIME

__all__ = ["budget_file", "read_budget", "write_budget"]

CORE = Path("/proc/sys/net/core")
FILES = {PACKETS: "netdev_budget", TIME: "netdev_budget_usecs"}


def budget_file(name: str) -> Path:
    """The file of a setting. KeyError: there is none of this name."""
    return CORE / FILES[name]


def read_budget(name: str) -> str | None:
    """As the kernel has it. None: it does not show it in our network namespace."""
    try:
        return budget_file(name).read_text().strip()
    except FileNotFoundError:
        return None


def write_budget(name: str, value: str) -> None:
    """KeyError: it is not there. OSError: the kernel refuses."""
    file = budget_file(name)
    if not file.exists():
        raise KeyError(name)
    file.write_text(str(int(value)))
