# SPDX-License-Identifier: GPL-2.0-or-later
"""Where a flow's packets should arrive, relative to the CPU its application runs on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from atfnd.model.topology import cpu_list

__all__ = ["Placement", "PlacementKind"]


class PlacementKind(Enum):
    LEAVE = "leave"  # wherever RSS delivers them
    AUTO = "auto"  # `core`, or `llc` where that was measured to pay
    CORE = "core"  # the CPU its application's thread uses the socket on
    SMT = "smt"  # the other thread of that core
    LLC = "llc"  # another core under the same last-level cache
    NODE = "node"  # another core of the same NUMA node
    CPUS = "cpus"  # one of `cpus`
    DEDICATED = "dedicated"  # one of `cpus`, which serve no other placement


@dataclass(frozen=True, slots=True)
class Placement:
    """A flow rule's `placement`."""

    kind: PlacementKind
    cpus: frozenset[int] = frozenset()  # of CPUS and DEDICATED
    avoid_smt: bool = False  # never the other thread of the application's core

    LEAVE: ClassVar[Placement]  # the only ones of their kind: compared by `is`
    CORE: ClassVar[Placement]
    AUTO: ClassVar[Placement]

    def __deepcopy__(self, memo: object) -> Placement:
        """A copy of `CORE` would no longer be `CORE`."""
        return self

    def __str__(self) -> str:
        """`leave`, `auto`, `near llc, avoid smt`, `cpus 2,4-6`, `dedicated 2`."""
        match self.kind:
            case PlacementKind.LEAVE:
                return "leave"
            case PlacementKind.AUTO:
                return "auto"
            case PlacementKind.CPUS | PlacementKind.DEDICATED:
                return f"{self.kind.value} {cpu_list(self.cpus)}"
            case PlacementKind.CORE | PlacementKind.SMT | PlacementKind.LLC | PlacementKind.NODE:
                return f"near {self.kind.value}{', avoid smt' if self.avoid_smt else ''}"


Placement.LEAVE = Placement(PlacementKind.LEAVE)
Placement.CORE = Placement(PlacementKind.CORE)
Placement.AUTO = Placement(PlacementKind.AUTO)
