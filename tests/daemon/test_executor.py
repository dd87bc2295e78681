# SPDX-License-Identifier: GPL-2.0-or-later
"""What is looked at last before a write: whether the NIC is armed, whether another socket has the
5-tuple by now, and who moved a queue whose CPU went offline."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.simulated import Simulated, simulated, text_of
from tests.simulation import kernel
from tests.simulation.wire import Flow


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Simulated]:
    with simulated(tmp_path) as made:
        yield made


def refuse(*_: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.parametrize("again", ["another socket", "not known", "no"])
def test_the_filter_of_a_closed_flow_goes_unless_its_5_tuple_is_used_again(
    bed: Simulated, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    first = bed.opens()
    bed.until(bed.filters)
    [entry] = bed.here[0].our_entries()
    bed.machine.close(first)
    if again == "another socket":
        heir = Flow(bed.world, first.flow.key, 5_000_000, 999)
        bed.machine.open(heir, bed.here[0], first.task)
    if again == "not known":
        monkeypatch.setattr(kernel._SocketLookup, "cookie", refuse)
    bed.goes_on(10)
    assert bed.here[0].our_entries() == ([] if again == "no" else [entry])
    monkeypatch.undo()


def test_a_flow_whose_socket_is_not_known_counts_as_alive(
    bed: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives, key = bed.daemon._sessions["eth0"].lives, bed.opens().flow.key
    assert [lives(each) for each in (key, key._replace(remote_port=1))] == [True, False]
    with monkeypatch.context() as refusing:
        refusing.setattr(kernel._SocketLookup, "cookie", refuse)
        assert lives(key._replace(remote_port=1))


def test_where_nothing_is_armed_nothing_is_written(tmp_path: Path) -> None:
    with simulated(tmp_path, text=text_of("strict", armed=False)) as bed:
        bed.opens()
        bed.goes_on(5)
        nic = bed.here[0]
        assert (bed.filters(), nic.values) == (0, nic.untouched)
        assert not [each for each in bed.world.seen if each.startswith(("write", "set "))]


@pytest.mark.parametrize("theirs", [False, True])
def test_a_queue_whose_cpu_goes_offline_is_moved_unless_another_program_named_one(
    bed: Simulated, *, theirs: bool
) -> None:
    """The kernel scatters a queue over all CPUs that are left."""
    nic = bed.here[0]
    bed.opens(cpu=2)
    bed.until(bed.filters)
    bed.machine.offline(bed.machine.cpus[1])
    nic.cpu_goes(1)
    assert nic.values["queue-cpu:1"] == "0,2-3"
    if theirs:
        nic.admin_sets("queue-cpu:1", "3")
    bed.kernel.cpus_changed()
    bed.goes_on(10)
    assert nic.values["queue-cpu:1"] == "3" if theirs else nic.values["queue-cpu:1"].isdigit()
    assert len(bed.said("manual")) == theirs
