# SPDX-License-Identifier: GPL-2.0-or-later
"""Which rules in which NIC are ours, written before the rule is: what a restart re-adopts.

An append-only file of JSON lines: `["+", nic, match]` before an insert, `["@", nic, match,
location]` after it, `["-", nic, match]` after a delete or a refusal; when it has grown it is
written anew, with what is left. It is written without fsync, because filters do not outlive the
power either; a line cut short by a kill is the last one and names a rule that was not written yet,
or is the location of one, and then the match alone tells whose it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from atfnd.model import Match, Rule

__all__ = ["Journal"]

_GROWTH_BYTES = 1 << 20

_json = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps makes an encoder every time


Rules = dict[Match, int | None]  # by match: the location, None as long as it is not known


def _encode(sign: str, nic: str, match: Match, location: int | None = None) -> bytes:
    fields = [field.hex() if isinstance(field, bytes) else field for field in match]
    line = [sign, nic, fields] if location is None else [sign, nic, fields, location]
    return _json(line).encode() + b"\n"


def _decode(line: bytes) -> tuple[str, str, Match, int | None] | None:
    """One line, None when it is torn or not ours."""
    try:
        sign, nic, fields, *rest = json.loads(line)
        family, protocol, src, src_prefix, dst, dst_prefix, src_port, dst_port = fields
        match = Match(
            family, protocol,
            None if src is None else bytes.fromhex(src), src_prefix,
            None if dst is None else bytes.fromhex(dst), dst_prefix,
            src_port, dst_port,
        )  # fmt: skip
    except (ValueError, TypeError):
        return None
    return sign, nic, match, rest[0] if rest else None


class Journal:
    """Matches we have in NICs. OSError when it cannot be written: then nothing may be changed.

    `left` is what an earlier run left and nobody has released since, by NIC.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self.left = self._read()
        self._compact(self.left)

    def _read(self) -> dict[str, Rules]:
        """What the file says we have in NICs."""
        left: dict[str, Rules] = {}
        if self._path.exists():
            for line in self._path.read_bytes().splitlines():
                entry = _decode(line)
                if entry is None:
                    continue
                sign, nic, match, location = entry
                if sign == "-":
                    left.get(nic, {}).pop(match, None)
                else:
                    left.setdefault(nic, {})[match] = location
        return left

    def _compact(self, held: dict[str, Rules]) -> None:
        """Write only this, atomically, and go on from there."""
        fresh = self._path.with_suffix(".new")
        lines = [
            _encode("+" if location is None else "@", nic, match, location)
            for nic, owned in held.items()
            for match, location in owned.items()
        ]
        size = fresh.write_bytes(b"".join(lines))
        fresh.chmod(0o600)
        fresh.replace(self._path)
        if self._file >= 0:
            os.close(self._file)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._room = max(_GROWTH_BYTES, size)

    def _append(self, line: bytes) -> None:
        os.write(self._file, line)
        self._room -= len(line)
        if self._room < 0:
            self._compact(self._read())

    def claim(self, nic: str, match: Match) -> None:
        """Before the insert."""
        self._append(_encode("+", nic, match))

    def locate(self, nic: str, match: Match, location: int) -> None:
        """After the insert: a filter of the same match at another location is not ours."""
        self._append(_encode("@", nic, match, location))

    def ours(self, nic: str, rules: Iterable[Rule]) -> list[Rule]:
        """Those of the NIC's rules that an earlier run left. Of two with one match and no location
        known, the one at the higher location: we insert from the top of the table down."""
        left = self.left.get(nic, {})
        found = {
            rule.match: rule
            for rule in sorted(rules, key=lambda rule: rule.location)
            if rule.match in left and left[rule.match] in (None, rule.location)
        }
        return list(found.values())

    def release(self, nic: str, match: Match) -> None:
        """After the delete, or after a refused insert."""
        self.left.get(nic, {}).pop(match, None)
        self._append(_encode("-", nic, match))

    def rename(self, old: str, new: str) -> None:
        """An interface has another name now; its rules are `left` to be adopted under it."""
        held = self._read()
        if moved := held.pop(old, {}):
            held.setdefault(new, {}).update(moved)
            self._compact(held)
        self.left.pop(old, None)
        self.left[new] = dict(held.get(new, {}))

    def close(self) -> None:
        os.close(self._file)
