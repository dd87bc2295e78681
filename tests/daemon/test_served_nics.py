# SPDX-License-Identifier: GPL-2.0-or-later
"""The NICs that are served: they come, cannot be read, get new names, and are changed by others.
What holds for each of them holds on."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from atfnd.errors import OperatorError
from tests.daemon.simulated import Simulated, simulated
from tests.simulation.machine import WorldObserver

XPS = "xps-cpus:0"


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Simulated]:
    with simulated(tmp_path, nics=3) as made:
        yield made


@pytest.mark.parametrize("code", [errno.EIO, errno.EBUSY, errno.ETIMEDOUT, errno.ENETDOWN])
def test_a_nic_that_cannot_be_read_is_tried_again_and_others_are_served_on(
    bed: Simulated, code: int
) -> None:
    bed.here[0].unreadable.extend([code] * 5)
    bed.opens(nic=1)
    bed.until(lambda: bed.filters(1))
    bed.until(lambda: not bed.here[0].unreadable)
    bed.opens(nic=0)
    bed.until(lambda: bed.filters(0))
    assert {each.nic for each in bed.said("unread")} == {"eth0"}


def test_one_that_cannot_be_watched_is_said_once_and_taken_when_it_can(
    bed: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And said again for another reason."""
    why = "it is a bond"

    def refuse(name: str) -> None:
        raise OperatorError(why)

    def said() -> list[str]:
        bed.kernel.link_changed(bed.here[1])
        bed.goes_on()
        return [each.why for each in bed.said("refused")]

    with monkeypatch.context() as refusing:
        refusing.setattr("atfnd.observe.nics.interfaces.open_nic", refuse)
        bed.goes_away()
        bed.comes()
        assert said() == ["it is a bond"]
        why = "it is a bridge"
        assert said() == said() == ["it is a bond", "it is a bridge"]
        assert bed.stands().keys() == {"eth1", "eth2"}
    said()
    assert bed.stands().keys() == {"eth0", "eth1", "eth2"}


def test_new_queues_are_observed_and_those_without_room_are_said_once(
    bed: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = set[int]()

    def watch(_: WorldObserver, netns: object, napis: Mapping[int, str]) -> int:
        watched.update(napis)
        return 1

    monkeypatch.setattr(WorldObserver, "watch", watch)
    for _ in range(2):
        bed.here[0].flap()
        bed.goes_on()
    assert {ring.napi_id for ring in bed.here[0].rings} <= watched
    [event] = bed.said("napis")
    assert event.what == "1 queues, past or present, are not seen"


class TestANewName:
    def test_an_order_for_it_counts_more(self, bed: Simulated) -> None:
        bed.order("disarm", "eth1")
        bed.goes_away(1)
        bed.renames(eth0="eth1")
        assert bed.stands() == {"eth1": (False, False), "eth2": (True, False)}

    def test_one_that_is_not_readable_ends_its_service_and_that_is_said(
        self, bed: Simulated
    ) -> None:
        bed.renames(eth0="eth\n")
        assert bed.stands().keys() == {"eth1", "eth2"}
        why = "interface 'eth\\n' is not watched: its name is not readable text"
        assert {each.why for each in bed.said("refused")} == {why}

    @pytest.mark.parametrize("count", [2, 3])
    def test_interfaces_that_exchange_names_keep_what_is_theirs(
        self, bed: Simulated, count: int
    ) -> None:
        """Each takes the name of the next one, all of them before we look."""
        names = [f"eth{n}" for n in range(count)]
        for number in range(count):
            for _ in range(number + 1):
                bed.opens(nic=number)
        bed.goes_on()
        bed.renames(**dict(zip(names, (*names[1:], names[0]), strict=True)))
        assert {*bed.stands().values()} == {(True, False)}
        assert [bed.filters(number) for number in range(count)] == [1, 2, 3][:count]
        steered = Counter(flow.nic for flow in bed.service.engine.memory.table)
        assert steered == {nic.kernel_name: n + 1 for n, nic in enumerate(bed.here[:count])}
        bed.service.die()
        assert bed.service.restore_offline() is not None
        for nic in bed.here:
            assert nic.our_entries() == []
            assert nic.values == nic.untouched


class TestAnotherProgram:
    """What it changed of ours is left alone, said once, and taken back by `resume` alone."""

    def takes(self, bed: Simulated) -> None:
        bed.here[0].admin_sets(XPS, "3")

    def test_meanwhile(self, bed: Simulated) -> None:
        ours = bed.here[0].values[XPS]
        self.takes(bed)
        bed.goes_on()
        [event] = bed.said("manual")
        assert (event.nic, event.what) == ("eth0", f"{XPS} is 3")
        assert bed.here[0].values[XPS] == "3"
        bed.killed()
        assert bed.here[0].values[XPS] == "3"
        bed.order("resume")
        assert bed.here[0].values[XPS] == ours

    @pytest.mark.parametrize("new_life", [False, True])
    def test_while_no_daemon_ran(self, bed: Simulated, *, new_life: bool) -> None:
        """What a NIC lost by coming up anew, no other program changed."""
        ours = bed.here[0].values[XPS]
        bed.service.die()
        self.takes(bed)
        if new_life:
            bed.here[0].go_down()
            bed.here[0].go_up()
        bed.starts()
        assert bed.here[0].values[XPS] == (ours if new_life else "3")
        assert len(bed.said("manual")) == (not new_life)
