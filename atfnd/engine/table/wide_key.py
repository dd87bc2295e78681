# SPDX-License-Identifier: GPL-2.0-or-later
"""Keys that stand for many flows, of a port, a remote prefix, a local address: what they cover.

Pure. A local address of zeros, a port 0 and the bits after a prefix are open.
"""

from __future__ import annotations

from typing import NamedTuple

from atfnd.model import FlowKey, Match, network_of

__all__ = ["Opening", "bits", "covers", "may_catch", "meet", "overlap", "within"]


class Opening(NamedTuple):
    """Which fields a wide key with a local address names."""

    local_port: bool
    remote_port: bool
    prefix: int

    @classmethod
    def of(cls, key: FlowKey) -> Opening:
        return cls(bool(key.local_port), bool(key.remote_port), bits(key))


def bits(key: FlowKey) -> int:
    """How many bits of the remote address it names."""
    return key.remote_prefix or (len(key.remote) * 8 if any(key.remote) else 0)


def within(key: FlowKey, opening: Opening) -> FlowKey:
    """The wide key that leaves these fields open and covers this one, if there is one."""
    prefix = opening.prefix
    return key._replace(
        local_port=key.local_port if opening.local_port else 0,
        remote=network_of(key.remote, prefix),
        remote_port=key.remote_port if opening.remote_port else 0,
        remote_prefix=prefix,
    )


def covers(wide: FlowKey, key: FlowKey) -> bool:
    """Every packet of this flow, or of these flows, matches a filter for `wide`."""
    return (
        overlap(wide, key)
        and (wide.local == key.local or not any(wide.local))
        and wide.local_port in (0, key.local_port)
        and wide.remote_port in (0, key.remote_port)
        and bits(wide) <= bits(key)
    )


def overlap(one: FlowKey, other: FlowKey) -> bool:
    """Some packet may match both filters."""
    common = min(bits(one), bits(other))
    return (
        (one.protocol, one.family) == (other.protocol, other.family)
        and (one.local == other.local or not any(one.local) or not any(other.local))
        and (one.local_port == other.local_port or not one.local_port or not other.local_port)
        and (one.remote_port == other.remote_port or not one.remote_port or not other.remote_port)
        and network_of(one.remote, common) == network_of(other.remote, common)
    )


def meet(one: FlowKey, other: FlowKey) -> bool:
    """Some flow may match both. No flow goes from a service to a service: a listener's port and a
    range of remote ports do not meet."""
    for port, ports in ((one, other), (other, one)):
        if port.listens and ports.remote_port and not ports.local_port:
            return False
    return overlap(one, other)


def may_catch(match: Match | None, key: FlowKey) -> bool:
    """A filter of another program may catch packets that one for `key` would catch. None: a filter
    of which we do not know what it matches."""
    if match is None:
        return True
    remote, local = match.src or b"", match.dst or b""
    common = min(match.src_prefix, bits(key))
    mine = match.dst_prefix if any(key.local) else 0
    return (
        match.family == key.family
        and match.protocol in (None, key.protocol)
        and (None in (match.src_port, key.remote_port or None) or match.src_port == key.remote_port)
        and (None in (match.dst_port, key.local_port or None) or match.dst_port == key.local_port)
        and (not common or network_of(remote, common) == network_of(key.remote, common))
        and (not mine or network_of(local, mine) == network_of(key.local, mine))
    )
