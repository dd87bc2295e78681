# SPDX-License-Identifier: GPL-2.0-or-later
"""Keys of TCP ports, which stand for many flows: what they cover. Pure.

Their remote end is open, and a local address of zeros is, too.
"""

from __future__ import annotations

from atfnd.model import FlowKey

__all__ = ["covers", "overlap"]


def covers(port: FlowKey, key: FlowKey) -> bool:
    """Every packet of this flow, or of this port, matches a filter for `port`."""
    return overlap(port, key) and (port.local == key.local or not any(port.local))


def overlap(one: FlowKey, other: FlowKey) -> bool:
    """Some packet may match a filter for this port, and belong to the other port or flow."""
    return (one.protocol, one.family, one.local_port) == (
        other.protocol, other.family, other.local_port,
    ) and (one.local == other.local or not any(one.local) or not any(other.local))  # fmt: skip
