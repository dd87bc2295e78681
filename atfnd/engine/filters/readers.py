# SPDX-License-Identifier: GPL-2.0-or-later
"""Which threads read the connections of a listening port: one, or several. Pure.

A filter for a port brings all its connections to one queue. Where several threads read them, as the
workers of a server with one listening socket do, it would bring all the work to one CPU. A port
counts as served by several threads once two are seen to read within ten seconds, and until only one
has been seen to read for a minute. A port that is not used keeps its state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from atfnd.model import Thread
from atfnd.model.reason import Code, Why

__all__ = ["Readers"]

_TOGETHER_NS = 10_000_000_000
_ALONE_NS = 60_000_000_000


@dataclass(slots=True)
class Readers:
    """Of one port. Changed by its methods. Times are CLOCK_MONOTONIC nanoseconds."""

    _seen_ns: dict[int, int] = field(default_factory=dict)  # by thread: when it last read
    _alone_since_ns: int | None = None
    _several: tuple[int, ...] = ()  # the threads it counts as served by
    _last: tuple[Thread, int | None] | None = None  # who last read, and on which CPU

    def heard(self, thread: Thread, at_ns: int, cpu: int | None = None) -> None:
        """This thread has read a connection of the port, on this CPU."""
        self._last = thread, cpu
        self._seen_ns[thread.tid] = at_ns
        self._seen_ns = {
            tid: seen_ns for tid, seen_ns in self._seen_ns.items() if at_ns - seen_ns < _TOGETHER_NS
        }
        if len(self._seen_ns) > 1:
            self._several, self._alone_since_ns = tuple(sorted(self._seen_ns)), None
            return
        if self._alone_since_ns is None:
            self._alone_since_ns = at_ns
        if at_ns - self._alone_since_ns >= _ALONE_NS:
            self._several = ()

    def restarted(self) -> None:
        """The port's last listener is gone: the next one has other threads."""
        self._seen_ns.clear()
        self._last = None
        self._alone_since_ns = None

    def last(self) -> tuple[Thread, int | None] | None:
        """Who last read a connection since the port listens, and on which CPU."""
        return self._last

    def why_no_filter(self) -> Why | None:
        """Several threads read its connections. None: one, or none is known."""
        if not self._several:
            return None
        if len(self._several) == 2:
            return Code.BOTH_READ(*self._several)
        return Code.SEVERAL_READ(*self._several[:2], len(self._several) - 2)
