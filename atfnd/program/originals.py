# SPDX-License-Identifier: GPL-2.0-or-later
"""Knobs we changed: what they were before, and what we wrote last. Read to undo it.

A file of JSON lines in the run directory: `["=", nic, knob, original]` before the first write of a
knob, `[">", nic, knob, value]` before each write, `["-", nic, knob]` when it is let go of. Each is
fsynced, unlike the journal of rules: a knob outlives the daemon and looks like anybody's. A line
cut short by a kill is the last one, and the write it announces was not done.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

__all__ = ["Held", "Originals"]

_GROWTH_BYTES = 1 << 20


class Held(NamedTuple):
    """One knob that is ours."""

    original: str  # before our first write
    wrote: str | None  # last; None: we were about to


class Originals:
    """Original values by NIC and knob. OSError when the file cannot be written: then nothing may
    be changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._held = _read(path)
        self._compact()

    def note(self, nic: str, knob: str, original: str) -> None:
        """Before the first write of a knob; of one that is held already, the first one stays."""
        if knob not in self._held.get(nic, {}):
            self._append("=", nic, knob, original)
            self._held.setdefault(nic, {})[knob] = Held(original, None)

    def wrote(self, nic: str, knob: str, value: str) -> None:
        """Before each write of a knob that is held. KeyError: it is not."""
        held = self._held[nic][knob]
        self._append(">", nic, knob, value)
        self._held[nic][knob] = held._replace(wrote=value)

    def held(self, nic: str) -> dict[str, Held]:
        """What is ours on this NIC, in the order it was first written."""
        return dict(self._held.get(nic, {}))

    def nics(self) -> list[str]:
        """NICs with a knob of ours."""
        return [nic for nic, knobs in self._held.items() if knobs]

    def forget(self, nic: str, knob: str) -> None:
        """It is put back, or somebody else's now."""
        if self._held.get(nic, {}).pop(knob, None) is not None:
            self._append("-", nic, knob)

    def rename(self, old: str, new: str) -> None:
        """An interface has another name now."""
        if knobs := self._held.pop(old, None):
            self._held[new] = {**self._held.get(new, {}), **knobs}
            self._compact()

    def close(self) -> None:
        os.close(self._file)

    def _append(self, *entry: str) -> None:
        line = _line(*entry)
        os.write(self._file, line)
        os.fsync(self._file)
        self._room -= len(line)
        if self._room < 0:
            self._held = _read(self._path)
            self._compact()

    def _compact(self) -> None:
        """Write only what is held, atomically, and go on from there."""
        fresh = self._path.with_suffix(".new")
        size = 0
        with fresh.open("wb") as file:
            for nic, knobs in self._held.items():
                for knob, (original, wrote) in knobs.items():
                    size += file.write(_line("=", nic, knob, original))
                    if wrote is not None:
                        size += file.write(_line(">", nic, knob, wrote))
            file.flush()
            os.fsync(file.fileno())
        fresh.chmod(0o600)
        fresh.replace(self._path)
        if self._file >= 0:
            os.close(self._file)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._room = max(_GROWTH_BYTES, size)


def _line(*entry: str) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def _read(path: Path) -> dict[str, dict[str, Held]]:
    """What the file says is ours."""
    held: dict[str, dict[str, Held]] = {}
    if not path.exists():
        return held
    for line in path.read_bytes().splitlines():
        match _decoded(line):
            case ["=", nic, knob, original]:
                held.setdefault(nic, {}).setdefault(knob, Held(original, None))
            case [">", nic, knob, value] if knob in held.get(nic, {}):
                held[nic][knob] = held[nic][knob]._replace(wrote=value)
            case ["-", nic, knob]:
                held.get(nic, {}).pop(knob, None)
    return held


def _decoded(line: bytes) -> list[str]:
    """One line; empty when it is torn or not ours."""
    try:
        entry = json.loads(line)
    except ValueError:
        return []
    whole = isinstance(entry, list) and all(isinstance(field, str) for field in entry)
    return entry if whole else []
