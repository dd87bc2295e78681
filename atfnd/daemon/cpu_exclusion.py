# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads processes and cgroups for the look at cpusets that exclude CPUs, which the engine decides
(`engine.ownership.exclusion`), and gives cgroups back what they had."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from atfnd.daemon.executor import Executor, UndoPermit
from atfnd.engine.command import PutBackCpuset, ReadCgroup, ReadCpusets, ReadProcesses
from atfnd.engine.event import (
    CgroupRead,
    CpusetKept,
    CpusetsRead,
    Event,
    ExclusionDue,
    ExclusionEnded,
    ExclusionTriedAgain,
    ProcessesRead,
)
from atfnd.model import HeldCpuset
from atfnd.observe.processes import cgroup as observe
from atfnd.observe.processes.process import Processes
from atfnd.program.cpuset import CGROUPS, Cpusets
from atfnd.program.journals.undo_journal import OwnedSetting, UndoJournal
from atfnd.program.setting import DONE

__all__ = ["CpuExclusion"]


class CpuExclusion:
    """Writes through the executor."""

    def __init__(self, executor: Executor, undo_journal: UndoJournal) -> None:
        self._executor, self._undo_journal = executor, undo_journal
        self._cpusets = Cpusets()
        self._processes = {each: Processes(command=each) for each in (False, True)}
        self._kept: list[str] = []  # what the kernel refused to put back, in words
        executor.answer(ReadProcesses, self._read_processes)
        executor.answer(ReadCgroup, self._read_cgroup)
        executor.answer(ReadCpusets, self._read_cpusets)
        executor.answer(PutBackCpuset, self._put_back)

    def look(self) -> None:
        """Decide everything again: narrow what may be narrowed, put back what may no longer be."""
        self._executor.take(ExclusionDue(self._held()))

    def arm(self) -> None:
        """A NIC was armed by an operator: what the kernel refused is tried again."""
        self._executor.take(ExclusionTriedAgain())

    def take_back(self) -> None:
        """A NIC was resumed: look again at cgroups that another program had changed."""
        self._undo_journal.take_back(CGROUPS)
        self.arm()

    def pause(self) -> list[str]:
        """Put back what no armed NIC needs, also what the kernel refused before. Returns what it
        refused."""
        self._kept = []
        self._executor.take(ExclusionEnded(self._held()))
        return self._kept

    def _held(self) -> frozenset[str]:
        return frozenset(self._undo_journal.held(CGROUPS))

    def _read_processes(self, command: ReadProcesses) -> Iterable[Event]:
        found = {
            pid: (born, observe.cgroup_of(pid))
            for pid in command.pids
            if (born := observe.born(pid)) is not None
        }
        yield ProcessesRead(found, self._held(), observe.has_cpusets())

    def _read_cgroup(self, command: ReadCgroup) -> Iterable[Event]:
        group, possible = observe.cgroup(command.path, pins=command.pins), observe.possible()
        if group is None:
            yield CgroupRead(command.path, None, possible)
            return
        now_ns, processes = time.monotonic_ns(), self._processes[command.commands]
        of_members = {m.pid: processes.of(m.pid, now_ns) for m in group.members}
        name = group.id.setting
        held = self._undo_journal.held(CGROUPS).get(name)
        asked = observe.asked_for(group.cpus if held is None else held.original)
        ours = None if held is None else _held(held, group.cpus)
        manual = name in self._undo_journal.manual(CGROUPS)
        yield CgroupRead(command.path, group, possible, of_members, ours, asked, manual)

    def _read_cpusets(self, command: ReadCpusets) -> Iterable[Event]:
        held = self._undo_journal.held(CGROUPS).items()
        ours = {name: _held(each, self._cpusets.setting(name)) for name, each in held}
        theirs = self._undo_journal.manual(CGROUPS)
        yield CpusetsRead(ours, {name: self._cpusets.setting(name) for name in theirs})

    def _put_back(self, command: PutBackCpuset) -> Iterable[Event]:
        permit = UndoPermit(CGROUPS, command.why)
        for each in self._executor.put_back_cpuset(command.setting, permit):
            if each.errno not in DONE:
                self._kept.append(f"{command.setting} ({os.strerror(each.errno)})")
                yield CpusetKept(command.setting)


def _held(held: OwnedSetting, now: str | None) -> HeldCpuset:
    return HeldCpuset(held.original, now, held.ours(now or ""))
