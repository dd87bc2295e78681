# SPDX-License-Identifier: GPL-2.0-or-later
"""From what a terminal sends to the names of keys. Pure.

Sequences of the cursor keys as xterm, the Linux console and tmux send them (ECMA-48 CSI, SS3).
"""

from __future__ import annotations

import codecs
import re

__all__ = ["Keys"]

_SEQUENCES = {
    "A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end",
    "1~": "home", "7~": "home", "4~": "end", "8~": "end", "5~": "pgup", "6~": "pgdn",
}  # fmt: skip
_CONTROLS = {
    "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x15": "ctrl-u",
    "\x03": "ctrl-c", "\x1b": "esc",
}  # fmt: skip
_WHOLE = re.compile(r"\x1b\[([0-9;?]*[ -/]*[@-~])|\x1bO([@-~])")
_BEGUN = re.compile(r"\x1b(O|\[[0-9;?]*[ -/]*)?\Z")
_LONGEST = 32  # what has no end by then is none


class Keys:
    """Bytes in, keys out; what may go on is kept until it does, or `rest` says that it does not."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._left = ""

    def feed(self, data: bytes) -> list[str]:
        """Keys that are complete: `up`, `enter`, `esc`, or one character."""
        self._left += self._decoder.decode(data)
        return list(self._taken(final=False))

    def waiting(self) -> bool:
        """Something was begun: an Esc of its own looks like that."""
        return bool(self._left)

    def rest(self) -> list[str]:
        """Nothing came after it: the keys it is by itself."""
        return self._taken(final=True)

    def _taken(self, *, final: bool) -> list[str]:
        keys = []
        while self._left:
            if whole := _WHOLE.match(self._left):
                self._left = self._left[whole.end() :]
                name = _SEQUENCES.get(whole[1] or whole[2])
                keys += [name] if name else []
                continue
            begun = _BEGUN.match(self._left)
            if begun and not final and len(self._left) < _LONGEST:
                break
            character, self._left = self._left[0], self._left[1:]
            if character in _CONTROLS or character.isprintable():
                keys.append(_CONTROLS.get(character, character))
        return keys
