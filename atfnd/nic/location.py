# SPDX-License-Identifier: GPL-2.0-or-later
"""Where in the filter table a new filter goes, on a NIC that lets us choose. Pure.

Of two filters that match a packet the one at the lower location wins (struct ethtool_rx_flow_spec,
include/uapi/linux/ethtool.h). So a port's filter, which is for many flows, goes to the top
sixteenth of the table, which other filters enter last, from below: a flow's own filter always wins.
Locations are taken from the highest down, so that low ones stay free for programs that choose one.
"""

from __future__ import annotations

from collections.abc import Callable

from atfnd.model import Match, Protocol

__all__ = ["choose", "is_wide"]

_SHARE = 16


def is_wide(match: Match) -> bool:
    """It takes the flows of many sockets: of a TCP port, or as another program's may."""
    if match.src is None and match.src_port is None and match.dst_port is not None:
        return match.protocol == Protocol.TCP  # else it is that of one UDP socket
    whole = match.src_prefix == (32 if match.family == 4 else 128)
    return match.protocol is not None and not (whole and match.src_port and match.dst_port)


def choose(free: int, slots: int, wide: bool, held: Callable[[int], bool | None]) -> int | None:
    """A location for a new filter; None: there is no room for it. `free` has a bit set for each
    free location; `held` says of a used one whether its filter is for many flows; None: that filter
    is not like ours."""
    floor = slots - min(slots, max(1, slots // _SHARE))
    below, above = free & (1 << floor) - 1, free >> floor
    if below and not wide:
        return below.bit_length() - 1
    if not above:
        return None
    used = [at for at in range(floor, slots) if not free >> at & 1]
    if wide:
        highest = free.bit_length() - 1
        beaten = any(held(at) is False for at in used if at > highest)
        return None if beaten else highest
    lowest = floor + (above & -above).bit_length() - 1
    loses = any(held(at) for at in used if at < lowest)
    return None if loses else lowest
