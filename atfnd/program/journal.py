# SPDX-License-Identifier: GPL-2.0-or-later
"""Which rules in which NIC are ours, written before the rule is: what a restart re-adopts.

An append-only file of JSON lines: `["+", nic, match]` before an insert, `["-", nic, match]` after a
delete or a refusal. It is written without fsync, because filters do not outlive the power either; a
line cut short by a kill is the last one and names a rule that was not written yet.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from atfnd.model import Match

__all__ = ["Journal"]


def _encode(sign: str, nic: str, match: Match) -> bytes:
    fields = [field.hex() if isinstance(field, bytes) else field for field in match]
    return json.dumps([sign, nic, fields], separators=(",", ":")).encode() + b"\n"


def _decode(line: bytes) -> tuple[str, str, Match] | None:
    """One line, None when it is torn or not ours."""
    try:
        sign, nic, fields = json.loads(line)
        family, protocol, src, src_prefix, dst, dst_prefix, src_port, dst_port = fields
        return sign, nic, Match(
            family, protocol,
            None if src is None else bytes.fromhex(src), src_prefix,
            None if dst is None else bytes.fromhex(dst), dst_prefix,
            src_port, dst_port,
        )  # fmt: skip
    except (ValueError, TypeError):
        return None


class Journal:
    """Matches we have in NICs. OSError when it cannot be written: then nothing may be changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.left = self._read()
        self._compact()
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def _read(self) -> dict[str, set[Match]]:
        """What an earlier run left, by NIC."""
        left: dict[str, set[Match]] = {}
        if self._path.exists():
            for line in self._path.read_bytes().splitlines():
                entry = _decode(line)
                if entry is None:
                    continue
                sign, nic, match = entry
                if sign == "+":
                    left.setdefault(nic, set()).add(match)
                else:
                    left.get(nic, set()).discard(match)
        return left

    def _compact(self) -> None:
        """Write only what is left, atomically."""
        fresh = self._path.with_suffix(".new")
        lines = [_encode("+", nic, match) for nic, owned in self.left.items() for match in owned]
        fresh.write_bytes(b"".join(lines))
        fresh.chmod(0o600)
        fresh.replace(self._path)

    def claim(self, nic: str, match: Match) -> None:
        """Before the insert."""
        os.write(self._file, _encode("+", nic, match))

    def release(self, nic: str, match: Match) -> None:
        """After the delete, or after a refused insert."""
        os.write(self._file, _encode("-", nic, match))

    def close(self) -> None:
        os.close(self._file)
