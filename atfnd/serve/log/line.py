# SPDX-License-Identifier: GPL-2.0-or-later
"""An event as a line for people, and how much it matters (syslog(3))."""

from __future__ import annotations

import sys

from atfnd.model import Event

__all__ = ["Stderr", "line_of", "priority_of"]

WARNING, NOTICE, INFO = 4, 5, 6
UNWANTED = {
    "dropped",
    "journal",
    "lost",
    "lost-filter",
    "manual",
    "napis",
    "no effect",
    "not-followed",
    "not-served",
    "refused",
    "shortage",
    "reload-failed",
    "unproven",
    "violated",
}


class Stderr:
    """Lines on standard error, where no journal takes them. Events of single flows are left out: a
    thousand flows that follow their application would be a thousand lines."""

    def __init__(self) -> None:
        self.lost = 0

    def tell(self, event: Event) -> None:
        """One line, if it concerns more than one flow."""
        if event.flow is None:
            print(line_of(event), file=sys.stderr, flush=True)


def priority_of(event: Event) -> int:
    """Events of a single flow concern only a reader who looks for that flow, except unwanted
    ones."""
    if event.kind in UNWANTED:
        return WARNING
    return NOTICE if event.flow is None else INFO


def line_of(event: Event) -> str:
    """`insert: eth0: tcp ...: queue 0 -> 3 (its thread runs on CPU 3) [bulk, a.yaml:7]`."""
    about = "".join(f"{each}: " for each in (event.nic, event.flow) if each is not None)
    why = f" ({event.why})" if event.why else ""
    by = ", ".join(each for each in (event.policy, event.source) if each)
    return f"{event.kind}: {about}{event.what}{why}{f' [{by}]' if by else ''}"
