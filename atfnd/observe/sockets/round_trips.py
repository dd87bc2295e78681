# SPDX-License-Identifier: GPL-2.0-or-later
"""The round trip times of TCP sockets as the kernel smooths them: tcp_info over sock_diag(7),
`tcpi_rtt` (net/ipv4/tcp.c, tcp_get_info())."""

from __future__ import annotations

from typing import NamedTuple

from atfnd.kernel.netlink.inet_diag import NOT_SAID, Namespace, records
from atfnd.model import Protocol, SocketRtt

__all__ = ["RoundTrips", "TcpSocket"]


class TcpSocket(NamedTuple):
    """A connection of the namespace."""

    cookie: int
    local: bytes
    rtt: SocketRtt


class RoundTrips:
    """Of one network namespace. OSError: there is none, or the kernel has no sock_diag."""

    def __init__(self, netns: str | None) -> None:
        self._namespace = Namespace(netns)

    def read(self) -> list[TcpSocket]:
        """Every connection, but those over loopback."""
        found = []
        for dump in self._namespace.dumps:
            for record in records(dump.dump()):
                if record.protocol == Protocol.TCP and record.app_bytes != NOT_SAID:
                    local = record.local[: 4 if record.family == 4 else 16]
                    rtt = SocketRtt(record.acked, record.rtt_us)
                    found.append(TcpSocket(record.cookie, local, rtt))
        return found

    def close(self) -> None:
        self._namespace.close()
