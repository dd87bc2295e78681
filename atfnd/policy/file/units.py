# SPDX-License-Identifier: GPL-2.0-or-later
"""Sizes (`64KiB`), times (`200ms`), rates (`500Mbit`) and shares of a core (`1%`) as a person
writes them, in bytes, nanoseconds, bits a second and cores.

A unit is always written, so that no number has to be guessed at; all fit a signed 64-bit integer,
because they are compiled into BPF.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from atfnd.policy.file.problem import Mistake, said

__all__ = ["MAX", "RATES", "SIZES", "TIMES", "rate_bit_s", "share_of_core", "size_bytes", "time_ns"]

MAX = 2**63 - 1

SIZES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
TIMES = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
RATES = {
    "bit": 1,
    "kbit": 10**3,
    "Mbit": 10**6,
    "Gbit": 10**9,
    "Tbit": 10**12,
    "B/s": 8,
    "KiB/s": 8 * 2**10,
    "MiB/s": 8 * 2**20,
    "GiB/s": 8 * 2**30,
}
MEANT = {
    "k": "KiB",
    "kb": "KiB",
    "m": "MiB",
    "mb": "MiB",
    "g": "GiB",
    "gb": "GiB",
    "µs": "us",
    "sec": "s",
    "min": "m",
    "kbps": "kbit",
    "mbps": "Mbit",
    "gbps": "Gbit",
    "kb/s": "kbit",
    "Mb": "Mbit",
    "Gb": "Gbit",
    "Mb/s": "Mbit",
    "Gb/s": "Gbit",
    "kB/s": "KiB/s",
    "MB/s": "MiB/s",
    "GB/s": "GiB/s",
}
PERCENT = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?) ?%")
QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?((?:[^\W\d_]|/)*)")


def size_bytes(value: object) -> int:
    """Bytes of `1500B`, `64KiB`, `1.5MiB`; Mistake otherwise."""
    return _quantity(value, SIZES, "a size such as 64KiB")


def time_ns(value: object) -> int:
    """Nanoseconds of `200ms`, `30s`, `2m`; Mistake otherwise."""
    return _quantity(value, TIMES, "a time such as 200ms")


def rate_bit_s(value: object) -> int:
    """Bits a second of `500Mbit`, `500Mbit/s`, `10MiB/s`; Mistake otherwise."""
    bare = value[:-2] if isinstance(value, str) and value.endswith("bit/s") else value
    return _quantity(bare, RATES, "a rate such as 500Mbit")


def share_of_core(value: object) -> float:
    """0.015 of `1.5%`, which is more than 0; more than 100 % is more than one core. Mistake
    otherwise."""
    found = PERCENT.fullmatch(value) if isinstance(value, str) else None
    if found is None or not (share := float(found[1]) / 100):
        raise Mistake(f"expected percent of a core such as 1%, got {said(value)}")
    return share


def _quantity(value: object, units: Mapping[str, int], wanted: str) -> int:
    known = ", ".join(units)
    if type(value) is int and value >= 0:
        raise Mistake(f"`{value}` has no unit, expected {wanted}", f"units: {known}")
    found = QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise Mistake(f"expected {wanted}, got {said(value)}", f"units: {known}")
    number, unit = found.groups()
    if unit not in units:
        message = f"unknown unit `{unit}`" if unit else f"`{value}` has no unit"
        raise Mistake(f"{message}, expected {wanted}", _unit_hint(number, unit, units))
    amount = Fraction(number) * units[unit]
    if amount.denominator != 1:
        raise Mistake(f"`{value}` is not a whole number of {next(iter(units))}")
    if amount > MAX:
        raise Mistake(f"`{value}` is out of range")
    return int(amount)


def _unit_hint(number: str, unit: str, units: Mapping[str, int]) -> str:
    by_lower = {name.lower(): name for name in units}
    lower = unit.lower()
    known = [by_lower.get(lower), MEANT.get(unit), MEANT.get(lower)]
    if unit:
        known += [by_lower.get(f"{lower}/s"), by_lower.get(f"{lower}bit")]
    if meant := next((each for each in known if each in units), None):
        return f"did you mean {number}{meant}?"
    return f"units: {', '.join(units)}"
