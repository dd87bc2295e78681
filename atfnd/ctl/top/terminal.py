# SPDX-License-Identifier: GPL-2.0-or-later
"""The terminal while `top` has it: its size, keys one by one, frames in place; left as it was.

Changes the settings of standard input's terminal (termios(3): no echo, no line editing; signals
stay), and the screen of standard output's: the alternate one, without a cursor. On a terminal that
cannot be written anywhere on (TERM=dumb), frames come one below the other.

Sequences of the cursor keys as xterm, the Linux console and tmux send them (ECMA-48 CSI, SS3).
"""

from __future__ import annotations

import codecs
import os
import re
import sys
import termios
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType

from rich.console import Console, ConsoleDimensions
from rich.control import Control
from rich.text import Text

from atfnd.ctl.top.frame import Size

__all__ = ["Keys", "Terminal"]

_LFLAG, _CC = 3, 6  # of what tcgetattr returns


class Terminal:
    """Ours between `enter` and `leave`, which may come as often as wanted: a process that is
    stopped leaves it, too."""

    def __init__(self) -> None:
        self._console = Console(markup=False, highlight=False, emoji=False)
        self._before = None if not sys.stdin.isatty() else termios.tcgetattr(sys.stdin)
        self.keys = None if self._before is None else sys.stdin.fileno()

    def size(self) -> Size:
        """In cells, now: not what the environment had when we started. OSError: it is closed."""
        found = os.get_terminal_size(sys.stdout.fileno())
        if all(found):  # a serial line knows none
            self._console.size = ConsoleDimensions(*found)
        return Size(*self._console.size)

    def __enter__(self) -> Terminal:
        self.enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.leave()

    def enter(self) -> None:
        """OSError: it is closed."""
        if self.keys is not None:
            ours = termios.tcgetattr(self.keys)
            ours[_LFLAG] &= ~(termios.ECHO | termios.ICANON)
            ours[_CC][termios.VMIN], ours[_CC][termios.VTIME] = 1, 0
            termios.tcsetattr(self.keys, termios.TCSADRAIN, ours)
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)

    def leave(self) -> None:
        """Restore its settings and its screen; it may be closed already."""
        with suppress(OSError):
            self._console.show_cursor(True)
            self._console.set_alt_screen(False)
        if self.keys is not None and self._before is not None:
            with suppress(termios.error):
                termios.tcsetattr(self.keys, termios.TCSAFLUSH, self._before)

    def draw(self, lines: Iterable[Text]) -> None:
        """One frame of the terminal's size, at once. OSError: it is closed."""
        below = self._console.is_dumb_terminal
        with self._console:
            for number, line in enumerate(lines):
                self._console.control(Control.move_to(0, number))
                self._console.print(line, end="\n" if below else "", no_wrap=True, crop=True)

    def read(self) -> bytes:
        """What was typed; nothing: its end."""
        assert self.keys is not None
        try:
            return os.read(self.keys, 1024)
        except OSError:
            return b""


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
