# SPDX-License-Identifier: GPL-2.0-or-later
"""Looks in a thread of their own, so that keys are heard however long the daemon takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from atfnd.ctl.top.look import Look, Looks
from atfnd.errors import OperatorError

__all__ = ["PATIENCE_S", "Asking", "Patience"]

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
