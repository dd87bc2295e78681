# SPDX-License-Identifier: GPL-2.0-or-later
"""Netlink requests and answers, one socket in one network namespace (netlink(7)).

Small on purpose: it makes no thread, no child and no event loop, so it works inside one, and a dump
of a few objects costs tens of microseconds. Refusals are OSError with the kernel's errno and its
own words (NETLINK_EXT_ACK).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys

from atfnd.kernel.netns import open_socket

__all__ = ["DUMP", "Netlink", "attribute", "attributes", "generic_family", "generic_group"]

SOL_NETLINK, NETLINK_CAP_ACK, NETLINK_EXT_ACK = 270, 10, 11
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP_INTR, DUMP = 1, 4, 0x10, 0x300
DUMPS = 8  # tries, until a dump is given up that changes interrupt
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_ACK_TLVS = 0x200
NLMSGERR_ATTR_MSG = 1
NLA_TYPE_MASK = 0x3FFF
GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 16, 3, 1, 2
CTRL_ATTR_MCAST_GROUPS, CTRL_ATTR_MCAST_GRP_NAME, CTRL_ATTR_MCAST_GRP_ID = 7, 1, 2
BUFFER_BYTES = 1 << 16

_header = struct.Struct("=IHHII")
_attribute = struct.Struct("=HH")
_error = struct.Struct("=i")


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

    def _asked(self, kind: int, payload: bytes, flags: int) -> tuple[list[bytes], bool]:
        """The answers, and whether they are of one moment."""
        self._sequence = self._sequence % 0xFFFFFFFF + 1
        flags |= NLM_F_REQUEST | (0 if flags & DUMP else NLM_F_ACK)
        length = _header.size + len(payload)
        self._socket.send(_header.pack(length, kind, flags, self._sequence, 0) + payload)
        answers: list[bytes] = []
        self._interrupted = False
        while self._receive(answers):
            pass
        return answers, not self._interrupted

    def _receive(self, answers: list[bytes]) -> bool:
        """Read one datagram; False when it held the end of the answer."""
        data, at = self._socket.recv(BUFFER_BYTES), 0
        while at < len(data):
            length, kind, flags, sequence, _ = _header.unpack_from(data, at)
            payload = data[at + _header.size : at + length]
            at += (length + 3) & ~3
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


def _words(code: int, kind: int, flags: int, payload: bytes) -> str:
    """strerror and what the kernel added; an error echoes our header first (NETLINK_CAP_ACK)."""
    at = _error.size + (_header.size if kind == NLMSG_ERROR else 0)
    said = attributes(payload, at).get(NLMSGERR_ATTR_MSG) if flags & NLM_F_ACK_TLVS else None
    text = os.strerror(code)
    return f"{text} ({said.rstrip(bytes(1)).decode()})" if said else text


def generic_family(netlink: Netlink, name: str) -> int:
    """Message type of a generic netlink family; OSError(ENOENT) when the kernel has none."""
    return int.from_bytes(_family(netlink, name)[CTRL_ATTR_FAMILY_ID], sys.byteorder)


def generic_group(netlink: Netlink, family: str, name: str) -> int:
    """Number of a multicast group of a generic netlink family, for NETLINK_ADD_MEMBERSHIP.
    OSError(ENOENT): no such family; KeyError: no such group."""
    listed = attributes(_family(netlink, family).get(CTRL_ATTR_MCAST_GROUPS, b""))
    groups = {
        group[CTRL_ATTR_MCAST_GRP_NAME].rstrip(b"\0").decode(): group[CTRL_ATTR_MCAST_GRP_ID]
        for group in map(attributes, listed.values())
    }
    return int.from_bytes(groups[name], sys.byteorder)


def _family(netlink: Netlink, name: str) -> dict[int, bytes]:
    request = struct.pack("=BBH", CTRL_CMD_GETFAMILY, 1, 0)
    request += attribute(CTRL_ATTR_FAMILY_NAME, name.encode() + bytes(1))
    return attributes(netlink.request(GENL_ID_CTRL, request)[0], at=4)
