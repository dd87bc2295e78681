# SPDX-License-Identifier: GPL-2.0-or-later
"""The filters of a NIC as ethtool(8) lists them, and what it should list for a filter of ours."""

from __future__ import annotations

import ipaddress
import subprocess

from atfnd.model import Filter, Match, Protocol
from tests.guest.simlab import NAME, ethtool

__all__ = ["add_foreign", "listed", "match_of", "shown"]

V4 = (bytes([10, 1, 2, 3]), bytes([10, 9, 0, 1]))
V6 = (bytes.fromhex("fd0a" + "00" * 13 + "03"), bytes.fromhex("fd09" + "00" * 13 + "01"))


def match_of(number: int, protocol: int = Protocol.TCP, family: int = 4) -> Match:
    """The exact match of flow `number`."""
    src, dst = V4 if family == 4 else V6
    return Match(family, protocol, src, len(src) * 8, dst, len(dst) * 8, 1000 + number, 443)


def listed(nic: str = NAME) -> dict[int, list[str]]:
    """`ethtool -n`: the lines of each filter, by location."""
    found: dict[int, list[str]] = {}
    for block in ethtool("-n", nic).split("Filter: ")[1:]:
        location, *lines = (line.strip() for line in block.strip().splitlines())
        found[int(location)] = lines
    return found


def shown(rule: Filter) -> list[str]:
    """The lines that ethtool should print for a rule of our shapes. Its masks are inverted."""
    match = rule.match
    assert match is not None
    names: dict[int | None, str] = {int(protocol): protocol.name for protocol in Protocol}
    with_ports = match.protocol in names
    first = f"{names[match.protocol]} over IPv" if with_ports else "Raw IPv"
    lines = [
        f"Rule Type: {first}{match.family}",
        f"Src IP addr: {_address(match.family, match.src, match.src_prefix)}",
        f"Dest IP addr: {_address(match.family, match.dst, match.dst_prefix)}",
        "TOS: 0x0 mask: 0xff" if match.family == 4 else "Traffic Class: 0x0 mask: 0xff",
    ]
    if with_ports:
        lines.append(f"Src port: {_port(match.src_port)}")
        lines.append(f"Dest port: {_port(match.dst_port)}")
    else:
        any_protocol = match.protocol is None
        lines.append(f"Protocol: {match.protocol or 0} mask: {'0xff' if any_protocol else '0x0'}")
        lines.append("L4 bytes: 0x0 mask: 0xffffffff")
    return [*lines, f"Action: Direct to queue {rule.queue}"]


def _address(family: int, address: bytes | None, prefix: int) -> str:
    size = 4 if family == 4 else 16
    hosts = (1 << size * 8 - prefix) - 1
    mask = ipaddress.ip_address(hosts.to_bytes(size, "big"))
    return f"{ipaddress.ip_address(address or bytes(size))} mask: {mask}"


def _port(port: int | None) -> str:
    return f"{port or 0} mask: {'0xffff' if port is None else '0x0'}"


def add_foreign(words: str, nic: str = NAME) -> int:
    """What an admin does: `ethtool -N`; the location of the filter that is new in the listing."""
    before = listed(nic)
    done = subprocess.run(["ethtool", "-N", nic, *words.split()], capture_output=True, text=True)
    new = listed(nic).keys() - before.keys()
    assert len(new) == 1, (words, done.stdout, done.stderr)
    return new.pop()
