# SPDX-License-Identifier: GPL-2.0-or-later
"""The netlink codec: dumps that changes interrupt, names that are no text, what a link is."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.kernel.interface import Interface
from atfnd.kernel.netlink import rtnl
from atfnd.kernel.netlink.requests import DUMP, Netlink, attribute, messages
from atfnd.kernel.netlink.rtnl import Link

HEADER, RTM_GETLINK, DONE, DUMP_INTR, MULTI = struct.Struct("=IHHII"), 18, 3, 0x10, 2


class Kernel:
    """Answers each dump with one object, and says how many of the first ones were interrupted."""

    def __init__(self, interrupted: int) -> None:
        self.interrupted, self.dumps = interrupted, 0
        self._sequence = 0

    def send(self, message: bytes) -> int:
        self._sequence = HEADER.unpack_from(message)[3]
        self.dumps += 1
        return len(message)

    def recv(self, most: int) -> bytes:
        flags = MULTI | (DUMP_INTR if self.dumps <= self.interrupted else 0)
        answer = struct.pack("=I", self.dumps)
        done = struct.pack("=i", 0)
        message = HEADER.pack(HEADER.size + 4, 16, MULTI, self._sequence, 0) + answer
        message += HEADER.pack(HEADER.size + 4, DONE, flags, self._sequence, 0) + done
        assert len(message) <= most
        return message

    def close(self) -> None: ...


def asked(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    made = Netlink(0)
    made.close()
    monkeypatch.setattr(made, "_socket", kernel)
    return made.request(RTM_GETLINK, b"", DUMP)


@pytest.mark.parametrize("interrupted", [0, 1, 7])
def test_an_interrupted_dump_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, interrupted: int
) -> None:
    kernel = Kernel(interrupted)
    assert asked(kernel, monkeypatch) == [struct.pack("=I", interrupted + 1)]
    always = Kernel(1 << 30)
    with pytest.raises(InterruptedError, match="changed meanwhile, 8 times"):
        asked(always, monkeypatch)
    assert (kernel.dumps, always.dumps) == (interrupted + 1, 8)


def test_the_name_of_an_interface_may_be_any_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """dev_valid_name() in net/core/dev.c refuses white space, `/` and `:` only."""
    answers = [
        struct.pack("=BxHiII", 0, 0, index, 0, 0) + attribute(3, name + b"\0")
        for index, name in ((1, b"lo"), (2, b"caf\xe9"), (3, "é".encode()))
    ]
    monkeypatch.setattr(rtnl, "_request", lambda *_: answers)
    found = rtnl.links()
    assert {index: link.name for index, link in found.items()} == {1: "lo", 2: "caf\udce9", 3: "é"}
    with pytest.raises(OSError, match="No such device") as refusal:
        Interface(found[2].name)
    assert refusal.value.errno == errno.ENODEV


def test_what_a_link_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """IFLA_LINK is an index of another namespace where IFLA_LINK_NETNSID stands beside it."""

    def number(kind: int, value: int) -> bytes:
        return attribute(kind, struct.pack("=I", value))

    kind = attribute(18, attribute(1, b"vlan\0"))
    attributes = [
        attribute(3, b"eth0\0") + attribute(43, attribute(2, b"\1")) + number(10, 5),
        attribute(3, b"v\0") + kind + number(5, 1) + attribute(43, attribute(2, b"\0")),
        attribute(3, b"away\0") + kind + number(5, 1) + number(37, 0),
    ]
    answers = [struct.pack("=BxHiII", 0, 0, i, 0, 0) + each for i, each in enumerate(attributes, 1)]
    monkeypatch.setattr(rtnl, "_request", lambda *_: answers)
    assert rtnl.links() == {
        1: Link("eth0", None, master=5, xdp="in the driver"),
        2: Link("v", "vlan", lower=1),
        3: Link("away", "vlan"),
    }


@given(st.binary(max_size=200))
def test_no_datagram_is_read_for_ever(datagram: bytes) -> None:
    assert len(list(messages(datagram))) <= len(datagram) // HEADER.size


@given(st.lists(st.binary(max_size=9), max_size=9))
def test_messages_come_as_they_were_sent(payloads: list[bytes]) -> None:
    datagram = b"".join(
        HEADER.pack(HEADER.size + len(each), 16, MULTI, number, 0) + each + bytes(-len(each) % 4)
        for number, each in enumerate(payloads)
    )
    expected = [(16, MULTI, number, each) for number, each in enumerate(payloads)]
    assert [tuple(each) for each in messages(datagram)] == expected
