# SPDX-License-Identifier: GPL-2.0-or-later
"""The simulation is as the kernel is: one scenario makes atfnd write the same to a NIC in the lab
and in the simulation, per flow and in the same order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.applications import Application
from tests.bed import Bed, a_bed
from tests.labs import a_lab
from tests.simulation.scripted import CPUS, WRITES, WorldSide, Writes, config, script
from tests.wait import until


class LabSide:
    """Real sockets, packets and threads; the daemon as a process."""

    def __init__(self, bed: Bed, order: str) -> None:
        self._bed, self._order = bed, order
        self._apps: dict[str, Application] = {}
        self._homes = self._queue_cpus()

    def _queue_cpus(self) -> list[int | None]:
        return [queue.cpu for queue in self._bed.lab.nic.queues()]

    def opens(self, name: str) -> None:
        # a queue that goes home meanwhile may bring the packets right without a filter
        until(lambda: self._queue_cpus() == self._homes, "queues without an owner are home", 30)
        app = self._apps[name] = self._bed.apps.udp_connected()
        self._bed.steered(app)

    def migrates(self, name: str) -> None:
        self._apps[name].migrate()
        self._bed.steered(self._apps[name])

    def closes(self, name: str) -> None:
        self._apps[name].end()
        self._bed.unknown(self._apps[name])

    def loses_filter(self, name: str) -> None:
        app = self._apps[name]
        there = self._bed.rule(app)
        assert there is not None
        self._bed.lab.nic.delete(there.location)
        self._bed.row(app, lambda row: row["state"] == "manual", "is left to the admin")

    def is_left(self, name: str) -> None:
        app, daemon = self._apps[name], self._bed.daemon
        daemon.config.write_text(config(self._order, app.key.local_port))
        done = daemon.ctl("reload")
        assert done.returncode == 0, done.stderr
        until(lambda: self._bed.rule(app) is None, "its filter is gone", 30)

    def restores(self) -> None:
        self._bed.daemon.order("restore", self._bed.lab.nic.name)

    def writes(self) -> Writes:
        names = {str(app.key): name for name, app in self._apps.items()}
        found: defaultdict[str, list[str]] = defaultdict(list)
        for event in self._bed.daemon.events(*WRITES):
            flow = event.get("flow")
            found["NIC" if flow is None else names[flow]].append(event["kind"])
        return dict(found)


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    with a_lab(queues=CPUS) as lab, a_bed(lab, tmp_path, "bpf") as made:
        yield made


@pytest.mark.parametrize("order", ["immediate", "strict"])
def test_a_scenario_makes_the_same_writes_in_the_lab_and_in_the_simulation(
    bed: Bed, tmp_path: Path, order: str
) -> None:
    bed.daemon.config.write_text(config(order, None))
    bed.start(arm=False)
    in_lab = script(LabSide(bed, order))
    folder = tmp_path / "world"
    folder.mkdir()
    world = WorldSide(order, folder)
    with world.running():
        in_world = script(world)
    queues = in_lab.pop("NIC", []), in_world.pop("NIC", [])  # how often depends on when steps come
    assert in_world == in_lab
    assert {*queues[0]} == {*queues[1]} == ({"queue-cpu"} if order == "strict" else set())
    assert {"insert", "delete"} <= {kind for kinds in in_lab.values() for kind in kinds}
