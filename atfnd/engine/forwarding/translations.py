# SPDX-License-Identifier: GPL-2.0-or-later
"""The translated flows that are steered. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from atfnd.model import TRANSLATED, TranslatedFlow, Translation

__all__ = ["Translations"]


class _Held(NamedTuple):
    now: Translation
    used_ns: int
    since_ns: int


@dataclass(slots=True)
class Translations:
    """By the cookie of their entries in the Flow-to-Core table: one for both directions."""

    held: dict[int, _Held] = field(default_factory=dict)
    last: int = TRANSLATED  # the cookie that was given last
    # Strict rules under which a flow is left where it is, and an interface that it goes out by.
    held_back: dict[str, str] = field(default_factory=dict)

    def cookie(self, flow: TranslatedFlow) -> int:
        """Of this flow; a new one, if it is not steered."""
        for cookie, held in self.held.items():
            if held.now.flow[:2] == flow[:2]:
                return cookie
        return self.new()

    def new(self) -> int:
        """A cookie that was not given before."""
        self.last += 1
        return self.last

    def hold(self, cookie: int, now: Translation, now_ns: int) -> None:
        """It has entries from now on."""
        self.held.setdefault(cookie, _Held(now, now_ns, now_ns))

    def seen(self, cookie: int, now: Translation, now_ns: int) -> None:
        """It is so now. It is in use if its bytes are others, or are not known."""
        before = self.held[cookie]
        idle = now.flow.bytes is not None and now.flow.bytes == before.now.flow.bytes
        self.held[cookie] = _Held(now, before.used_ns if idle else now_ns, before.since_ns)
