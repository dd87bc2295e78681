# SPDX-License-Identifier: GPL-2.0-or-later
"""Which rule of the policy many flows fall under at once: all that one filter serves. Pure.

Of the flows that a filter with open fields serves (`FlowKey.wide`) a rule takes all, some or none.
What it asks besides a flow's ends takes some: of whose process a flow will be, say, nothing is
known. A port that is left open beside one that is named is taken for nobody's service, as where the
connections of a listener are asked about (`Matcher.of_port`); with both open, ports take some.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import replace
from enum import Enum

from atfnd.model import FlowKey, FlowRule, Network, Protocol
from atfnd.policy.match import has_threshold, of_key

__all__ = ["of_many"]


class _Share(Enum):
    NONE = 0
    SOME = 1
    ALL = 2


def of_many(rules: Iterable[FlowRule], key: FlowKey, interface: str) -> FlowRule | None:
    """The one rule for every flow that a wide key stands for, from its first byte on. None: there
    is none, or some may fall under another one."""
    for rule in rules:
        globs = rule.interfaces
        if globs is not None and not any(fnmatch.fnmatchcase(interface, each) for each in globs):
            continue
        shares = _protocol(rule, key), _ports(rule, key), _local(rule, key), _remote(rule, key)
        if _Share.NONE in shares:
            continue
        only_ends = of_key(replace(rule, interfaces=None)) and not has_threshold(rule)
        return rule if only_ends and _Share.SOME not in shares else None
    return None


def _protocol(rule: FlowRule, key: FlowKey) -> _Share:
    if rule.direction is not None and key.protocol == Protocol.UDP:
        return _Share.NONE
    taken = rule.protocols is None or key.protocol in rule.protocols
    return _Share.ALL if taken else _Share.NONE


def _ports(rule: FlowRule, key: FlowKey) -> _Share:
    if rule.ports is None:
        return _Share.ALL
    named = [port for port in (key.local_port, key.remote_port) if port]
    if any(low <= port <= high for low, high in rule.ports for port in named):
        return _Share.ALL
    return _Share.NONE if named else _Share.SOME


def _local(rule: FlowRule, key: FlowKey) -> _Share:
    if rule.local is None:
        return _Share.ALL
    if not any(key.local):
        return _Share.SOME
    return _most(_overlap(each, key.local, len(key.local) * 8) for each in rule.local)


def _remote(rule: FlowRule, key: FlowKey) -> _Share:
    if rule.remote is None:
        return _Share.ALL
    bits = key.remote_prefix or (len(key.remote) * 8 if any(key.remote) else 0)
    return _most(_overlap(each, key.remote, bits) for each in rule.remote)


def _most(shares: Iterable[_Share]) -> _Share:
    return max(shares, key=lambda each: each.value, default=_Share.NONE)


def _overlap(network: Network, address: bytes, bits: int) -> _Share:
    """How much of a prefix is in this network."""
    size = len(network.address) * 8
    if len(address) * 8 != size:
        return _Share.NONE
    shift = size - min(bits, network.prefix)
    if int.from_bytes(address) >> shift != int.from_bytes(network.address) >> shift:
        return _Share.NONE
    return _Share.ALL if network.prefix <= bits else _Share.SOME
