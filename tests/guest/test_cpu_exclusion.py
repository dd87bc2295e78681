# SPDX-License-Identifier: GPL-2.0-or-later
"""Applications kept off dedicated CPUs, in real cgroups of version 2: simnic, and a daemon."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.applications import Application, rss_cpu
from tests.bed import Bed, a_bed
from tests.daemons import policy
from tests.guest.simlab import a_simlab
from tests.wait import until

__all__: list[str] = []

TOP = Path("/sys/fs/cgroup")
PROTOCOL = """\
  - name: protocol
    match: { ports: 24000-24100 }
    placement: { dedicated: [3], cpu_exclusion: true }
    order: immediate
"""
PORTS = itertools.count(24000)


@pytest.fixture(scope="module", autouse=True)
def cpusets() -> None:
    (TOP / "cgroup.subtree_control").write_text("+cpuset")


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with (
        a_simlab(queues=4, table=64) as lab,
        a_bed(lab, tmp_path_factory.mktemp("daemon"), "bpf", policy(PROTOCOL)) as made,
    ):
        made.start()
        yield made
        made.daemon.end()


class Group:
    """A cgroup of its own, and an application in it that may run on every CPU."""

    def __init__(self, bed: Bed, path: str, cpus: str = "") -> None:
        self.path, self.folder = path, TOP / path.lstrip("/")
        self.folder.mkdir(parents=True)
        if cpus:
            (self.folder / "cpuset.cpus").write_text(cpus)
        self.app = bed.apps.tcp(port=next(PORTS))
        while rss_cpu(bed.lab, self.app.key) == 3:  # right by itself: it would not be reported
            self.app.end()
            self.app = bed.apps.tcp(port=next(PORTS))
        self.add(self.app.pid)
        os.sched_setaffinity(self.app.pid, range(4))

    def add(self, pid: int) -> None:
        (self.folder / "cgroup.procs").write_text(str(pid))

    @property
    def cpus(self) -> str:
        return (self.folder / "cpuset.cpus").read_text().strip()

    @cpus.setter
    def cpus(self, text: str) -> None:
        (self.folder / "cpuset.cpus").write_text(text)

    def comes_to(self, cpus: str) -> None:
        until(lambda: self.cpus == cpus, f"{self.path} is on {cpus}, not on {self.cpus}", 60)

    def threads(self) -> list[set[int]]:
        tids = (self.folder / "cgroup.threads").read_text().split()
        return [set(os.sched_getaffinity(int(tid))) for tid in tids]

    def remove(self) -> None:
        until(lambda: not (self.folder / "cgroup.procs").read_text(), "it is empty", 30)
        self.folder.rmdir()


@pytest.fixture
def group(bed: Bed, request: pytest.FixtureRequest) -> Iterator[Callable[..., Group]]:
    made: list[Group] = []

    def make(cpus: str = "", folder: str = "") -> Group:
        made.append(Group(bed, f"{folder}/t{len(made)}-{next(PORTS)}", cpus))
        return made[-1]

    yield make
    for each in made:
        each.app.end()
        each.remove()


def explained(bed: Bed, app: Application) -> str:
    row = bed.row(app, lambda row: True, "is known")
    chain = bed.daemon.get(f"/v1/explain?flow=cookie:{row['cookie']}")["chain"]
    return next((link for link in chain if " use CPUs " in link), "")


def says(bed: Bed, app: Application, what: str) -> None:
    until(lambda: what in explained(bed, app), f"explain says {what}", 60)


def about(bed: Bed, group: Group, *kinds: str) -> list[str]:
    return [e["what"] for e in bed.daemon.events(*kinds) if f"{group.path} " in f"{e['what']} "]


def test_threads_and_children_are_kept_off(bed: Bed, group: Callable[..., Group]) -> None:
    it = group()
    it.comes_to("0-2")
    says(bed, it.app, f"cgroup {it.path} may not use CPUs 3: cpuset.cpus is 0-2.")
    assert len(about(bed, it, "setting")) == 1
    it.app.host.tell("child")
    it.app.host.tell("thread 1")
    until(lambda: len(it.threads()) == 3, "it has a thread and a child", 30)
    assert not any(3 in cpus for cpus in it.threads())
    with pytest.raises(OSError, match="Invalid argument"):
        os.sched_setaffinity(it.app.pid, {3})
    reported = bed.daemon.get("/v1/doctor")["findings"]
    assert any(f["level"] == "ok" and it.path in f["what"] for f in reported), reported
    assert len(about(bed, it, "setting", "undo")) == 1


@contextmanager
def a_stranger() -> Iterator[int]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def test_a_cgroup_is_given_back_while_it_is_shared(bed: Bed, group: Callable[..., Group]) -> None:
    it = group("1-3")
    it.comes_to("1-2")
    with a_stranger() as pid:
        it.add(pid)
        it.comes_to("1-3")
        says(bed, it.app, f"is shared: process {pid} (sleep)")
    it.comes_to("1-2")


def test_what_somebody_else_writes_is_his(bed: Bed, group: Callable[..., Group]) -> None:
    it = group()
    it.comes_to("0-2")
    it.cpus = "0-3"
    says(bed, it.app, "another program set its cpuset.cpus to 0-3")
    assert about(bed, it, "manual")
    assert it.cpus == "0-3"
    bed.daemon.post(f"/v1/nics/{bed.lab.nic.name}/resume")
    it.comes_to("0-2")
