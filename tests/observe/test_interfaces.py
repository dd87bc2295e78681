# SPDX-License-Identifier: GPL-2.0-or-later
"""Interfaces that go while they are opened or have strange names, and what a look at one costs."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import cast

import pytest

from atfnd.errors import OperatorError
from atfnd.kernel.netlink.rtnl import Link
from atfnd.nic import Nic
from atfnd.observe.nics import interfaces as module
from atfnd.observe.nics.interfaces import Interfaces
from atfnd.observe.nics.watch import NapiIds, NicWatch
from tests.nic.fake_nic import FakeNic


def gone(*_: object) -> OSError:
    return OSError(errno.ENODEV, os.strerror(errno.ENODEV))


class Opened:
    """A NIC that was opened, and its watch."""

    def __init__(self, name: str) -> None:
        self.facts = SimpleNamespace(name=name)
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of interfaces with a device; one that begins with `gone` is away when it is opened."""
    names = ["eth0"]

    def opened(name: str) -> Opened:
        if name.startswith("gone"):
            raise gone()
        return Opened(name)

    monkeypatch.setattr(
        module, "links", lambda: dict(enumerate(Link(name, None) for name in names))
    )
    monkeypatch.setattr(module, "physical", lambda name: True)
    monkeypatch.setattr(module, "open_nic", opened)
    return names


def watched(nic: Nic) -> NicWatch:
    return cast(NicWatch, nic)


def test_one_that_goes_while_it_is_opened_is_refused(here: list[str]) -> None:
    """A VF that is moved into a container at once."""
    wanted = Interfaces(["*"], watched)
    with pytest.raises(OperatorError, match="gone0: No such device"):
        wanted.open("gone0")
    here.append("gone0")
    assert [each.facts.name for each in wanted.start()] == ["eth0"]
    assert wanted.refused == {"gone0": "gone0: No such device"}
    wanted.close()


@pytest.mark.parametrize("name", ["caf\udce9", "a\x1b[31mb", "a\x7f"])
def test_a_name_that_is_no_text_is_refused(here: list[str], name: str) -> None:
    here.append(name)
    wanted = Interfaces(["*"], watched)
    assert [each.facts.name for each in wanted.start()] == ["eth0"]
    message = wanted.refused[name]
    assert message.isprintable()
    assert "is not readable text" in message
    wanted.close()


def test_a_link_that_flaps_for_ever_is_not_remembered_for_ever() -> None:
    known = NapiIds()
    for flap in range(5000):
        known.read(range(4 * flap, 4 * flap + 4))
    assert {*list(known)[:4]} == known.now == {*range(19_996, 20_000)}
    assert {*known} == {*range(20_000 - 4 - 256, 20_000)}


def test_a_nic_that_cannot_be_read_leaves_no_descriptor_open() -> None:
    """It is tried again at each notification, for as long as it cannot be read (seed 639)."""
    nic = FakeNic()
    nic.refuse("queues", errno.EIO)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)) as refusal:  # it keeps the watch
        NicWatch(cast(Nic, nic))
    assert set(os.listdir("/proc/self/fd")) == before
    assert refusal.value.errno == errno.EIO
    NicWatch(cast(Nic, nic)).close()


def test_only_a_link_that_is_wanted_and_not_watched_may_have_come(
    here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {1: "lo", 2: "veth7", 3: "eth0"}
    monkeypatch.setattr(module, "link", lambda netns, ifindex: Link(names[ifindex], None))
    wanted = Interfaces(["eth*"], watched)
    assert not wanted.may_have_come({1, 2}, ())
    assert not wanted.may_have_come({3}, {"eth0"})
    assert wanted.may_have_come({2, 3}, ())
    assert wanted.may_have_come(None, {"eth0"})
    wanted.close()
