# SPDX-License-Identifier: GPL-2.0-or-later
"""Knobs of a real (lab) NIC: journaled before they are written, undone, and left when drifted."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from atfnd.model import Action, ActionKind
from atfnd.nic.lab import LabNic
from atfnd.program import knob, queue_cpu
from atfnd.program.originals import Held, Originals
from tests.labs import Lab

__all__: list[str] = []

CPUS = sorted(os.sched_getaffinity(0))


@pytest.fixture
def originals(tmp_path: Path) -> Iterator[Originals]:
    journal = Originals(tmp_path / "originals.journal")
    yield journal
    journal.close()


def action(lab: Lab, name: str, value: str) -> Action:
    return Action(
        ActionKind.KNOB, lab.nic.name, None, None, None, None, "why", "", knob=name, value=value
    )


def reversed_table(lab: Lab) -> str:
    return " ".join(map(str, reversed(lab.nic.rss().table)))


def test_a_knob_is_written_and_undone(lab: Lab, originals: Originals) -> None:
    before, value = lab.nic.knobs(), reversed_table(lab)
    done = knob.apply(lab.nic, originals, action(lab, "rss", value))
    assert (done.errno, done.left) == (0, "as planned")
    assert lab.nic.knob("rss") == value
    assert originals.held(lab.nic.name) == {"rss": Held(before["rss"], value)}
    ((name, code, left),) = knob.undo(lab.nic, originals)
    assert (name, code) == ("rss", 0)
    assert left.endswith("again")
    assert lab.nic.knobs() == before
    assert originals.nics() == []


def test_a_queues_cpu_is_a_knob(lab: Lab, originals: Originals) -> None:
    everywhere = ",".join(map(str, CPUS)) if CPUS != [0, 1] else "0-1"
    lab.nic.set_knob("queue-cpu:2", everywhere)
    move = Action(ActionKind.QUEUE_CPU, lab.nic.name, None, None, None, CPUS[1], "why", "", 2)
    assert queue_cpu.apply(lab.nic, originals, move).errno == 0
    assert lab.nic.queues()[2].cpu == CPUS[1]
    assert originals.held(lab.nic.name)["queue-cpu:2"].wrote == str(CPUS[1])
    assert [done.errno for done in knob.undo(lab.nic, originals)] == [0]
    assert lab.nic.knob("queue-cpu:2") == everywhere


def test_a_refused_knob_is_not_ours(lab: Lab, originals: Originals) -> None:
    before = lab.nic.knobs()
    done = knob.apply(lab.nic, originals, action(lab, "rss", "0 1 2"))
    assert done.errno == errno.EINVAL
    assert done.left == "rss stays as it is (Invalid argument)"
    move = Action(ActionKind.QUEUE_CPU, lab.nic.name, None, None, None, 4000, "why", "", 2)
    assert queue_cpu.apply(lab.nic, originals, move).errno == errno.EINVAL
    assert knob.apply(lab.nic, originals, action(lab, "xps-cpus:0", "1")).errno == errno.ENOENT
    assert originals.nics() == []
    assert lab.nic.knobs() == before


def test_what_somebody_else_moved_is_neither_written_nor_undone(
    lab: Lab, originals: Originals
) -> None:
    first = lab.nic.knobs()["rss"]
    knob.apply(lab.nic, originals, action(lab, "rss", reversed_table(lab)))
    assert knob.drifted(lab.nic.name, lab.nic.knobs(), originals) == {}
    his = " ".join(["1"] * len(lab.nic.rss().table))
    lab.nic.set_knob("rss", his)
    assert knob.drifted(lab.nic.name, lab.nic.knobs(), originals) == {"rss": his}
    done = knob.apply(lab.nic, originals, action(lab, "rss", first))
    assert done.errno == errno.ESTALE
    ((_, code, left),) = knob.undo(lab.nic, originals)
    assert code == errno.ESTALE
    assert "somebody else set it" in left
    assert (lab.nic.knob("rss"), originals.nics()) == (his, [])


class Dies(LabNic):
    """A fake for what cannot be had to order: the daemon is killed at a given call."""

    before_write = False

    def set_knob(self, name: str, value: str) -> None:
        if self.before_write:
            raise KeyboardInterrupt
        super().set_knob(name, value)
        raise KeyboardInterrupt


@pytest.mark.parametrize("before_write", [True, False])
@pytest.mark.parametrize("written_before", [True, False])
def test_killed_around_a_write_the_next_run_puts_it_right(
    lab: Lab, tmp_path: Path, before_write: bool, written_before: bool
) -> None:
    before, value = lab.nic.knobs(), reversed_table(lab)
    dying = Dies(lab.name)
    dying.before_write = before_write
    path = tmp_path / "originals.journal"
    if written_before:
        ones = " ".join(["1"] * len(lab.nic.rss().table))
        first = Originals(path)
        assert knob.apply(lab.nic, first, action(lab, "rss", ones)).errno == 0
        first.close()
    with pytest.raises(KeyboardInterrupt):
        knob.apply(dying, Originals(path), action(lab, "rss", value))
    dying.close()
    assert (lab.nic.knob("rss") == value) is not before_write
    later = Originals(path)
    assert knob.drifted(lab.nic.name, lab.nic.knobs(), later) == {}
    assert [done.errno for done in knob.undo(lab.nic, later)] == [0]
    assert lab.nic.knobs() == before
    assert later.nics() == []
    later.close()


class Overtaken(LabNic):
    """A fake for what cannot be had to order: somebody writes right after us."""

    his = ""

    def set_knob(self, name: str, value: str) -> None:
        super().set_knob(name, value)
        super().set_knob(name, self.his)


def test_what_somebody_writes_right_after_us_is_his(lab: Lab, originals: Originals) -> None:
    nic = Overtaken(lab.name)
    nic.his = " ".join(["1"] * len(lab.nic.rss().table))
    ours = action(lab, "rss", reversed_table(lab))
    assert knob.apply(nic, originals, ours, verbatim=True).errno == 0
    assert knob.drifted(nic.name, nic.knobs(), originals) == {"rss": nic.his}
    assert [each.errno for each in knob.undo(nic, originals)] == [errno.ESTALE]
    assert nic.knob("rss") == nic.his
    nic.close()


class Deaf(LabNic):
    """A fake for what cannot be had here: a kernel that takes a value and keeps the old one."""

    def set_knob(self, name: str, value: str) -> None:
        pass


def test_a_write_without_effect_is_told(lab: Lab, originals: Originals) -> None:
    deaf = Deaf.open(lab.name)
    done = knob.apply(deaf, originals, action(lab, "rss", reversed_table(lab)))
    deaf.close()
    assert done.errno == errno.EIO
    assert "the kernel took it" in done.left


class Rfs(LabNic):
    """A fake for what must not be changed on the machine that runs the tests: RFS tables."""

    shared: ClassVar = {"rps-sock-flow-entries": "0"}

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.own = {"rps-flow-cnt:0": "0"}

    @property
    def name(self) -> str:
        return self._name + self.suffix

    suffix = ""

    def knobs(self) -> dict[str, str]:
        return {**self.shared, **self.own}

    def knob(self, name: str) -> str | None:
        return self.knobs().get(name)

    def set_knob(self, name: str, value: str) -> None:
        (self.own if name in self.own else self.shared)[name] = value


def test_a_table_of_the_whole_machine_stays_while_another_nic_needs_it(
    lab: Lab, originals: Originals
) -> None:
    one, two = Rfs(lab.name), Rfs(lab.name)
    two.suffix = "2"
    counts = "rps-flow-cnt:0"
    for nic, name in ((one, "rps-sock-flow-entries"), (one, counts), (two, counts)):
        write = replace(action(lab, name, "32768"), nic=nic.name)
        assert knob.apply(nic, originals, write).errno == 0
    assert {done.knob: done.errno for done in knob.undo(one, originals)} == {
        "rps-flow-cnt:0": 0,
        "rps-sock-flow-entries": 0,
    }
    assert one.knobs() == {"rps-sock-flow-entries": "32768", "rps-flow-cnt:0": "0"}
    knob.undo(two, originals)
    assert two.knobs() == {"rps-sock-flow-entries": "0", "rps-flow-cnt:0": "0"}
    assert originals.nics() == []
    for nic in (one, two):
        nic.close()
