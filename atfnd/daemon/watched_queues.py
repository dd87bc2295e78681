# SPDX-License-Identifier: GPL-2.0-or-later
"""Which queues the observers watch: those of the NICs that are served, by NAPI id."""

from __future__ import annotations

from functools import partial

from atfnd.daemon.handshakes import BirthReader
from atfnd.daemon.session import Sessions
from atfnd.observe import Observer
from atfnd.observe.nics.watch import NicWatch
from atfnd.serve.log.event_log import EventLog

__all__ = ["WatchedQueues"]


class WatchedQueues:
    """Of all NICs."""

    def __init__(
        self, sessions: Sessions, observer: Observer, births: BirthReader, log: EventLog
    ) -> None:
        self._sessions, self._observer = sessions, observer
        self._births, self._log = births, log
        self._unseen = 0  # queues that the observer has no room for

    def watch(self) -> None:
        """NICs have come, or gone, or have other queues."""
        watches = [session.watch for session in self._sessions.values()]
        napis = {each: watch.facts.name for watch in watches for each in watch.napi_ids.now}
        napis |= {each: watch.facts.name for watch in watches for each in watch.napi_ids}
        unseen = self._observer.watch(sorted({w.nic.netns for w in watches}, key=str), napis)
        if unseen > self._unseen:
            why = "there are more queues than the observer's map holds"
            self._log.add("napis", f"{unseen} queues, past or present, are not seen", why)
        self._unseen = unseen
        for session in self._sessions.values():
            session.watch.look_at_reads(armed=session.view.armed)
        self._births.serve()

    def count_reads(self, watch: NicWatch) -> None:
        """Let a NIC know what applications read of its packets."""
        watch.reads_by(partial(self._observer.reads, watch.facts.name))
