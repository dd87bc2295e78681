# SPDX-License-Identifier: GPL-2.0-or-later
"""A real interface that is renamed, removed and made anew under a running daemon."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.daemons import Daemon
from tests.labs import unique_name
from tests.serve.asking import ATFNCTL, environment
from tests.wait import until
from tests.zygote import Forked


class Place:
    """A namespace with one veth pair, and a daemon in it that watches and may change `ra0`."""

    def __init__(self, folder: Path) -> None:
        self.netns = unique_name()
        self.daemon = Daemon(folder)

    def ip(self, *words: str) -> None:
        subprocess.run(["ip", "-n", self.netns, *words], check=True)

    def add(self) -> None:
        self.ip("link", "add", "ra0", "numrxqueues", "2", "numtxqueues", "2", "type", "veth")

    def known_as(self, name: str, *, armed: bool = True) -> bool:
        return self.watched() == {name: armed}

    def watched(self) -> dict[str, bool]:
        """Interface: is it armed."""
        return {row["nic"]: row["armed"] for row in self.daemon.get("/v1/nics")["nics"]}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    subprocess.run(["ip", "netns", "add", made.netns], check=True)
    try:
        made.add()
        options = ("--nic", "ra0", "--arm", "ra0")
        made.daemon.start(*options, wrapped=["ip", "netns", "exec", made.netns])
        yield made
        made.daemon.end()
    finally:
        made.daemon.reap()
        subprocess.run(["ip", "netns", "del", made.netns], check=True)


def test_a_new_name_is_the_same_interface_until_it_goes_and_comes_again(place: Place) -> None:
    for old, new in (("ra0", "ra7"), ("ra7", "ra8"), ("ra8", "ra0")):
        place.ip("link", "set", old, "name", new)
        until(partial(place.known_as, new), f"it is known as {new}")
    assert not place.daemon.events("refused")
    assert place.daemon.ctl("disarm", "ra0").returncode == 0
    place.ip("link", "del", "ra0")
    until(lambda: place.watched() == {}, "it is no longer watched")
    place.add()
    until(lambda: place.watched() == {"ra0": False}, "it is taken again, and disarmed as it was")


def test_a_slot_of_a_measurement_is_no_pause(place: Place) -> None:
    """It got another name in a slot without atfnd: it is armed under that."""
    words = [ATFNCTL, "measure", "ra0", "--slot", "5s"]
    with Forked(words, env=environment(place.daemon), stderr=PIPE, text=True) as client:
        until(lambda: place.known_as("ra0", armed=False), "a slot is paused")
        place.ip("link", "set", "ra0", "name", "ra7")
        until(partial(place.known_as, "ra7"), "it is known as ra7, and armed")
        _, complaints = client.communicate(timeout=60)
    assert complaints.endswith("ended early: the interface is gone, or has another name\n")
    assert client.returncode == 1
    assert place.daemon.get("/v1/nics")["nics"][0]["paused"] is False
