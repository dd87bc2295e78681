# SPDX-License-Identifier: GPL-2.0-or-later
"""A real terminal: a shell in tmux, of a size, typed into, and read as a person sees it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.wait import until

__all__ = ["PROMPT", "Terminal", "a_terminal"]

PROMPT = "ready>"


class Terminal:
    """Ends with `a_terminal`."""

    def __init__(self, folder: Path, width: int, height: int, env: Mapping[str, str]) -> None:
        self._socket = folder / "tmux"
        settings = [f"-e{name}={value}" for name, value in env.items()]
        shell = ["bash", "--norc", "--noprofile", "-i"]
        self._tmux("new-session", "-d", f"-x{width}", f"-y{height}", *settings, *shell)
        self.has(PROMPT)

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-f", "/dev/null", "-S", str(self._socket), *words],
            capture_output=True, text=True, timeout=30,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def press(self, *keys: str) -> None:
        """Names of keys as tmux has them: `Enter`, `Down`, `C-c`, `q`."""
        self._tmux("send-keys", *keys)

    def type(self, words: str) -> None:
        self._tmux("send-keys", "-l", words)

    def run(self, line: str) -> None:
        """A line of shell."""
        self.type(line)
        self.press("Enter")

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", f"-x{width}", f"-y{height}")

    def lines(self) -> list[str]:
        """The screen now."""
        return self._tmux("capture-pane", "-p").splitlines()

    def screen(self) -> str:
        return "\n".join(self.lines())

    def has(self, *words: str) -> str:
        """Wait until all of these are on the screen; returns it."""

        def shown() -> str | None:
            screen = self.screen()
            return screen if all(word in screen for word in words) else None

        try:
            found = until(shown, f"{words} on the screen")
        except AssertionError as late:
            raise AssertionError(f"{late}; it is\n{self.screen()}") from late
        assert found is not None
        return found

    def state(self) -> tuple[str, ...]:
        """Whether the alternate screen is shown, and the cursor."""
        return tuple(self._tmux("display", "-p", "#{alternate_on} #{cursor_flag}").split())

    def settings(self, file: Path) -> str:
        """What stty says, once the shell is ready."""
        self.run(f"stty -g >{file}.new && mv {file}.new {file}")
        until(file.exists, "stty")
        return file.read_text()

    def end(self) -> None:
        self._tmux("kill-server")


@contextmanager
def a_terminal(folder: Path, width: int, height: int, **env: str) -> Iterator[Terminal]:
    """With this environment beside the test's own. tmux lives in `folder`."""
    path = {"PATH": os.environ["PATH"], "PS1": f"{PROMPT} ", "TERM": "screen-256color"}
    terminal = Terminal(folder, width, height, path | env)
    try:
        yield terminal
    finally:
        terminal.end()
