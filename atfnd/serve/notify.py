# SPDX-License-Identifier: GPL-2.0-or-later
"""What we report to the service manager: ready, reloading, stopping, and that the loop still runs.

One datagram each to the socket that NOTIFY_SOCKET names (sd_notify(3)); without it, nothing.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping
from dataclasses import dataclass, field

from atfnd.serve.log.event_log import EventLog

__all__ = ["Notify"]

SEND_S = 5.0  # for a message that is sent once; a sign of life is repeated anyway


@dataclass(frozen=True, slots=True)
class Notify:
    """`address` "" is no manager; `watchdog_s` is the time within which a sign of life must come,
    None: never. `log` gets what could not be sent."""

    address: str = ""
    watchdog_s: float | None = None
    log: EventLog = field(default_factory=EventLog)

    @classmethod
    def of(cls, environment: MutableMapping[str, str], log: EventLog) -> Notify:
        """What the manager set, taken out of the environment: no child speaks for us."""
        address = environment.pop("NOTIFY_SOCKET", "")
        watchdog_us = environment.pop("WATCHDOG_USEC", "")
        pid = environment.pop("WATCHDOG_PID", str(os.getpid()))
        watched = watchdog_us.isdigit() and int(watchdog_us) and pid == str(os.getpid())
        return cls(address, int(watchdog_us) / 1e6 if watched else None, log)

    def ready(self, status: str) -> None:
        """Started, or done with reloading."""
        self._tell(f"READY=1\nSTATUS={_line(status)}", SEND_S)

    def reloading(self) -> None:
        """Until `ready`. The time tells the manager which reload this is (sd_notify(3))."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._tell(f"RELOADING=1\nMONOTONIC_USEC={now_us}\nSTATUS=reading the policy", SEND_S)

    def alive(self, status: str) -> None:
        """The loop has made another pass; feeds the watchdog where there is one."""
        watchdog = "" if self.watchdog_s is None else "WATCHDOG=1\n"
        self._tell(f"{watchdog}STATUS={_line(status)}", 0.0)

    def stopping(self, *, restoring: bool) -> None:
        """From now on, nothing is steered."""
        left = "what it changed is put back" if restoring else "filters stay in the NICs"
        self._tell(f"STOPPING=1\nSTATUS=stopping; {left}", SEND_S)

    def _tell(self, message: str, within_s: float) -> None:
        if not self.address:
            return
        abstract = self.address.startswith("@")
        to = f"\0{self.address[1:]}" if abstract else self.address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
            out.settimeout(within_s)
            try:
                out.sendto(message.encode(), to)
            except OSError as refusal:
                what = f"the service manager did not get {message.partition(chr(10))[0]}"
                self.log.add("notify", what, refusal.strerror or str(refusal))


def _line(status: str) -> str:
    """A line ends where the next variable begins."""
    return " ".join(status.split())
