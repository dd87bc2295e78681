# SPDX-License-Identifier: GPL-2.0-or-later
"""Which filter of a NIC catches a flow: the NIC's own decision, repeated on its published table.

Pure. Filters are compared in location order, the lowest wins (ethtool(8), --config-ntuple).
"""

from __future__ import annotations

from collections.abc import Iterable

from atfnd.model import Filter, FlowKey, Match, network_of

__all__ = ["catching_filter", "covers", "unread"]


def covers(match: Match, key: FlowKey) -> bool:
    """Every packet of the flow satisfies `match`. The flow of an unconnected socket leaves the
    remote open: a filter that names a remote catches only a part of it, and does not cover it."""
    return (
        match.family == key.family
        and match.protocol in (None, key.protocol)
        and match.src_port in (None, key.remote_port)
        and match.dst_port in (None, key.local_port)
        and _inside(key.remote, match.src, match.src_prefix)
        and _inside(key.local, match.dst, match.dst_prefix)
    )


def _inside(address: bytes, network: bytes | None, prefix: int) -> bool:
    return network is None or (any(address) and network_of(address, prefix) == network)


def catching_filter(filters: Iterable[Filter], key: FlowKey) -> Filter | None:
    """The filter that decides for this flow; None: RSS does. Filters of other shapes are not judged
    here: see `unread`."""
    matching = (each for each in filters if each.match is not None and covers(each.match, key))
    return min(matching, key=lambda each: each.location, default=None)


def unread(filters: Iterable[Filter], before: Filter | None) -> list[Filter]:
    """Filters of shapes that `Match` cannot express, which may catch the flow first."""
    return [
        each
        for each in filters
        if each.match is None and (before is None or each.location < before.location)
    ]
