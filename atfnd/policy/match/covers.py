# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a rule matches all that a later one matches, so that the later one never decides. Pure.

It is judged from the two rules alone, and a yes is certain. A no may be wrong: globs are compared
only as far as their text shows it, and several earlier rules may match everything together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from operator import ge
from typing import Any

from atfnd.model import FlowRule, InterfaceRule, Network, Placement, Protocol
from atfnd.policy.match.globs import listed, sides
from atfnd.policy.match.match import meets, of_key

__all__ = ["covers", "covers_interfaces", "deciding", "transports"]

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
    if not _globs(listed(rule.name), listed(later.name)):
        return False
    if rule.driver is None:
        return True
    if later.driver is None or not _globs(listed(rule.driver), listed(later.driver)):
        return False
    # A driver that is not known meets a rule that does not arm, and no rule that arms.
    return later.armed or not rule.armed


def deciding(rules: Sequence[InterfaceRule]) -> list[InterfaceRule]:
    """Those that no earlier one covers."""
    return [
        rule
        for i, rule in enumerate(rules)
        if not any(covers_interfaces(earlier, rule) for earlier in rules[:i])
    ]


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
    (include, exclude), (some, without) = sides(wide), sides(narrow)
    some = some or ["*"]
    return _each(include or ["*"], some) and all(
        _each_of(glob, without) or all(_is_other(glob, name) for name in some) for glob in exclude
    )


def _units(wide: Sequence[str], narrow: Sequence[str]) -> bool:
    """The same of globs on the units of a process, which has several at once, or none."""
    (include, exclude), (some, without) = sides(wide), sides(narrow)
    included = not include or (bool(some) and _each(include, some))
    return included and all(_each_of(glob, without) for glob in exclude)


def _each(wide: Iterable[str], narrow: Iterable[str]) -> bool:
    """What one of the narrow globs matches, one of the wide ones matches, too."""
    return all(_each_of(glob, wide) for glob in narrow)


def _each_of(glob: str, wide: Iterable[str]) -> bool:
    return any(_glob(each, glob) for each in wide)


def _is_other(glob: str, name: str) -> bool:
    """This is a plain name, and another one than the glob matches."""
    return not any(sign in name for sign in _WILD) and not fnmatchcase(name, glob)


def _glob(wide: str, narrow: str) -> bool:
    """Every name that `narrow` matches, `wide` matches, too."""
    if wide == narrow or not wide.strip("*"):
        return True
    # `eth*` matches the text `eth1?`, so it matches all that this stands for: only its `*` can
    # stand for a sign of the text. A `?` or `[` of its own could, too.
    name = not any(sign in narrow for sign in _WILD)
    signs = "[" not in narrow and not any(sign in wide for sign in "?[")
    return (name or signs) and fnmatchcase(narrow, wide)


_ALL_OF: Mapping[str, Callable[[Any, Any], bool]] = {
    "ports": _ranges,
    "direction": lambda asked, by_later: asked is by_later,
    "local": _networks,
    "remote": _networks,
    "users": ge,
    "interfaces": _globs,
    "processes": _globs,
    "cgroups": _globs,
    "units": _units,
    "commands": _globs,
}
