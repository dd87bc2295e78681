# SPDX-License-Identifier: GPL-2.0-or-later
"""What is done to a cgroup over time, and journaled: on a made-up hierarchy, with this process in
it. What the kernel makes of it is in tests/guest/test_cpu_exclusion.py."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atfnd.daemon.cpu_exclusion import CpuExclusion
from atfnd.engine.event import NicLost
from atfnd.engine.table.memory import RulesInForce
from atfnd.kernel.system import cpuset
from atfnd.model import Flow, NicView, Outcome, Placement, PlacementKind, Policy, Thread
from atfnd.observe.processes import cgroup
from atfnd.program import setting
from atfnd.program.cpuset import CGROUPS, Cpusets
from atfnd.program.journals import record_file
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.program.restore import restored, take_back
from atfnd.serve.log.event_log import EventLog
from tests.replay.test_replay import POLICY
from tests.standing import like
from tests.values import NIC, RULE, flow
from tests.writers import writer

__all__: list[str] = []

POSSIBLE = cpuset.possible()
LAST = max(POSSIBLE)
REST = ",".join(str(cpu) for cpu in sorted(POSSIBLE - {LAST}))
ASKED = Placement(PlacementKind.DEDICATED, frozenset({LAST}), cpu_exclusion=True)
KEEP = replace(POLICY, flows=(replace(RULE, placement=ASKED),))
DROP = replace(POLICY, flows=(replace(RULE, placement=replace(ASKED, cpu_exclusion=False)),))
MINE = flow(1, rule_name=RULE.name, thread=Thread(os.getpid(), os.getpid(), "pytest", None))
assert REST, "one CPU is too few"


@dataclass
class World:
    """A cgroup `/app`, and a daemon's part that looks at it."""

    folder: Path
    journal: Path
    outcomes: list[Outcome]
    log: EventLog

    def __post_init__(self) -> None:
        self.fresh()

    def fresh(self) -> None:
        """A run of the daemon begins."""
        self.undo_journal = UndoJournal(self.journal)
        self.sessions: Any = {NIC.name: SimpleNamespace(view=NIC)}
        executor = writer(self.sessions, self.undo_journal, self.log, self.outcomes.append)
        self.engine, self.known = executor._engine, executor._engine.exclusion
        self.cpu_exclusion = CpuExclusion(executor, self.undo_journal)

    def look(
        self, policy: Policy = KEEP, flows: tuple[Flow, ...] = (MINE,), *, armed: bool = True
    ) -> str:
        memory = self.engine.memory
        self.becomes(replace(NIC, armed=armed))
        if memory.in_force.by_name != {rule.name: rule for rule in policy.flows}:
            memory.in_force = RulesInForce.of(policy)
        for each in list(memory.table):
            memory.table.remove(each.key)
        for each in flows:
            memory.table.put(each)
        self.cpu_exclusion.look()
        return self.cpus

    def becomes(self, view: NicView) -> None:
        self.sessions[NIC.name].view = view
        for event in like(view):
            self.engine.handle(event, 0)

    @property
    def cpus(self) -> str:
        return (self.folder / "cpuset.cpus").read_text().strip()

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text + "\n")

    def made(self) -> None:
        """Made, or made anew."""
        self.folder.mkdir()
        whole = ",".join(map(str, sorted(POSSIBLE)))
        files = {
            "cgroup.type": "domain", "cgroup.procs": str(os.getpid()), "cgroup.threads": "",
            "cpuset.cpus": whole, "cpuset.cpus.effective": whole,
        }  # fmt: skip
        for name, text in files.items():
            self.write(name, text)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.log.after(0, 100)]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    top = tmp_path / "cgroup"
    top.mkdir()
    (top / "cgroup.controllers").write_text("cpuset cpu")
    monkeypatch.setattr(cpuset, "_MOUNTS", (str(top),))
    monkeypatch.setattr(cgroup, "cgroup_of", lambda pid: "/app")
    world = World(top / "app", tmp_path / "journal", [], EventLog())
    world.made()
    yield world
    world.undo_journal.close()


def no_room(file: int, text: bytes) -> None:
    """In place of a write to a journal."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def narrowed(world: World) -> bool:
    return set(world.cpus.split(",")) == {*REST.split(",")} or world.cpus == f"0-{LAST - 1}"


def test_it_is_journaled_then_written_and_undone(world: World) -> None:
    before = world.cpus
    world.look()
    assert narrowed(world)
    (held,) = world.undo_journal.held(CGROUPS).values()
    assert (held.original, held.wrote) == (before, world.cpus)
    world.look()
    assert [each.errno for each in world.outcomes] == [0]
    (done,) = setting.undo(Cpusets(), world.undo_journal)
    assert (done.errno, world.cpus, world.undo_journal.nics()) == (0, before, [])


def test_nothing_is_written_where_it_is_not_armed(world: World) -> None:
    before = world.cpus
    assert world.look(armed=False) == before
    (action,) = world.known.planned(NIC.name)
    assert action.setting is not None
    assert action.setting.endswith(":/app")
    world.look()
    assert narrowed(world)
    assert world.known.planned(NIC.name) == ()
    narrow = world.cpus
    assert world.look(DROP, armed=False) == narrow  # and nothing is put back
    assert world.look(DROP) == before


def test_it_hurries_after_a_change_and_comes_to_rest(world: World) -> None:
    assert not world.known.pressing()
    world.look()
    looks = 0
    while world.known.pressing():
        world.look()
        looks += 1
    assert 0 < looks < 10


def test_what_somebody_else_writes_is_his_until_it_is_taken_back(world: World) -> None:
    world.look()
    world.write("cpuset.cpus", str(LAST))
    assert world.look() == world.look() == str(LAST)
    assert world.undo_journal.nics() == []
    assert world.kinds() == ["manual", "not-kept-off"]
    reported = world.known.report(MINE)
    assert reported is not None
    assert f"another program set its cpuset.cpus to {LAST}" in reported
    world.cpu_exclusion.arm()
    world.undo_journal.close()
    world.fresh()  # neither arming nor a restart makes it ours
    assert world.look() == str(LAST)
    world.cpu_exclusion.take_back()
    assert "another program" not in ((world.look() and world.known.report(MINE)) or "")


def test_what_somebody_else_wrote_stays_when_the_application_leaves_and_comes_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.look()
    world.write("cpuset.cpus", str(LAST))
    monkeypatch.setattr(cgroup, "cgroup_of", lambda pid: "/")
    assert world.look() == str(LAST)
    monkeypatch.setattr(cgroup, "cgroup_of", lambda pid: "/app")
    assert world.look() == world.look() == str(LAST)
    assert world.kinds().count("manual") == 1


def test_what_somebody_else_wrote_is_forgotten_with_its_cgroup(world: World) -> None:
    world.look()
    world.write("cpuset.cpus", str(LAST))
    world.look()
    assert len(world.undo_journal.manual(CGROUPS)) == 1
    world.folder.rename(world.folder.with_name("gone"))
    world.made()
    world.look()
    assert not world.undo_journal.manual(CGROUPS)
    world.undo_journal.close()
    world.fresh()
    assert not world.undo_journal.manual(CGROUPS)


def test_a_restore_forgets_what_somebody_else_wrote(world: World, tmp_path: Path) -> None:
    world.look()
    world.write("cpuset.cpus", str(LAST))
    world.look()
    with closing(FilterJournal(tmp_path / "rules")) as filters:
        assert restored(filters, world.undo_journal) == []
    assert world.undo_journal.manual(CGROUPS)  # the undo of a stop is no order of an operator
    take_back(world.undo_journal)
    assert (world.cpus, world.undo_journal.manual(CGROUPS)) == (str(LAST), frozenset())


def test_a_stranger_ends_it_while_he_is_there(world: World) -> None:
    before = world.cpus
    world.look()
    world.write("cgroup.procs", f"{os.getpid()}\n1")
    assert world.look() == before
    assert "is shared: process 1 (" in (world.known.report(MINE) or "")
    world.write("cgroup.procs", f"{os.getpid()}")
    world.look()
    assert narrowed(world)


def test_a_process_that_the_rule_names_is_no_stranger(world: World) -> None:
    comm = Path("/proc/1/comm").read_text().strip()
    world.write("cgroup.procs", f"{os.getpid()}\n1")
    named = replace(KEEP.flows[0], processes=(comm,))
    world.look(replace(KEEP, flows=(named,)))
    assert narrowed(world)


def test_an_idle_application_stays_off_and_a_restart_takes_it_over(world: World) -> None:
    world.look()
    narrow = world.cpus
    assert world.look(flows=()) == narrow
    world.undo_journal.close()
    world.fresh()
    assert world.look(flows=()) == world.look() == narrow
    assert len(world.outcomes) == 1


def test_the_last_process_of_the_rule_leaves(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before = world.cpus
    world.look()
    monkeypatch.setattr(cgroup, "cgroup_of", lambda pid: "/")
    assert world.look() == before


def test_a_cgroup_of_the_same_name_is_another_one(world: World) -> None:
    world.look()
    world.folder.rename(world.folder.with_name("gone"))
    world.made()
    world.look()
    assert narrowed(world)
    assert "manual" not in world.kinds()
    assert len(world.undo_journal.held(CGROUPS)) == 1


def test_a_nic_that_is_gone_needs_nothing(world: World) -> None:
    before = world.cpus
    world.look()
    world.engine.handle(NicLost(NIC.name), 0)
    world.cpu_exclusion.look()
    assert world.cpus == before


def test_a_refusal_is_an_outcome_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path, cpus: str) -> None:
        raise OSError(errno.EACCES, "no", str(folder))

    monkeypatch.setattr("atfnd.program.cpuset.write_cpus", refuse)
    before = world.look()
    assert world.look() == before
    assert [each.errno for each in world.outcomes] == [errno.EACCES]
    assert world.undo_journal.nics() == []
    assert "the kernel refused" in (world.known.report(MINE) or "")
    monkeypatch.undo()


def test_a_journal_without_room_is_no_refusal_of_the_kernel_and_it_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = world.cpus
    with monkeypatch.context() as full:
        full.setattr(record_file, "_write_whole", no_room)
        assert world.look() == world.look() == before
        said = world.known.report(MINE) or ""
        assert "the journal cannot be written (No space left on device)" in said
        assert "the kernel refused" not in said
    assert world.kinds() == ["not-kept-off"]  # once
    while world.known.pressing():  # at the usual pace
        world.look()
    assert narrowed(world)
    (held,) = world.undo_journal.held(CGROUPS).values()
    assert (held.original, held.wrote) == (before, world.cpus)


def test_what_somebody_else_writes_while_the_journal_has_no_room_is_not_taken_for_ours(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first record, of what it was, went in: nothing of ours was ever there."""
    room = [1]

    def last_one(file: int, text: bytes) -> None:
        if not room:
            no_room(file, text)
        room.pop()
        write_whole(file, text)

    write_whole = record_file._write_whole
    with monkeypatch.context() as full:
        full.setattr(record_file, "_write_whole", last_one)
        world.look()
    assert not room
    world.write("cpuset.cpus", f"0-{LAST}")  # by another program, in other words
    world.look()
    assert "manual" not in world.kinds()
    assert narrowed(world)


def test_a_pause_puts_back(world: World) -> None:
    before = world.cpus
    world.look()
    world.becomes(replace(NIC, armed=False, paused=True))
    assert world.cpu_exclusion.pause() == []
    assert world.cpus == before


def test_a_pause_asks_the_kernel_again_that_has_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path, cpus: str) -> None:
        raise OSError(errno.EBUSY, "no", str(folder))

    before = world.cpus
    world.look()
    world.becomes(replace(NIC, armed=False, paused=True))
    with monkeypatch.context() as refusing:
        refusing.setattr("atfnd.program.cpuset.write_cpus", refuse)
        (refused,) = world.cpu_exclusion.pause()
    assert ":/app (" in refused
    assert world.cpu_exclusion.pause() == []
    assert world.cpus == before


def test_a_policy_that_asks_for_nothing_reads_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[object]()
    for name in ("born", "cgroup_of", "cgroup", "has_cpusets"):
        monkeypatch.setattr(cgroup, name, lambda *of, **how: read.append(of))
    world.look(POLICY)
    assert (world.known.report(MINE), world.known.findings()) == (None, [])
    assert read == []
