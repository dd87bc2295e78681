# SPDX-License-Identifier: GPL-2.0-or-later
"""What is known of a flow when its rule is looked for; `None` is "not known"."""

from __future__ import annotations

from typing import NamedTuple

from atfnd.model.flow import Direction, FlowKey

__all__ = ["Facts", "Process"]


class Process(NamedTuple):
    """What a process is, without the names of its threads."""

    command: str | None = None  # its arguments, joined by spaces; empty for a kernel thread
    uid: int | None = None  # effective
    cgroup: str | None = None  # path from the root of the hierarchy, as `/system.slice/a.service`


class Facts(NamedTuple):
    """What a flow rule may ask for."""

    key: FlowKey
    comm: str | None = None  # the name of the thread that uses it
    process: Process = Process()
    interface: str | None = None
    direction: Direction | None = None
    bytes: int = 0
    age_ns: int = 0
    rate_bit_s: int = 0
