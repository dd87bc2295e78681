# SPDX-License-Identifier: GPL-2.0-or-later
"""Which rule of a NIC catches a flow: the NIC's own decision, repeated on its published table.

Pure. Rules are compared in location order, the lowest wins (ethtool(8), --config-ntuple).
"""

from __future__ import annotations

from collections.abc import Iterable

from atfnd.model import Filter, FlowKey, Match, network_of

__all__ = ["catching_filter", "covers", "unread"]


def covers(match: Match, key: FlowKey) -> bool:
    """Every packet of the flow satisfies `match`. The flow of an unconnected socket leaves the
    remote open: a rule that names a remote catches only a part of it, and does not cover it."""
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


def catching_filter(rules: Iterable[Filter], key: FlowKey) -> Filter | None:
    """The rule that decides for this flow; None: RSS does. Rules of other shapes are not judged
    here: see `unread`."""
    matching = (rule for rule in rules if rule.match is not None and covers(rule.match, key))
    return min(matching, key=lambda rule: rule.location, default=None)


def unread(rules: Iterable[Filter], before: Filter | None) -> list[Filter]:
    """Rules of shapes that `Match` cannot express, which may catch the flow first."""
    return [
        rule
        for rule in rules
        if rule.match is None and (before is None or rule.location < before.location)
    ]
