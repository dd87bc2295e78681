# SPDX-License-Identifier: GPL-2.0-or-later
"""Births: when handshakes are observed, and which connects and ports get a filter."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atfnd.model import FlowKey, Protocol
from tests.daemon.simulated import Simulated, simulated, text_of
from tests.simulation import kernel
from tests.simulation.machine import WorldBirths

REMOTE = b"\x0a\x01\0\x01"
AFTER_NS = 500_000_000


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Simulated]:
    """Two NICs, under a policy that keeps order from birth."""
    with simulated(tmp_path, nics=2, text=text_of("strict")) as made:
        made.goes_on()
        yield made


def connects(bed: Simulated, port: int, local: bytes | None = None) -> None:
    """A thread does, and is not answered yet."""
    key = FlowKey(Protocol.TCP, local or bed.here[0].address, port, REMOTE, 5000)
    bed.machine.connect(key, port, bed.machine.task("app", 1), AFTER_NS, lambda: None)


def listens(bed: Simulated) -> None:
    key = FlowKey(Protocol.TCP, bed.here[0].address, 443, bytes(4), 0)
    bed.machine.listen(77, key, [bed.machine.task("server", 1)])


@pytest.mark.parametrize(("order", "wants"), [("strict", 1), ("immediate", 0)])
def test_births_are_observed_for_a_policy_that_keeps_order_from_birth(
    tmp_path: Path, order: str, wants: int
) -> None:
    with simulated(tmp_path, text=text_of(order)) as bed:
        assert len(bed.machine.births) == wants
        bed.reload(text_of("strict"))
        assert len(bed.machine.births) == 1
        bed.reload(text_of())
        assert bed.machine.births == []


@pytest.mark.parametrize("what", ["__init__", "start"])
def test_a_kernel_that_refuses_is_said_and_nothing_stays_open(
    bed: Simulated, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    closed = list[object]()

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    bed.service.die()
    monkeypatch.setattr(WorldBirths, what, refuse)
    monkeypatch.setattr(WorldBirths, "close", lambda births: closed.append(births))
    bed.starts()
    assert bool(closed) is (what == "start")
    assert {each.why for each in bed.said("handshakes")} == {"[Errno 1] Operation not permitted"}


@pytest.mark.parametrize("why", [None, "another namespace", "another address", "a tunnel"])
def test_a_connect_gets_its_filter_where_its_answer_comes_in(
    bed: Simulated, monkeypatch: pytest.MonkeyPatch, why: str | None
) -> None:
    local: bytes | None = None
    connects(bed, 4000)  # how far the remote is, is known from this one
    bed.goes_on()
    if why == "another namespace":
        monkeypatch.setattr(WorldBirths, "is_of", lambda *_: False)
    if why == "a tunnel":
        tunnel: Any = lambda *_: "vxlan0"  # noqa: E731
        monkeypatch.setattr(kernel._NamespaceLinks, "tunnel", tunnel)
    if why == "another address":
        local = b"\x0a\x09\x09\x09"
    for port in range(4001, 4009):  # RSS delivers some of them right
        connects(bed, port, local)
    bed.goes_on(AFTER_NS / 2e9)
    assert bool(bed.filters(0)) is (why is None)
    assert bed.filters(1) == 0


@pytest.mark.parametrize("of_both", [False, True])
def test_a_port_has_a_filter_in_the_only_nic_that_it_receives_through(
    bed: Simulated, *, of_both: bool
) -> None:
    if of_both:
        bed.here[1].address = bed.here[0].address
    listens(bed)
    bed.goes_on(10)
    assert (bed.filters(0), bed.filters(1)) == (not of_both, 0)
