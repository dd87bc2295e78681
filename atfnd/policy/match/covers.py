# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a rule matches all that a later one matches, so that the later one never decides. Pure.

It is judged from the two rules alone, and a yes is certain. A no may be wrong: globs are compared
only as far as their text shows it, and several earlier rules may match everything together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import ge
from typing import Any

from atfnd.model import FlowRule, InterfaceRule, Network, Placement, Protocol
from atfnd.policy.match.match import glob_matches, interface_globs, meets, of_key

__all__ = ["covers", "covers_interfaces", "transports"]

_ALL = frozenset(Protocol)
_WILD = "*?["

_Range = tuple[int, int]  # both ends in


def covers(rule: FlowRule, later: FlowRule) -> bool:
    """Every flow that `later` matches at some time, `rule` matches at that time, too."""
    if not meets(rule, later.min_bytes, later.min_age_ns, later.min_rate_bit_s):
        return False
    if not transports(later) <= (rule.protocols or _ALL):
        return False
    # A fact that is not known meets a rule that leaves, and no rule that steers.
    leaves = rule.placement is Placement.LEAVE
    if not leaves and later.placement is Placement.LEAVE and not of_key(rule):
        return False
    for key, all_of in _ALL_OF.items():
        asked, by_later = getattr(rule, key), getattr(later, key)
        if asked is not None and (by_later is None or not all_of(asked, by_later)):
            return False
    return True


def covers_interfaces(rule: InterfaceRule, later: InterfaceRule) -> bool:
    """Every interface that `later` matches, `rule` matches, too."""
    return _globs(interface_globs(rule), interface_globs(later))


def transports(rule: FlowRule) -> frozenset[Protocol]:
    """The protocols of the flows that it can match. UDP has no direction."""
    asked = rule.protocols or _ALL
    return asked if rule.direction is None else asked - {Protocol.UDP}


def _ranges(wide: Iterable[_Range], narrow: Iterable[_Range]) -> bool:
    joined: list[_Range] = []
    for low, high in sorted(wide):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], high)
        else:
            joined.append((low, high))
    return all(any(low <= a and b <= high for low, high in joined) for a, b in narrow)


def _networks(wide: Iterable[Network], narrow: Iterable[Network]) -> bool:
    return _ranges(map(_addresses, wide), map(_addresses, narrow))


def _addresses(network: Network) -> _Range:
    """As numbers, those of each family apart."""
    first = network.family << 128 | int.from_bytes(network.address)
    return first, first + (1 << len(network.address) * 8 - network.prefix) - 1


def _globs(wide: Sequence[str], narrow: Sequence[str]) -> bool:
    return all(any(_glob(each, glob) for each in wide) for glob in narrow)


def _glob(wide: str, narrow: str) -> bool:
    """Every name that `narrow` matches, `wide` matches, too."""
    if wide == narrow or not wide.strip("*"):
        return True
    # `eth*` matches the text `eth1?`, so it matches all that this stands for: only its `*` can
    # stand for a sign of the text. A `?` or `[` of its own could, too.
    name = not any(sign in narrow for sign in _WILD)
    signs = "[" not in narrow and not any(sign in wide for sign in "?[")
    return (name or signs) and glob_matches(wide, narrow)


_ALL_OF: Mapping[str, Callable[[Any, Any], bool]] = {
    "ports": _ranges,
    "direction": lambda asked, by_later: asked is by_later,
    "local": _networks,
    "remote": _networks,
    "users": ge,
    "interfaces": _globs,
    "processes": _globs,
    "cgroups": _globs,
    "units": _globs,
    "commands": _globs,
}
