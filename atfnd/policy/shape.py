# SPDX-License-Identifier: GPL-2.0-or-later
"""What an editor can check of single values: JSON Schema (2020-12) of each kind that we parse.

Each is as wide as its parser or wider: what a shape refuses, the parser refuses too. `examples` are
shown in docs/policies.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atfnd.model import Direction, Protocol
from atfnd.policy.units import RATES, SIZES, TIMES

__all__ = [
    "CGROUPS",
    "COMMANDS",
    "DIRECTION",
    "INTERFACES",
    "NETWORK",
    "PORT",
    "PROCESSES",
    "PROTOCOL",
    "QUANTITIES",
    "RATE",
    "RULE_NAME",
    "SIZE",
    "TIME",
    "UNITS",
    "USER",
    "Shape",
    "one_or_more",
]

Shape = dict[str, Any]


def _quantity(unit: str, *examples: str) -> Shape:
    pattern = rf"^[0-9]+(\.[0-9]+)? ?({unit})$"
    return {"type": "string", "pattern": pattern, "examples": list(examples)}


def _globs(*examples: str) -> Shape:
    glob = r"[^|]*[^|\s][^|]*"
    return {"type": "string", "pattern": rf"^{glob}(\|{glob})*$", "examples": list(examples)}


def one_or_more(item: Shape) -> Shape:
    """One of these, or a list of them."""
    return {"anyOf": [item, {"type": "array", "items": item, "minItems": 1}]}


_BITS = "|".join(unit for unit in RATES if "/" not in unit)
_BYTES = "|".join(unit for unit in RATES if "/" in unit)

SIZE = _quantity("|".join(SIZES), "64KiB", "1.5MiB")
TIME = _quantity("|".join(TIMES), "200ms", "30s")
RATE = _quantity(rf"({_BITS})(/s)?|{_BYTES}", "500Mbit", "10MiB/s")
QUANTITIES: Mapping[str, Mapping[str, int]] = {
    SIZE["pattern"]: SIZES,
    TIME["pattern"]: TIMES,
    RATE["pattern"]: RATES,
}

PROTOCOL: Shape = {"enum": [each.name.lower() for each in Protocol]}
DIRECTION: Shape = {"enum": [each.value for each in Direction]}
PORT: Shape = {
    "anyOf": [
        {"type": "integer", "minimum": 1, "maximum": 65535},
        {"type": "string", "pattern": "^[0-9]{1,9}-[0-9]{1,9}$"},
    ],
    "examples": [443, "8000-8010"],
}
NETWORK: Shape = {
    "type": "string",
    "pattern": r"^[0-9a-fA-F:.]+(/[0-9]{1,3})?$",
    "examples": ["10.0.0.0/8", "2001:db8::/32", "192.0.2.1"],
}
USER: Shape = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": 2**32 - 2},
        {"type": "string", "minLength": 1},
    ],
    "examples": ["www-data", 1000],
}
PROCESSES = _globs("iperf3|globus*")
COMMANDS = _globs("*/iperf3 -s*", "java *org.apache.kafka*")
CGROUPS = _globs("/system.slice/nginx.service", "/kubepods*")
UNITS = _globs("nginx.service", "user@1000.service|machine.slice")
INTERFACES = _globs("eth*", "lab:*")
RULE_NAME: Shape = {"type": "string", "pattern": r"^\S+$", "examples": ["bulk"]}
