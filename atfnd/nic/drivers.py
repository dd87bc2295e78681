# SPDX-License-Identifier: GPL-2.0-or-later
"""What is known of each driver's filter table: a type, and how to look one up.

The facts are in `driver_table`, read from Linux 7.2 (drivers/net/ethernet/). They are only
expected; what a NIC can do is probed. docs/hardware.md shows the same table.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import Enum

from atfnd.model import Actuator, Protocol

__all__ = [
    "ALL",
    "Capacity",
    "Driver",
    "FlowTypes",
    "Hashing",
    "Loses",
    "Masks",
    "Overwrite",
    "Placing",
]
__all__ += ["flow_types"]

FlowTypes = frozenset[tuple[int, int]]  # (family, protocol), as in Caps


def flow_types(v4: str, v6: str = "") -> FlowTypes:
    """`flow_types("tcp udp", "tcp")`."""
    return frozenset(
        (family, int(Protocol[name.upper()]))
        for family, names in ((4, v4), (6, v6))
        for name in names.split()
    )


ALL = flow_types("tcp udp sctp", "tcp udp sctp")


class Masks(Enum):
    """May a filter leave fields of its flow type open?"""

    ANY = "any"
    PER_TYPE = "one set of fields per flow type"
    ONE = "one set of fields for the whole port"
    EXACT = "exact 5-tuples only"
    UNKNOWN = "to be probed"


class Placing(Enum):
    """What chooses the location of a filter. Whether the driver may choose is asked, not looked up
    here."""

    EXPLICIT = "we choose"
    DRIVER = "the driver chooses"
    ASK = "as the driver says"


class Capacity(Enum):
    """What says how many locations there are."""

    COUNT = "ETHTOOL_GRXCLSRLCNT"
    LIST = "ETHTOOL_GRXCLSRLALL"
    UNSAID = "nobody"  # what GRXCLSRLCNT says is no number of locations


class Overwrite(Enum):
    """What an insert does that leads a filter of ours to another queue."""

    IN_PLACE = "replaces it in one write"
    GAP = "written over, by RSS in between"
    BY_MATCH = "the same match replaces it, at the same location"
    ADDED = "adds it beside the old one, which atfnd then deletes"
    REFUSED = "refused: deleted and inserted again by atfnd"
    TRY = "tried; if refused, deleted and inserted again by atfnd"


class Loses(Enum):
    """What deletes every filter in the NIC."""

    IFDOWN = "link down"
    CHANNELS = "channel change"
    RESET = "reset"
    NTUPLE_OFF = "ntuple off"


class Hashing(Enum):
    """Is its RSS hash the one that ethtool says: Toeplitz, by this key, over these fields?"""

    AS_SAID = "as it says"
    TRANSFORM_AS_SAID = "as it says, if it names a transform of the input"
    SEEN = "as flows show that are seen"
    OWN = "not known: a hash of its own"


@dataclass(frozen=True, slots=True)
class Driver:
    """One driver's filters. The default is the safe one, for an unknown driver."""

    name: str
    nics: str = ""  # what it drives
    types: FlowTypes = frozenset()  # empty: not known, or none (Actuator.NONE)
    actuator: Actuator = Actuator.LONG_GAP
    masks: Masks = Masks.UNKNOWN
    placing: Placing = Placing.ASK
    capacity: Capacity = Capacity.COUNT
    slots: int | None = None  # where the driver does not say
    full_errno: int = errno.ENOSPC  # what it answers when the table is full
    overwrite: Overwrite = Overwrite.TRY
    asynchronous: bool = False  # accepts a filter and may drop it later
    needs_ntuple: bool = False  # the feature must be on
    loses: frozenset[Loses] = frozenset()
    gates: tuple[str, ...] = ()  # other requirements, with the command if there is one; `{nic}`
    arfs: bool = True  # it may write filters for RFS (ndo_rx_flow_steer), while ntuple is on
    atr_flag: str | None = None  # private flag of steering that outranks or fights filters
    hashing: Hashing = Hashing.SEEN
    quirks: tuple[str, ...] = ()

    @property
    def filters(self) -> bool:
        """It has 5-tuple filters."""
        return self.actuator is not Actuator.NONE

    def gates_of(self, nic: str, *, ntuple_on: bool = False) -> tuple[str, ...]:
        """All requirements on this NIC that may not be met, with the command for each."""
        gates = (gate.format(nic=nic) for gate in self.gates)
        if ntuple_on or not self.needs_ntuple:
            return tuple(gates)
        return f"ntuple filters must be on: ethtool -K {nic} ntuple on", *gates
