# SPDX-License-Identifier: GPL-2.0-or-later
"""CPU lists as the kernel writes them ("0-3,8"), masks ("ff,0000000f"), and sets of CPU numbers.
No I/O, except by `online` (Documentation/ABI/testing/sysfs-devices-system-cpu).

Format: lib/bitmap-str.c bitmap_parselist() and "%*pbl", bitmap_parse() and "%*pb"; cpuset(7)
"Formats". A stride ("0-30:2/4", used groups of a group size) is read, never written.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

__all__ = ["format_cpulist", "format_cpumask", "online", "parse_cpulist", "parse_cpumask"]


def parse_cpulist(text: str) -> frozenset[int]:
    """`"0-3,8\\n"` to {0, 1, 2, 3, 8}; blank text is the empty set. ValueError on anything else."""
    text = text.strip()
    return frozenset().union(*(_region(part) for part in text.split(","))) if text else frozenset()


def _region(text: str) -> list[int]:
    span, colon, stride = text.partition(":")
    first, dash, last = span.partition("-")
    start, end = _number(first), _number(last if dash else first)
    used, group = 1, 1
    if colon:
        part, slash, whole = stride.partition("/")
        used, group = _number(part), _number(whole)
        if not slash or not 0 < used <= group:
            raise ValueError(f"not a CPU list: {text!r}")
    if end < start:
        raise ValueError(f"not a CPU list: {text!r}")
    return [cpu for cpu in range(start, end + 1) if (cpu - start) % group < used]


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"not a CPU number: {text!r}")
    return int(text)


def format_cpulist(cpus: Iterable[int]) -> str:
    """{0, 1, 2, 3, 8} to `"0-3,8"`; the empty set to `""`."""
    spans: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if spans and spans[-1][1] == cpu - 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in spans)


def parse_cpumask(text: str) -> frozenset[int]:
    """`"00000001,0000000f\\n"` to {0, 1, 2, 3, 32}. ValueError on anything else."""
    bits = int(text.strip().replace(",", ""), 16)
    return frozenset(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1)


def format_cpumask(cpus: Iterable[int]) -> str:
    """{0, 1, 2, 3, 32} to `"1,0000000f"`: words of 32 bits (bitmap_parse takes no longer ones)."""
    bits = sum(1 << cpu for cpu in set(cpus))
    words = [f"{bits >> at & 0xFFFFFFFF:08x}" for at in range(0, max(bits.bit_length(), 1), 32)]
    return ",".join(reversed(words)).lstrip("0,") or "0"


def online(root: Path = Path("/")) -> frozenset[int]:
    """CPUs that run tasks now (/sys/devices/system/cpu/online)."""
    return parse_cpulist((root / "sys/devices/system/cpu/online").read_text())
