# SPDX-License-Identifier: GPL-2.0-or-later
"""Netlink requests and answers, one socket in one network namespace (netlink(7)).

Small on purpose: it makes no thread, no child and no event loop, so it works inside one, and a dump
of a few objects costs tens of microseconds. Refusals are OSError with the kernel's errno and its
own words (NETLINK_EXT_ACK).

pyroute2 (0.9.7) builds the lab and is not used here: the callers are synchronous functions on the
loop, where its synchronous API cannot run; its asynchronous API takes 17 times as long for 201
links (170 ms for 9.8, and holds the loop for 90 of them) and does not see NLM_F_DUMP_INTR.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

from atfnd.kernel.system.netns import open_socket

__all__ = ["DUMP", "NETLINK_GENERIC", "Changes", "GenericFamily", "Message", "Netlink"]
__all__ += ["attribute", "attributes", "messages", "number"]

NETLINK_GENERIC = 16
SOL_NETLINK, NETLINK_CAP_ACK, NETLINK_EXT_ACK = 270, 10, 11
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP_INTR, DUMP = 1, 4, 0x10, 0x300
DUMPS = 8  # tries, before a dump that changes interrupt is given up
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_ACK_TLVS = 0x200
NLMSGERR_ATTR_MSG = 1
NLA_TYPE_MASK = 0x3FFF
GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 16, 3, 1, 2
CTRL_ATTR_MCAST_GROUPS, CTRL_ATTR_MCAST_GRP_NAME, CTRL_ATTR_MCAST_GRP_ID = 7, 1, 2
BUFFER_BYTES = 1 << 16
KERNEL_PORT = 0

T = TypeVar("T")

_header = struct.Struct("=IHHII")
_attribute = struct.Struct("=HH")
_error = struct.Struct("=i")
_generic = struct.Struct("=BBxx")  # struct genlmsghdr: command, version


class Message(NamedTuple):
    """One message of a datagram, without the rest of its header."""

    kind: int
    flags: int
    sequence: int
    payload: bytes


def messages(datagram: bytes) -> Iterator[Message]:
    """The messages that came together."""
    at = 0
    while at + _header.size <= len(datagram):
        length, kind, flags, sequence, _ = _header.unpack_from(datagram, at)
        yield Message(kind, flags, sequence, datagram[at + _header.size : at + length])
        at += max((length + 3) & ~3, _header.size)


def attribute(kind: int, payload: bytes) -> bytes:
    """One struct nlattr with its padding."""
    length = _attribute.size + len(payload)
    return _attribute.pack(length, kind) + payload + bytes(-length % 4)


def attributes(data: bytes, at: int = 0) -> dict[int, bytes]:
    """The attributes from offset `at` on, by type; of a repeated one the last."""
    found = {}
    while at + _attribute.size <= len(data):
        length, kind = _attribute.unpack_from(data, at)
        if length < _attribute.size:
            break
        found[kind & NLA_TYPE_MASK] = data[at + _attribute.size : at + length]
        at += (length + 3) & ~3
    return found


def number(value: bytes | None) -> int | None:
    """An attribute that is an unsigned number; None: it is not there."""
    return None if value is None else int.from_bytes(value, sys.byteorder)


class Netlink:
    """A netlink socket of one protocol in the namespace at `netns` (None: our own)."""

    def __init__(self, protocol: int, netns: str | None = None) -> None:
        self._socket = open_socket(netns, socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        self._socket.setsockopt(SOL_NETLINK, NETLINK_CAP_ACK, 1)
        self._socket.setsockopt(SOL_NETLINK, NETLINK_EXT_ACK, 1)
        self._socket.bind((0, 0))
        self._sequence = 0
        self._interrupted = False

    def close(self) -> None:
        self._socket.close()

    def request(self, kind: int, payload: bytes, flags: int = 0) -> list[bytes]:
        """Send one message and return the payloads of its answers, without their headers. A dump
        that a change interrupted may lack an object or have one twice: it is asked for again.
        InterruptedError: every time."""
        for _ in range(DUMPS):
            answers, whole = self._asked(kind, payload, flags)
            if whole:
                return answers
        raise InterruptedError(errno.EINTR, f"what was listed changed meanwhile, {DUMPS} times")

    def datagrams(self, kind: int, payload: bytes, flags: int) -> Iterator[list[bytes]]:
        """The payloads of one dump as they come, a datagram at a time: the kernel goes on when the
        next one is asked for. It need not be consistent. Nothing else is asked meanwhile."""
        self._ask(kind, payload, flags)
        more = True
        while more:
            answers: list[bytes] = []
            more = self._receive(answers)
            yield answers

    def _asked(self, kind: int, payload: bytes, flags: int) -> tuple[list[bytes], bool]:
        """The answers, and whether they form a consistent dump."""
        self._ask(kind, payload, flags)
        answers: list[bytes] = []
        while self._receive(answers):
            pass
        return answers, not self._interrupted

    def _ask(self, kind: int, payload: bytes, flags: int) -> None:
        self._sequence, self._interrupted = self._sequence % 0xFFFFFFFF + 1, False
        flags |= NLM_F_REQUEST | (0 if flags & DUMP else NLM_F_ACK)
        length = _header.size + len(payload)
        self._socket.send(_header.pack(length, kind, flags, self._sequence, 0) + payload)

    def _receive(self, answers: list[bytes]) -> bool:
        """Read one datagram; False when it held the end of the answer."""
        for kind, flags, sequence, payload in messages(self._socket.recv(BUFFER_BYTES)):
            if sequence != self._sequence:
                continue
            self._interrupted |= bool(flags & NLM_F_DUMP_INTR)
            if kind in (NLMSG_ERROR, NLMSG_DONE):
                code = -_error.unpack_from(payload)[0] if len(payload) >= _error.size else 0
                if code:
                    raise OSError(code, _words(code, kind, flags, payload))
                return False
            answers.append(payload)
        return True


class Changes(Generic[T]):
    """Hears the kernel's notifications on a bound socket, which it owns. `subjects` gives what a
    datagram reports as changed: the numbers of interfaces or CPUs, whose present state the caller
    reads, or what they are now."""

    def __init__(self, listening: socket.socket, subjects: Callable[[bytes], Iterable[T]]) -> None:
        listening.setblocking(False)
        self._socket, self._subjects = listening, subjects

    def fileno(self) -> int:
        return self._socket.fileno()

    def drain(self) -> set[T] | None:
        """What changed since the last call; None: messages were lost, look at all."""
        heard = self.heard()
        return None if heard is None else set(heard)

    def heard(self) -> list[T] | None:
        """The same, in the order in which it was reported. A message that another process sent is
        left out."""
        heard: list[T] = []
        overrun = False
        while True:
            try:
                datagram, (port, _) = self._socket.recvfrom(BUFFER_BYTES)
            except BlockingIOError:
                return None if overrun else heard
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                overrun = True
                continue
            if port == KERNEL_PORT:
                heard.extend(self._subjects(datagram))

    def close(self) -> None:
        self._socket.close()


def _words(code: int, kind: int, flags: int, payload: bytes) -> str:
    """strerror and what the kernel added; an error echoes our header first (NETLINK_CAP_ACK)."""
    at = _error.size + (_header.size if kind == NLMSG_ERROR else 0)
    said = attributes(payload, at).get(NLMSGERR_ATTR_MSG) if flags & NLM_F_ACK_TLVS else None
    text = os.strerror(code)
    return f"{text} ({said.rstrip(bytes(1)).decode()})" if said else text


class GenericFamily:
    """A generic netlink family in the namespace at `netns` (None: our own). FileNotFoundError: the
    kernel has none of that name, or there is no such namespace."""

    def __init__(self, name: str, netns: str | None = None) -> None:
        self._netlink, self._kind = Netlink(NETLINK_GENERIC, netns), GENL_ID_CTRL
        asked = attribute(CTRL_ATTR_FAMILY_NAME, name.encode() + b"\0")
        try:
            (found,) = self.request(CTRL_CMD_GETFAMILY, asked)
        except OSError:
            self.close()
            raise
        self._kind = int.from_bytes(found[CTRL_ATTR_FAMILY_ID], sys.byteorder)
        self._groups = attributes(found.get(CTRL_ATTR_MCAST_GROUPS, b""))

    def close(self) -> None:
        self._netlink.close()

    def request(self, command: int, payload: bytes = b"", flags: int = 0) -> list[dict[int, bytes]]:
        """As `Netlink.request`: the attributes of each answer."""
        message = _generic.pack(command, 1) + payload
        answers = self._netlink.request(self._kind, message, flags)
        return [attributes(answer, at=_generic.size) for answer in answers]

    def group(self, name: str) -> int:
        """Number of one of its multicast groups, for NETLINK_ADD_MEMBERSHIP. KeyError."""
        groups = {
            group[CTRL_ATTR_MCAST_GRP_NAME].rstrip(b"\0").decode(): group[CTRL_ATTR_MCAST_GRP_ID]
            for group in map(attributes, self._groups.values())
        }
        return int.from_bytes(groups[name], sys.byteorder)
