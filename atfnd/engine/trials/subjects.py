# SPDX-License-Identifier: GPL-2.0-or-later
"""What is tried where a policy says `auto`: applications off their core, queues in other modes. And
when, and what is believed. Pure."""

from __future__ import annotations

from typing import NamedTuple

from atfnd.compare.trial import TrialTerms
from atfnd.model import Placement, PlacementKind, Reception, ReceptionMode
from atfnd.model.reason import Code

__all__ = ["DEFERRED", "INTERRUPT", "LLC", "PLACING", "RECEIVING", "SUSPENDED"]
__all__ += ["Application"]

LLC = Placement(PlacementKind.LLC)
INTERRUPT = Reception(ReceptionMode.INTERRUPT)
# A timer of 20 us comes before the epoll and takes more than it saves (docs/reception.md). Where no
# epoll takes part, the first is as the second.
SUSPENDED = Reception(ReceptionMode.SUSPENDED, 200_000, 100, 20_000_000)
DEFERRED = Reception(ReceptionMode.DEFERRED, 200_000, 100)

_MINUTE_NS = 60_000_000_000
PLACING = TrialTerms(
    Placement.CORE, Code.UNTIL_SATURATED(), Code.NO_FLOWS(),
    share=0.9, margin=0.25, back_off_ns=2 * _MINUTE_NS, between_ns=_MINUTE_NS,
)  # fmt: skip
RECEIVING = TrialTerms(
    INTERRUPT, Code.NOT_MEASURED(), Code.NOT_READ(),
    share=0.7, margin=0.05, back_off_ns=_MINUTE_NS, give_up=0.25,
)  # fmt: skip


class Application(NamedTuple):
    """Flows that are tried together: of threads of one name, in a cgroup, under a rule, on a
    NIC."""

    nic: str
    rule_name: str
    comm: str
    cgroup: int | None
