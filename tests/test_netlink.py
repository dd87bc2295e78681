# SPDX-License-Identifier: GPL-2.0-or-later
"""The netlink codec: dumps that changes interrupt, and names that are no text."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator

import pytest

from atfnd.kernel import rtnl
from atfnd.kernel.interface import Interface
from atfnd.kernel.netlink import DUMP, Netlink, attribute

__all__: list[str] = []

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
    assert kernel.dumps == interrupted + 1


def test_one_that_is_always_interrupted_is_given_up_and_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = Kernel(1 << 30)
    with pytest.raises(InterruptedError, match="changed meanwhile, 8 times"):
        asked(kernel, monkeypatch)
    assert kernel.dumps == 8


def test_the_name_of_an_interface_may_be_any_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """dev_valid_name() in net/core/dev.c refuses white space, `/` and `:` only."""

    class Links:
        def __init__(self, protocol: int, netns: str | None) -> None: ...

        def request(self, kind: int, payload: bytes, flags: int) -> Iterator[bytes]:
            for index, name in ((1, b"lo"), (2, b"caf\xe9"), (3, "é".encode())):
                info = struct.pack("=BxHiII", 0, 0, index, 0, 0)
                yield info + attribute(3, name + b"\0")

        def close(self) -> None: ...

    monkeypatch.setattr(rtnl, "Netlink", Links)
    found = rtnl.links()
    assert found == {1: "lo", 2: "caf\udce9", 3: "é"}
    with pytest.raises(OSError, match="No such device") as refusal:
        Interface(found[2])
    assert refusal.value.errno == errno.ENODEV
