# SPDX-License-Identifier: GPL-2.0-or-later
"""The FLOW argument of `explain`: text to what it selects in the Flow-to-Core table. Pure.

tcp 10.0.0.2:5201 10.9.0.1:40000     local, then remote; `<-` may stand between them
[::ffff:10.0.0.2]:5201 10.9.0.1:4000 as `ss` prints them: IPv4 within IPv6, `%eth0` behind either
10.0.0.2:5201-10.9.0.1:40000         any transport; IPv6 in brackets, `*` for what is open
cookie:8201                          socket cookie (`ss -e`, `sk:` in hexadecimal)
:5201                                local or remote port
5201                                 either of the last two
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from atfnd.errors import OperatorError
from atfnd.model import Flow, FlowKey, Protocol, SocketFound

__all__ = ["Selector"]

HINT = "write `tcp LOCAL:PORT REMOTE:PORT`, `LOCAL:PORT-REMOTE:PORT`, `:PORT` or `cookie:NUMBER`"
LONGEST = 200  # two bracketed IPv6 endpoints take 120


@dataclass(frozen=True, slots=True)
class Selector:
    """Flows with one of `keys`, this cookie, or this port at either end."""

    text: str
    keys: tuple[FlowKey, ...]
    cookie: int | None
    port: int | None

    @classmethod
    def parse(cls, text: str) -> Selector:
        """OperatorError: not a flow."""
        text = " ".join(text.split())
        if not text or len(text) > LONGEST:
            raise OperatorError("no flow is named" if not text else "this is no flow", HINT)
        if text.startswith("cookie:"):
            return cls(text, (), _number(text, text[7:], 1, 2**64 - 1), None)
        if text.startswith(":"):
            return cls(text, (), None, _number(text, text[1:], 1, 65535))
        if text.isdecimal():
            number = _number(text, text, 1, 2**64 - 1)
            return cls(text, (), number, number if number <= 65535 else None)
        return cls(text, _keys(text), None, None)

    def matches(self, flow: Flow | SocketFound) -> bool:
        key = flow.key
        return (
            flow.cookie == self.cookie
            or key in self.keys
            or (self.port is not None and self.port in (key.local_port, key.remote_port))
        )


def _number(text: str, digits: str, low: int, high: int) -> int:
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 20):
        raise OperatorError(f"`{text}`: `{digits}` is not a number", HINT)
    if not low <= int(digits) <= high:
        raise OperatorError(f"`{text}`: {digits} is not between {low} and {high}", HINT)
    return int(digits)


def _keys(text: str) -> tuple[FlowKey, ...]:
    """More than one key where the text leaves the transport or the family open."""
    words = text.replace("<-", " ").split()
    names = {protocol.name.lower(): protocol for protocol in Protocol}
    protocols = tuple(Protocol)
    if words[0].lower() in names:
        protocols = (names[words.pop(0).lower()],)
    elif len(words) == 3:
        raise OperatorError(f"`{text}`: `{words[0]}` is no transport", f"one of {', '.join(names)}")
    if len(words) == 1:
        words = words[0].split("-")
    if len(words) != 2:
        raise OperatorError(f"`{text}` does not name a local and a remote end", HINT)
    (local, local_port), (remote, remote_port) = (_end(text, word) for word in words)
    lengths = {len(end) for end in (local, remote) if end is not None} or {4, 16}
    if len(lengths) > 1 and local is not None and remote is not None:
        raise OperatorError(f"`{text}` mixes IPv4 and IPv6", HINT)
    return tuple(
        FlowKey(protocol, local or bytes(n), local_port, remote or bytes(n), remote_port)
        for protocol in protocols
        for n in sorted(lengths)
    )


def _end(text: str, word: str) -> tuple[bytes | None, int]:
    """Address (None for `*`), and port (0 for `*`)."""
    host, colon, port = word.rpartition(":")
    if not colon:
        raise OperatorError(f"`{text}`: `{word}` has no port", HINT)
    number = 0 if port == "*" else _number(text, port, 1, 65535)
    if host == "*":
        return None, number
    host = host.partition("%")[0]  # of a socket that is bound to a device
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise OperatorError(f"`{text}`: `{word}` is ambiguous", f"write [{host}]:{port}")
    try:
        address = ipaddress.ip_address(host.strip("[]"))
        return (getattr(address, "ipv4_mapped", None) or address).packed, number
    except ValueError:
        hint = "host names are not looked up; " + HINT
        raise OperatorError(f"`{text}`: `{host}` is not an IP address", hint) from None
