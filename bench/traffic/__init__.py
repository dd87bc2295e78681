# SPDX-License-Identifier: GPL-2.0-or-later
"""Workloads: requests, numbered datagrams, frames, clients of the API.

Each program here is a process of its own inside a namespace (see `bench.children`), one thread
each, so that "the application's CPU" is the CPU that process is pinned to.
"""

from __future__ import annotations

import signal

__all__ = ["leave_on_sigterm"]


def leave_on_sigterm() -> None:
    """Make SIGTERM end the program in order, so that it can print what it counted."""

    def leave(*_: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, leave)
