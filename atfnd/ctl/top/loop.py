# SPDX-License-Identifier: GPL-2.0-or-later
"""The live view: looks, keys and signals, and a frame whenever one of them came."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections import deque
from contextlib import suppress
from types import FrameType

from atfnd.ctl.client import Row
from atfnd.ctl.top.asking import Asking, Patience
from atfnd.ctl.top.figures import Series
from atfnd.ctl.top.forwarded import pairs_in
from atfnd.ctl.top.frame import flow_lines, frame
from atfnd.ctl.top.look import Look, Looks
from atfnd.ctl.top.terminal import Keys, Terminal
from atfnd.ctl.top.view import View, press, shown
from atfnd.errors import OperatorError

__all__ = ["Live"]

_ESC_S = 0.05  # what belongs to an Esc has arrived after this time
_ENDS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_SIGNALS = (*_ENDS, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)


class Live:
    """One run of `top` in a terminal. OperatorError at once: the daemon is not there."""

    def __init__(self, looks: Looks, interval_s: float) -> None:
        self._series = Series()
        self._figures = self._series.see(looks.look())
        self._view, self._keys = View(unsteered=looks.unsteered), Keys()
        self._flows = shown(self._figures.flows, self._view)
        self._trouble, self._patience = "", Patience()
        self._news: deque[Look | BaseException] = deque()
        self._signals: deque[int] = deque()
        self._woken, self._wake = socket.socketpair()
        self._terminal = Terminal()
        self._looks = looks
        self._forwarded: Row | None = None
        self._asking = Asking(looks, interval_s, self._tell)

    def run(self) -> int:
        """Until the operator has seen enough. Returns the signal that ended it, 0 for none and for
        Ctrl-C. OperatorError: the daemon went away and did not come back."""
        for end in (self._woken, self._wake):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, self._signaled)
        self._asking.start()
        with selectors.DefaultSelector() as selector, self._terminal:
            selector.register(self._woken, selectors.EVENT_READ)
            if self._terminal.keys is not None:
                selector.register(self._terminal.keys, selectors.EVENT_READ)
            return self._until_over(selector)

    def _tell(self, news: Look | BaseException) -> None:
        """From the thread of looks."""
        self._news.append(news)
        with suppress(BlockingIOError):  # so full that it wakes
            self._wake.send(b"\0")

    def _signaled(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

    def _until_over(self, selector: selectors.BaseSelector) -> int:
        while not self._view.over:
            try:
                self._draw()
            except OSError:
                return signal.SIGHUP  # the terminal is closed
            ready = {key.fd for key, _ in selector.select(_ESC_S if self._keys.waiting() else None)}
            if self._woken.fileno() in ready:
                with suppress(BlockingIOError):
                    self._woken.recv(4096)
            if self._terminal.keys in ready:
                self._typed(selector)
            elif self._keys.waiting():
                self._pressed(self._keys.rest())
            while self._news:
                self._hear(self._news.popleft())
            while self._signals:
                number = self._signals.popleft()
                if number in _ENDS:
                    return 0 if number == signal.SIGINT else number
                if number == signal.SIGTSTP:
                    self._stop()
        return 0

    def _draw(self) -> None:
        size = self._terminal.size()
        rows = len(pairs_in(self._forwarded) if self._view.forwarded else self._flows)
        self._view = self._view.within(rows, flow_lines(self._figures, size))
        self._terminal.draw(
            frame(self._figures, self._flows, self._view, self._trouble, size, self._forwarded)
        )

    def _typed(self, selector: selectors.BaseSelector) -> None:
        if typed := self._terminal.read():
            self._pressed(self._keys.feed(typed))
        elif self._terminal.keys is not None:
            selector.unregister(self._terminal.keys)
            self._terminal.keys = None

    def _pressed(self, keys: list[str]) -> None:
        before, lines = self._view.order, flow_lines(self._figures, self._terminal.size())
        for key in keys:
            self._view = press(self._view, key, lines)
        if self._view.order != before:
            self._flows = shown(self._figures.flows, self._view)
        self._asking.pause(self._view.paused)
        self._looks.forwarded = self._view.forwarded
        self._looks.unsteered = self._view.unsteered

    def _hear(self, news: Look | BaseException) -> None:
        """A look, or why there is none."""
        if isinstance(news, Look):
            figures = self._series.see(news)
            if not self._view.paused:
                self._figures, self._flows = figures, shown(figures.flows, self._view)
                self._forwarded = news.pairs
            self._trouble = ""
            self._patience.answered()
        elif isinstance(news, OperatorError):
            left_s = self._patience.left_s(time.monotonic())
            if not left_s:
                raise news
            self._trouble = f"asking on for {left_s:.0f} s: {news.message}"
        else:
            raise news

    def _stop(self) -> None:
        """Ctrl-Z: the shell has the terminal until it says `fg`."""
        self._terminal.leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._signaled)
        self._terminal.enter()
