# SPDX-License-Identifier: GPL-2.0-or-later
"""Control groups of version 2 with cpusets in the world, and an admin who uses them, too.

As the kernel does (kernel/cgroup/cpuset.c): a group may use the CPUs that it asks for, as far as
its parent has them, or else all that its parent has; a group with processes takes no empty list
after one that was not; a directory that is made anew has another number. Kernels before 6.2
forget what threads pinned themselves to.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from atfnd.kernel.system.cpulist import format_cpulist, parse_cpulist
from atfnd.model import Cgroup, CgroupId, Member, Pin, Process
from atfnd.observe.processes.cgroup import asked_for
from atfnd.program.cpuset import CGROUPS
from atfnd.program.journals.undo_journal import OwnedSetting, UndoJournal
from tests.simulation.driver import refused
from tests.simulation.machine import Machine, Task
from tests.simulation.world import World

__all__ = ["APPS", "REFUSALS", "Cgroups", "Group"]

TOP = Path("/sys/fs/cgroup")
APPS = "/apps"  # what an admin made for applications
LOOK_NS, WRITE_NS = 20_000, 30_000
QUICK_NS = 50_000_000  # atfnd looks at a cgroup and writes it within this time
REFUSALS = errno.EACCES, errno.EBUSY, errno.ENOSPC, errno.ENODEV, errno.EINVAL


class Group:
    """One group. `asks` is its cpuset.cpus; None: it has no such file."""

    def __init__(self, id: CgroupId, parent: Group | None, asks: frozenset[int] | None) -> None:
        self.id, self.parent, self.asks = id, parent, asks
        self.children: list[Group] = []
        self.found = "" if asks is None else format_cpulist(asks)  # as the admin has it
        self.read: str | None = None  # what atfnd last read of it,
        self.read_ns = -QUICK_NS  # and when
        self.uncertain = False  # a daemon may not know what its last run did to it
        self.pins: dict[int, frozenset[int]] = {}  # and what its threads were pinned to then
        self.theirs = False  # the admin wrote it after atfnd
        self.noticed = False  # and atfnd has read that
        if parent is not None:
            parent.children.append(self)

    @property
    def name(self) -> str:
        return self.id.path.rpartition("/")[2]

    @property
    def text(self) -> str | None:
        return None if self.asks is None else format_cpulist(self.asks)


class Cgroups:
    """The tree. It stands for the module `observe.processes.cgroup`, too."""

    asked_for = staticmethod(asked_for)

    def __init__(self, machine: Machine) -> None:
        self._world: World = machine.world
        self._machine = machine
        self._number = 1
        self.root = Group(CgroupId("/", self._number), None, None)
        self._of: dict[int, Group] = {}  # by pid
        self.parents: dict[int, int] = {}  # by pid, of those that another process made
        self.refusals: list[int] = []  # of writes to come
        self.refused = 0
        self._forgets_pins = False
        self.journal: Callable[[], UndoJournal | None] = lambda: None
        self.os = SimpleNamespace(
            sched_getaffinity=self._affinity_of, sched_setaffinity=self._pin_again
        )

    def populate(self) -> None:
        """A tree, and every process that is there lives in it."""
        machine = self._machine
        machine.cpuset_of = self._cpuset_of_task
        self._forgets_pins = self._world.random.random() < 0.3
        every = frozenset(self.possible())
        apps = self.make(self.root, "apps", self._world.random.choice((frozenset(), every)))
        for at in range(3):
            self.make(apps, f"app{at}.service", self._world.random.choice((frozenset(), every)))
        for task in self._tasks():
            self.begin(task)

    # ---- what happens

    def make(self, parent: Group, name: str, asks: frozenset[int] | None) -> Group:
        self._number += 1
        path = f"{parent.id.path.rstrip('/')}/{name}"
        return Group(CgroupId(path, self._number), parent, asks)

    def every(self) -> list[Group]:
        """All but the root."""
        found, todo = list[Group](), [*self.root.children]
        while todo:
            found.append(group := todo.pop(0))
            todo += group.children
        return found

    def apps(self) -> list[Group]:
        """Where processes may live."""
        return [each for each in self.every() if not each.children]

    def begin(self, task: Task) -> None:
        """A thread begins: with its process's other threads, or mostly in a group of its own."""
        if self.root.children:
            pid, random = task.thread.pid, self._world.random
            if pid not in self._of:
                alone = random.random() < 0.8
                new = self._own(pid) if alone else random.choice(self.apps() or [self.root])
                self._of[pid] = new
            self._settle()

    def _own(self, pid: int) -> Group:
        """One in which nobody is."""
        apps = next((each for each in self.root.children if each.id.path == APPS), self.root)
        fit = [each for each in apps.children if not each.children and not self.pids(each)]
        asks = self._world.random.choice((frozenset(), self.possible()))
        return fit[0] if fit else self.make(apps, f"run-{pid}.scope", asks)

    def move(self, pid: int, to: Group) -> None:
        """cgroup.procs is written."""
        self._of[pid] = to
        for task in self._tasks_in(to):
            if task.thread.pid == pid:
                self._forget_pin(task)
        self._settle()

    def ended(self, pid: int) -> None:
        self._of.pop(pid, None)
        self.parents.pop(pid, None)

    def remove(self, group: Group) -> bool:
        """rmdir. Refused (EBUSY) while something is in it."""
        if group.parent is None or group.children or self.pids(group):
            return False
        group.parent.children.remove(group)
        group.asks = None
        return True

    def switch(self, group: Group, on: bool) -> None:
        """Its parent's cgroup.subtree_control: with the controller its cpuset goes, and comes back
        empty."""
        if (group.asks is not None) != on:
            group.asks = frozenset() if on else None
            group.found, group.theirs, group.noticed = "", False, False
            self._changed(group)

    def admin_sets(self, group: Group, cpus: frozenset[int]) -> None:
        """Another program writes cpuset.cpus. What equals our value cannot be distinguished."""
        if group.asks is None or (group.asks and not cpus and self.pids(group)):
            return
        held, text = self.held(group), format_cpulist(cpus)
        if held is not None and text in (held.wrote, held.earlier):
            self._world.seen["excused: an admin wrote what atfnd had written"] += 1
            return
        self._world.note("admin sets cpus", f"an admin sets {group.id.path} to {text or 'empty'}")
        group.asks, group.found, group.uncertain = cpus, text, False
        group.theirs, group.noticed = held is not None, False
        self._changed(group)

    def taken_back(self) -> None:
        """An operator said so: atfnd may change what the admin had written after it."""
        for group in self.every():
            group.theirs = group.noticed = False

    def restarted(self) -> None:
        """A daemon starts whose disk failed it: it may not know what the last one wrote."""
        for group in self.every():
            group.uncertain = True

    # ---- what atfnd asks

    def has_cpusets(self) -> bool:
        return True

    def possible(self) -> frozenset[int]:
        return frozenset(cpu.index for cpu in self._machine.cpus)

    def born(self, pid: int) -> int | None:
        return pid if any(task.thread.pid == pid for task in self._tasks()) else None

    def cgroup_of(self, pid: int) -> str | None:
        return None if self.born(pid) is None else self._of.get(pid, self.root).id.path

    def cgroup(self, path: str, *, pins: bool = True) -> Cgroup | None:
        self._world.operation("look at a cgroup")
        self._world.pass_ns(LOOK_NS)
        group = next((each for each in [self.root, *self.every()] if each.id.path == path), None)
        if group is None:
            return None
        has, tasks = self.effective(group), self._tasks_in(group)
        leaders = {task.thread.pid: task for task in reversed(tasks)}
        members = tuple(
            Member(pid, self.parents.get(pid, 1), leaders[pid].thread.comm)
            for pid in sorted(leaders)
        )
        group.pins = {each.thread.tid: cpus for each in tasks if (cpus := each.pinned) is not None}
        pinned = tuple(
            Pin(task.thread.tid, task.thread.comm, cpus)
            for task in tasks
            if not has <= (cpus := self._affinity(task))
        )
        text = self._is_read(group)
        below = tuple(sorted(each.name for each in group.children))
        of_root = group is self.root
        return Cgroup(
            group.id, text, has, None if of_root else "domain", None if of_root else "member",
            below, members, pinned if pins else (),
        )  # fmt: skip

    def process(self, pid: int, now_ns: int) -> Process:
        del now_ns
        return Process(None, 1000, self.cgroup_of(pid))

    def cpuset_of(self, tid: int) -> frozenset[int] | None:
        task = self._task(tid) if self.root.children else None
        return None if task is None else self.effective(self._of.get(task.thread.pid, self.root))

    def folder(self, id: CgroupId) -> Path | None:
        """It stands for the file system by the number of its directory."""
        return None if self._at(id.number) is None else TOP / str(id.number)

    def text(self, file: Path) -> str | None:
        group = self._at(int(file.parent.name))
        if group is None:
            return None
        if file.name == "cpuset.cpus":
            return self._is_read(group)
        if file.name == "cpuset.cpus.effective":
            return format_cpulist(self.effective(group))
        assert file.name == "cgroup.threads"
        return "\n".join(str(task.thread.tid) for task in self._tasks_in(group))

    def write(self, file: Path, text: str) -> None:
        """atfnd writes cpuset.cpus."""
        world = self._world
        world.operation("write a cpuset")
        world.pass_ns(WRITE_NS)
        code = self.refusals.pop(0) if self.refusals else 0
        group = self._at(int(file.parent.name))
        if group is not None and code == errno.ENODEV:
            self.switch(group, False)  # the controller goes while the file is open
        if group is None or group.asks is None:
            self._refuse(errno.ENODEV, file)
            return
        if code:
            self._refuse(code, file)
        cpus = parse_cpulist(text)
        self._check(group, text)
        if group.asks and not cpus and self.pids(group):
            raise refused(errno.ENOSPC)
        group.asks = cpus
        group.theirs = group.noticed = False
        world.note("write cpuset", f"{group.id.path} is written: {text or 'empty'}")
        self._changed(group)
        world.operation("a cpuset is written")

    def _refuse(self, code: int, file: Path) -> None:
        self.refused += 1
        name = errno.errorcode[code]
        self._world.note(
            f"write cpuset {name}", f"a write of {file.parent.name} is refused: {name}"
        )
        raise refused(code)

    def _check(self, group: Group, text: str) -> None:
        """The journal names it, and it is not the admin's."""
        world, held = self._world, self.held(group)
        if held is None:
            world.broken("journal", f"{group.id.path} is written, and no journal names it")
        undone = self._same(text, held.original)
        if not undone and held.wrote != text:
            world.broken("journal", f"{group.id.path} is written: {text}, the journal has {held}")
        if group.uncertain and not self._same(group.found, held.original):
            world.seen["excused: the disk lost what was an admin's"] += 1
            group.found, group.noticed = held.original, False
        group.uncertain = False
        if group.noticed:
            how = f"{group.id.path} is written: {text}, and an admin set {group.found} after atfnd"
            world.broken("foreign cpuset", how)
        if group.text != group.read and world.clock_ns() - group.read_ns < QUICK_NS:
            world.seen["excused: an admin was quicker than a look and a write"] += 1
            group.found = held.original
        elif not self._same(group.found, held.original):
            how = (
                f"the journal has {held.original!r} of {group.id.path}, and it was {group.found!r}"
            )
            world.broken("foreign cpuset", how)
        if held.earlier == held.original and not undone:
            left, had = parse_cpulist(text), self.effective(group)
            for tid, cpus in group.pins.items():
                task = self._task(tid)
                if task is not None and task.pinned == cpus and cpus & had and not cpus & left:
                    world.broken("pin", f"thread {tid} is pinned to {cpus}, which is overruled")

    def _is_read(self, group: Group) -> str | None:
        group.read, group.read_ns = group.text, self._world.clock_ns()
        held = self.held(group)
        group.noticed |= group.theirs and held is not None
        return group.text

    # ---- what is so

    def held(self, group: Group) -> OwnedSetting | None:
        """What the journal has of it."""
        journal = self.journal()
        return None if journal is None else journal.held(CGROUPS).get(group.id.setting)

    def effective(self, group: Group) -> frozenset[int]:
        """cpuset.cpus.effective."""
        if group.parent is None:
            return frozenset(cpu.index for cpu in self._machine.cpus if cpu.online)
        above = self.effective(group.parent)
        return (group.asks or above) & above or above

    def group_of(self, task: Task) -> Group:
        return self._of.get(task.thread.pid, self.root)

    def pids(self, group: Group) -> list[int]:
        return sorted({task.thread.pid for task in self._tasks_in(group)})

    def not_as_found(self) -> str | None:
        """A group that does not have what its admin gave it, in words."""
        for group in self.every():
            if group.text is not None and not self._same(group.text, group.found):
                return f"cpuset.cpus of {group.id.path} is {group.text!r}, and was {group.found!r}"
        return None

    def _same(self, one: str, other: str) -> bool:
        """To the kernel: no CPUs is all that there are."""
        every = self.possible()
        return (parse_cpulist(one) or every) == (parse_cpulist(other) or every)

    def stuck(self, group: Group, off: Collection[int]) -> bool:
        """A thread is pinned to these CPUs, and to no other that the group has."""
        left = self.possible() - {*off}
        return any(not self._affinity(task) & left for task in self._tasks_in(group))

    def _at(self, number: int) -> Group | None:
        return next((each for each in self.every() if each.id.number == number), None)

    def _tasks(self) -> list[Task]:
        every = (task for cpu in self._machine.cpus for task in cpu.tasks)
        return sorted(every, key=lambda task: task.thread.tid)

    def _tasks_in(self, group: Group) -> list[Task]:
        return [each for each in self._tasks() if self._of.get(each.thread.pid) is group]

    def _task(self, tid: int) -> Task | None:
        return next((each for each in self._tasks() if each.thread.tid == tid), None)

    def _cpuset_of_task(self, task: Task) -> frozenset[int]:
        return self.effective(self._of.get(task.thread.pid, self.root))

    def _affinity(self, task: Task) -> frozenset[int]:
        has = self._cpuset_of_task(task)
        return (task.pinned or has) & has or has

    def _affinity_of(self, tid: int) -> frozenset[int]:
        if (task := self._task(tid)) is None:
            raise ProcessLookupError(tid)
        return self._affinity(task)

    def _pin_again(self, tid: int, cpus: Any) -> None:
        if (task := self._task(tid)) is not None:
            self._machine.pin(task, frozenset(cpus))

    def _changed(self, group: Group) -> None:
        todo = [group]
        while todo:
            each = todo.pop()
            todo += each.children
            for task in self._tasks_in(each):
                self._forget_pin(task)
        self._settle()

    def _forget_pin(self, task: Task) -> None:
        if self._forgets_pins:
            task.pinned = None

    def _settle(self) -> None:
        """Threads wake where they may run."""
        for task in self._tasks():
            if task.cpu.index not in self._affinity(task):
                self._machine.move(task, self._machine.least_loaded(task))
