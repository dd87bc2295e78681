# SPDX-License-Identifier: GPL-2.0-or-later
"""Looks in a thread of their own, so that keys are heard however long the daemon takes; and the
names of keys, from what a terminal sends.

Sequences of the cursor keys as xterm, the Linux console and tmux send them (ECMA-48 CSI, SS3).
"""

from __future__ import annotations

import codecs
import re
import threading
import time
from collections.abc import Callable

from atfnd.ctl.top.look import Look, Looks
from atfnd.errors import OperatorError

__all__ = ["PATIENCE_S", "Asking", "Keys", "Patience"]

PATIENCE_S = 60.0  # with a daemon that went away


class Asking(threading.Thread):
    """One look in `interval_s`, while it is not paused. A look that takes long makes the next come
    later: half of the time nothing is asked. `tell` is called with each, in this thread."""

    def __init__(
        self, looks: Looks, interval_s: float, tell: Callable[[Look | BaseException], None]
    ) -> None:
        super().__init__(name="looks", daemon=True)
        self._looks, self._interval_s, self._tell = looks, interval_s, tell
        self._going = threading.Event()
        self._going.set()

    def run(self) -> None:
        threading.excepthook = lambda bug: self._tell(bug.exc_value or RuntimeError("no look"))
        while self._going.wait():
            began_s = time.monotonic()
            try:
                self._tell(self._looks.look())
            except OperatorError as trouble:
                self._tell(trouble)
            took_s = time.monotonic() - began_s
            time.sleep(max(self._interval_s - took_s, took_s))

    def pause(self, paused: bool) -> None:
        """From the next look on."""
        if paused:
            self._going.clear()
        else:
            self._going.set()


class Patience:
    """With a daemon that does not answer: for how long it is asked on."""

    def __init__(self) -> None:
        self._until_s: float | None = None

    def answered(self) -> None:
        self._until_s = None

    def left_s(self, now_s: float) -> float:
        """Counts from the first question without an answer; 0 when there is none left."""
        if self._until_s is None:
            self._until_s = now_s + PATIENCE_S
        return max(0.0, self._until_s - now_s)


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
