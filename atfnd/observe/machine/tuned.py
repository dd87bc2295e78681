# SPDX-License-Identifier: GPL-2.0-or-later
"""What the active profile of tuned does to interrupts (tuned.conf(5)). Reads only.

A profile takes over what those in its `include=` do, and says in its own sections what differs.
Names in it may depend on variables and functions (`${...}`): then every profile counts that such a
name can mean.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

__all__ = ["active_profile", "moves_interrupts"]

# The first that has a profile wins. Those called `profiles` are of tuned since 2.23.
FOLDERS = ("etc/tuned/profiles", "etc/tuned", "usr/lib/tuned/profiles", "usr/lib/tuned")
_EXPANDED = re.compile(r"\$\{[^${}]*\}")
_OFF = ("0", "false", "no", "off", "n")

_Units = dict[str, dict[str, str]]


def active_profile(root: Path) -> str | None:
    """Its name, or several. None: there is none."""
    with suppress(OSError):
        return (root / "etc/tuned/active_profile").read_text().strip() or None
    return None


def moves_interrupts(profile: str, root: Path) -> tuple[str, ...] | None:
    """The sections and options by which it moves interrupts. None: no file says."""
    units: _Units = {}
    known = [_take(name, root, units, frozenset()) for name in profile.split()]
    if not all(known):
        return None
    return tuple(sorted({name for unit in units.items() for name in _moving(*unit)}))


def _moving(section: str, options: dict[str, str]) -> Iterator[str]:
    kind = options.get("type") or section
    if options.get("enabled", "1").lower() in _OFF:
        return
    if kind in ("irq", "irqbalance"):
        yield f"[{section}]"
    if kind != "scheduler":
        return
    if options.get("isolated_cores") and options.get("irq_process", "1").lower() not in _OFF:
        yield "isolated_cores"
    if options.get("default_irq_smp_affinity", "ignore") not in ("", "ignore"):
        yield "default_irq_smp_affinity"


def _take(name: str, root: Path, units: _Units, within: frozenset[str]) -> bool:
    """Add what a profile does, after what it includes. False: there is none."""
    found = [each for each in _profiles(root) if fnmatchcase(each.name, name)]
    for path in found if "*" in name else found[:1]:
        if path.name in within:
            continue  # a circle
        keys = _read(path / "tuned.conf")
        for each in _included(keys):
            _take(each, root, units, within | {path.name})
        for section in keys.sections():
            options = {key: value or "" for key, value in keys.items(section)}
            if options.get("replace", "0").lower() not in _OFF:
                units.pop(section, None)
            units.setdefault(section, {}).update(options)
    return bool(found)


def _included(keys: configparser.ConfigParser) -> Iterator[str]:
    """Names, as patterns. A hyphen in front: it need not be there."""
    text = keys.get("main", "include", fallback="") or ""
    while _EXPANDED.search(text):
        text = _EXPANDED.sub("*", text)
    for name in re.split(r"[,;]", text):
        yield name.strip().removeprefix("-")


def _profiles(root: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        yield from sorted(path.parent for path in (root / folder).glob("*/tuned.conf"))


def _read(path: Path) -> configparser.ConfigParser:
    """A file that is none counts as empty."""
    keys = configparser.ConfigParser(
        interpolation=None, strict=False, delimiters=("=",), allow_no_value=True
    )
    with suppress(OSError, UnicodeDecodeError, configparser.Error):
        keys.read_string(path.read_text())
    return keys
