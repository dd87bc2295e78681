# SPDX-License-Identifier: GPL-2.0-or-later
"""How the guard of a NIC stands: does steering it cost more than it saves?"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["GuardState", "NicGuard"]


class GuardState(Enum):
    """What the guard does about a NIC."""

    OFF = "off"  # by the policy
    IDLE = "idle"  # nothing is steered
    WATCHING = "watching"
    BLIND = "cannot judge"
    STOPPED = "stopped"  # steering cost more than it saved: only observed since


class NicGuard(NamedTuple):
    """Of one NIC."""

    nic: str
    state: GuardState
    pairs: int  # of slots that were compared since the daemon's start
    lost: int  # that said nothing
    stops: int  # how often it stopped steering since the daemon's start
    change: float | None  # CPU per byte steered, less unsteered, as a share of that; None: no pair
    why: str  # of `BLIND` and `STOPPED`; of `WATCHING` what the comparison does not see
