# SPDX-License-Identifier: GPL-2.0-or-later
"""Where in the filter table a new filter goes, on a NIC that lets us choose. Pure.

Of two filters that match a packet the one at the lower location wins (struct ethtool_rx_flow_spec,
include/uapi/linux/ethtool.h). So one that leaves fields open goes to the top sixteenth of the
table, which exact ones enter last, from below: among ours an exact one always wins. Locations are
taken from the highest down, so that low ones stay for who chooses one.
"""

from __future__ import annotations

from collections.abc import Callable

from atfnd.model import Match

__all__ = ["choose", "is_open"]

_SHARE = 16


def is_open(match: Match) -> bool:
    """It leaves a field open."""
    return None in match


def choose(
    free: int, slots: int, wants_open: bool, held: Callable[[int], bool | None]
) -> int | None:
    """A location for a new filter; None: there is no room for it. `free` has a bit set for each
    free location; `held` tells of a used one whether its filter leaves a field open, None of one
    that is not like ours."""
    floor = slots - max(1, slots // _SHARE)
    below, above = free & (1 << floor) - 1, free >> floor
    if below and not wants_open:
        return below.bit_length() - 1
    if not above:
        return None
    used = [at for at in range(floor, slots) if not free >> at & 1]
    if wants_open:
        highest = free.bit_length() - 1
        beaten = any(held(at) is False for at in used if at > highest)
        return None if beaten else highest
    lowest = floor + (above & -above).bit_length() - 1
    loses = any(held(at) for at in used if at < lowest)
    return None if loses else lowest
