# SPDX-License-Identifier: GPL-2.0-or-later
"""The budget of a receive softirq, which all interfaces of a machine share: how much one pass over
the NAPIs of a CPU takes, before other softirqs and threads have their turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["BUDGET_SETTINGS", "HostSetting", "HostStanding", "SoftirqBudget"]

PACKETS, TIME = "netdev-budget", "netdev-budget-usecs"
BUDGET_SETTINGS = PACKETS, TIME


@dataclass(frozen=True, slots=True)
class SoftirqBudget:
    """What a policy asks for. None: it does not ask."""

    packets: int | None = None
    time_us: int | None = None
    source: str | None = None  # file:line

    @property
    def values(self) -> Mapping[str, str]:
        """Of the settings that it asks for, by their names."""
        asked = {PACKETS: self.packets, TIME: self.time_us}
        return {name: str(value) for name, value in asked.items() if value is not None}


class HostSetting(NamedTuple):
    """A setting of the whole machine, as the kernel and the undo journal have it."""

    now: str | None  # None: the kernel does not show it here
    original: str | None = None  # before our first write; None: it is not ours
    changed: bool = False  # it is ours by the journal, and another program has written to it
    manual: bool = False  # it is left to another program, until `atfnctl resume`


class HostStanding(NamedTuple):
    """How a setting of the whole machine stands."""

    setting: str
    state: str  # left, set, wanted, manual, refused or unknown
    now: str | None  # None: the kernel does not show it here
    wanted: str | None  # None: the policy does not ask
    original: str | None  # None: it is not ours
    why: str  # what stands in the way; empty: nothing
