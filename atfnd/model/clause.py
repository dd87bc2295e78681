# SPDX-License-Identifier: GPL-2.0-or-later
"""What of a policy's flow rules an observer in the kernel can judge by itself."""

from __future__ import annotations

from typing import NamedTuple

from atfnd.model.flow import Direction, Protocol
from atfnd.model.policy import Network

__all__ = ["Clause"]


class Clause(NamedTuple):
    """One of a list. Of the clauses that a flow meets, those before the first that `leaves` count:
    the flow is reported once it reaches the thresholds of the loosest of them. If none counts, it
    is never reported.

    What is not known of a flow (`direction`, `group`) is met where the clause does not leave.
    """

    leaves: bool
    protocols: frozenset[Protocol] = frozenset(Protocol)
    ports: tuple[int, int] = (0, 65535)  # both ends in; local or remote port
    local: Network | None = None
    remote: Network | None = None
    direction: Direction | None = None
    group: int | None = None  # its application is in this one of the groups of control groups
    min_bytes: int = 0
    min_age_ns: int = 0
