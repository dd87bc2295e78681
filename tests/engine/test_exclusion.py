# SPDX-License-Identifier: GPL-2.0-or-later
"""Which cgroups are kept off CPUs, and which get back what they had: decided from what was read."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

import pytest

from atfnd.engine.command import (
    Command,
    ForgetCpuset,
    LeaveCpuset,
    Log,
    PutBackCpuset,
    ReadCgroup,
    ReadCpusets,
    ReadProcesses,
    WriteCpuset,
)
from atfnd.engine.engine import Engine
from atfnd.engine.event import (
    CgroupRead,
    CpusetKept,
    CpusetsRead,
    CpusetWritten,
    Event,
    ExclusionDue,
    ExclusionEnded,
    ExclusionTriedAgain,
    NicAttached,
    NicLost,
    ProcessesRead,
    SocketReported,
)
from atfnd.engine.table.memory import Memory, RulesInForce
from atfnd.model import (
    Cgroup,
    CgroupId,
    FlowRule,
    HeldCpuset,
    Level,
    Member,
    Placement,
    PlacementKind,
    Policy,
    Process,
    SocketSeen,
    Thread,
)
from tests.standing import like
from tests.values import NIC, RULE, flow, seen

__all__: list[str] = []

ALL = frozenset(range(4))
ASKED = Placement(PlacementKind.DEDICATED, frozenset({3}), cpu_exclusion=True)
KEEP = replace(RULE, placement=ASKED)
WHOLE, REST = "0-3", "0-2"
APP = Thread(10, 10, "app", None)
ID = CgroupId("/app", 7)
NAME = ID.setting
MINE = flow(1, rule_name=RULE.name, thread=APP)


def policy(*rules: FlowRule) -> Policy:
    return Policy((), rules, "auto", 64, 0, ())


class Host:
    """One armed NIC, and a process 10 in a cgroup /app of its own, as what a daemon reads. What is
    asked for is done, and noted; `refuses` says what a write meets instead."""

    def __init__(self, rule: FlowRule = KEEP) -> None:
        self.processes: dict[int, tuple[int, str | None]] = {10: (1, "/app")}
        self.groups = {
            "/app": Cgroup(ID, WHOLE, ALL, "domain", "member", (), (Member(10, 1, "app"),))
        }
        self.held: dict[str, tuple[str, str]] = {}  # by setting: before us, and what we wrote
        self.manual: set[str] = set()
        self.facts: dict[int, Process] = {}
        self.cpusets, self.refuses, self.full = True, 0, ""
        self.fresh(rule)

    def fresh(self, rule: FlowRule = KEEP) -> None:
        """A run begins."""
        self.engine = Engine(Memory.of(policy(rule)))
        self.engine.handle(NicAttached(NIC, armed=True), 0)
        self.engine.memory.table.put(MINE)
        self.known = self.engine.exclusion

    def changes(self, **values: object) -> None:
        for event in like(replace(NIC, **values)):  # type: ignore[arg-type]
            self.engine.handle(event, 0)

    def follows(self, *rules: FlowRule) -> None:
        self.engine.memory.in_force = RulesInForce.of(policy(*rules))

    def look(self) -> list[Command]:
        """Returns what was written, logged or noted."""
        return self.tell(ExclusionDue(frozenset(self.held)))

    def tell(self, event: Event) -> list[Command]:
        done, todo = list[Command](), deque(self.engine.handle(event, 0))
        while todo:
            command = todo.popleft()
            if not isinstance(command, ReadProcesses | ReadCgroup | ReadCpusets):
                done.append(command)
            for answer in self._answers(command):
                todo.extendleft(reversed(self.engine.handle(answer, 0)))
        return done

    def _answers(self, command: Command) -> Iterable[Event]:
        match command:
            case ReadProcesses(pids):
                found = {pid: of for pid, of in self.processes.items() if pid in pids}
                yield ProcessesRead(found, frozenset(self.held), self.cpusets)
            case ReadCgroup(path, pins, _):
                assert not path.startswith("/..")
                group = self.groups.get(path)
                if group is None:
                    yield CgroupRead(path, None, ALL)
                    return
                name = group.id.setting
                assert pins == (name not in self.held)
                facts = {m.pid: self.facts.get(m.pid, Process()) for m in group.members}
                manual = name in self.manual
                yield CgroupRead(path, group, ALL, facts, self._held(name), None, manual)
            case ReadCpusets():
                ours = {name: held for name in self.held if (held := self._held(name)) is not None}
                yield CpusetsRead(ours, {name: self._now(name) for name in self.manual})
            case WriteCpuset(action):
                assert action.setting is not None
                assert action.value is not None
                if not self.refuses and not self.full:
                    original = self.held.get(action.setting, (self._now(action.setting) or "",))[0]
                    self.held[action.setting] = original, action.value
                    self._set(action.setting, action.value)
                yield CpusetWritten(action, self.refuses, self.full or None)
            case PutBackCpuset(name, _) if self.refuses:
                yield CpusetKept(name)
            case PutBackCpuset(name, _):
                self._set(name, self.held.pop(name)[0])
            case LeaveCpuset(name):
                del self.held[name]
                self.manual.add(name)
            case ForgetCpuset(name):
                self.held.pop(name, None)
                self.manual.discard(name)

    def _now(self, name: str) -> str | None:
        group = self.groups.get(CgroupId.of(name).path)
        return group.cpus if group is not None and group.id.setting == name else None

    def _held(self, name: str) -> HeldCpuset | None:
        if name not in self.held:
            return None
        now, (original, wrote) = self._now(name), self.held[name]
        return HeldCpuset(original, now, now == wrote)

    def _set(self, name: str, cpus: str) -> None:
        has = frozenset(range(int(cpus[-1]) + 1))
        self.becomes(CgroupId.of(name).path, cpus=cpus, effective=has)

    def becomes(self, path: str = "/app", **changes: object) -> None:
        self.groups[path] = replace(self.groups[path], **changes)  # type: ignore[arg-type]

    @property
    def cpus(self) -> str | None:
        return self.groups["/app"].cpus

    def said(self) -> str:
        return self.known.report(MINE) or ""


@pytest.fixture
def host() -> Host:
    return Host()


def put_back(commands: Iterable[Command]) -> list[str]:
    return [each.why for each in commands if isinstance(each, PutBackCpuset)]


def logged(commands: Iterable[Command]) -> list[str]:
    return [each.kind for each in commands if isinstance(each, Log)]


def test_an_application_is_narrowed_once(host: Host) -> None:
    [write] = host.look()
    assert isinstance(write, WriteCpuset)
    assert (write.action.nic, write.action.setting, write.action.value) == ("nic", NAME, REST)
    assert write.action.rule_name == RULE.name
    assert host.look() == []
    assert "cpuset.cpus is 0-2" in host.said()
    [finding] = host.known.findings()
    assert (finding.level, host.known.planned("nic")) == (Level.OK, ())


def test_without_such_a_rule_nothing_is_read() -> None:
    host = Host(RULE)
    host.engine.handle(SocketReported("nic", by_app(2), KEEP), 0)
    assert host.engine.handle(ExclusionDue(frozenset()), 0) == [ReadCpusets()]
    assert host.look() == []
    assert (host.said(), host.known.findings()) == ("", [])
    host.follows(KEEP)
    for each in list(host.engine.memory.table):
        host.engine.memory.table.remove(each.key)
    assert host.look() == []  # what was seen before that rule fell under another one


def by_app(number: int) -> SocketSeen:
    return seen(number, 0)._replace(thread=APP)


def test_a_reported_socket_without_an_entry_counts(host: Host) -> None:
    host.engine.memory.table.remove(MINE.key)
    host.engine.exclusion.seen(None, KEEP, "nic")
    host.engine.exclusion.seen(APP, None, "nic")
    host.engine.exclusion.seen(APP, RULE, "nic")
    assert host.look() == []
    host.engine.handle(SocketReported("nic", by_app(2), KEEP), 0)
    assert [type(each) for each in host.look()] == [WriteCpuset]


def test_where_no_nic_is_armed_it_is_planned(host: Host) -> None:
    host.changes(armed=False)
    assert host.look() == []
    [action] = host.known.planned("nic")
    assert (action.setting, action.value) == (NAME, REST)
    assert host.known.planned("other") == ()
    assert "nic is not armed: cpuset.cpus of /app would be 0-2 (atfnctl arm nic)." in host.said()


def test_what_must_not_be_narrowed_any_more_gets_back_what_it_had(host: Host) -> None:
    host.look()
    host.becomes(members=(Member(10, 1, "app"), Member(11, 1, "bash")))
    [back, log] = host.look()
    assert isinstance(back, PutBackCpuset)
    assert "is shared: process 11 (bash)" in back.why
    assert (host.cpus, logged([log])) == (WHOLE, ["not-kept-off"])
    assert host.look() == []  # it is logged once
    host.becomes(members=(Member(10, 1, "app"),))
    assert [type(each) for each in host.look()] == [WriteCpuset]


def test_it_is_not_put_back_while_no_nic_is_armed(host: Host) -> None:
    host.look()
    host.changes(armed=False)
    host.becomes(members=(Member(10, 1, "app"), Member(11, 1, "bash")))
    assert host.look() == []
    host.follows(RULE)
    assert host.look() == []
    host.engine.handle(NicLost("nic"), 0)  # the last one: nothing can be armed any more
    assert put_back(host.look()) == ["no rule excludes a CPU for a process in it"]


def test_a_process_that_the_rule_names_is_no_stranger(host: Host) -> None:
    host.becomes(members=(Member(10, 1, "app"), Member(11, 1, "helper")))
    host.follows(replace(KEEP, processes=("helper",)))
    assert [type(each) for each in host.look()] == [WriteCpuset]


@pytest.mark.parametrize("commands", [None, ("*",)])
def test_command_lines_are_read_only_for_a_rule_that_asks(commands: tuple[str] | None) -> None:
    host = Host(replace(KEEP, commands=commands))
    asked = list(host.engine.handle(ExclusionDue(frozenset()), 0))
    assert asked == [ReadProcesses(frozenset({10})), ReadCpusets()]
    read = host.engine.handle(ProcessesRead(host.processes, frozenset(), True), 0)
    assert read == [ReadCgroup("/app", True, commands is not None)]


@pytest.mark.parametrize(
    ("now", "cpusets", "why"),
    [
        ((1, "/app"), False, "cpusets are not in cgroup version 2"),
        ((1, None), True, "the cgroup of its process is not known"),
        ((1, "/../x"), True, "is outside the cgroup namespace"),
        ((1, "/gone"), True, "its cgroup /gone is gone"),
    ],
)
def test_a_cgroup_that_cannot_be_looked_at(
    host: Host, now: tuple[int, str | None], cpusets: bool, why: str
) -> None:
    host.processes[10], host.cpusets = now, cpusets
    [log] = host.look()
    assert isinstance(log, Log)
    assert (log.kind, log.fields) == ("not-kept-off", {"policy": RULE.name})
    assert why in log.what
    assert why in host.said()
    [finding] = host.known.findings()
    assert finding.level is Level.WARNING
    assert host.look() == []


def test_the_last_process_leaves_or_ends(host: Host) -> None:
    for change in ({10: (1, "/")}, {10: (2, "/app")}, {}):
        host = Host()
        host.look()
        host.engine.memory.table.remove(MINE.key)
        assert host.look() == []  # it is idle
        host.processes = dict(change)
        assert put_back(host.look()) == ["no rule excludes a CPU for a process in it"], change
        assert host.cpus == WHOLE


def test_a_nic_that_is_gone_needs_nothing(host: Host) -> None:
    host.engine.handle(NicAttached(replace(NIC, name="other"), armed=True), 0)
    host.look()
    host.engine.handle(NicLost("nic"), 0)
    assert put_back(host.look()) == ["no rule excludes a CPU for a process in it"]


def test_another_policy_may_put_its_flows_under_other_rules(host: Host) -> None:
    host.look()
    host.engine.memory.table.remove(MINE.key)
    host.follows(KEEP)
    assert put_back(host.look()) == ["no rule excludes a CPU for a process in it"]


def test_a_restart_takes_over_what_it_finds_until_it_knows_better(host: Host) -> None:
    host.look()
    host.fresh()
    host.engine.memory.table.remove(MINE.key)
    assert host.look() == host.look() == []
    host.engine.memory.table.put(MINE)
    assert host.look() == []
    host.engine.memory.table.remove(MINE.key)
    host.processes = {}
    assert put_back(host.look()) == ["no rule excludes a CPU for a process in it"]
    host.processes = {10: (1, "/app")}
    host.engine.memory.table.put(MINE)
    host.look()
    host.fresh(RULE)
    assert put_back(host.look()) == ["no rule excludes a CPU for a process in it"]


def test_what_another_program_wrote_stays_and_is_logged_once(host: Host) -> None:
    host.look()
    host.becomes(cpus="1,3", effective=frozenset({1, 3}))
    leave, manual, kept = host.look()
    assert leave == LeaveCpuset(NAME)
    assert logged([manual, kept]) == ["manual", "not-kept-off"]
    assert host.look() == []
    assert "another program set its cpuset.cpus to 1,3" in host.said()
    assert "atfnctl resume" in host.said()
    host.manual.clear()  # resumed
    assert [type(each) for each in host.look()] == [WriteCpuset]


def test_so_does_what_it_wrote_after_the_application_left(host: Host) -> None:
    host.look()
    host.becomes(cpus="1")
    host.processes = {}
    leave, manual = host.look()
    assert (leave, logged([manual])) == (LeaveCpuset(NAME), ["manual"])
    assert (host.look(), host.cpus) == ([], "1")


def test_cgroups_that_are_gone_are_forgotten(host: Host) -> None:
    host.look()
    host.processes = {}
    del host.groups["/app"]
    assert host.look() == [ForgetCpuset(NAME)]
    host.manual = {NAME}
    host.follows(RULE)
    assert host.look() == [ForgetCpuset(NAME)]


def test_what_the_kernel_refuses_is_tried_again_when_an_operator_says_so(host: Host) -> None:
    host.refuses = errno.EBUSY
    assert [type(each) for each in host.look()] == [WriteCpuset, Log]
    assert host.look() == []
    assert "the kernel refused cpuset.cpus 0-2 of /app (atfnctl events says why)." in host.said()
    host.tell(ExclusionTriedAgain())
    assert [type(each) for each in host.look()] == [WriteCpuset]
    host.follows(replace(KEEP, placement=replace(ASKED, cpus=frozenset({2, 3}))))
    assert [type(each) for each in host.look()] == [WriteCpuset, Log]  # another value
    host.refuses = 0
    host.tell(ExclusionTriedAgain())
    assert [type(each) for each in host.look()] == [WriteCpuset]
    assert host.look() == []


def test_a_refusal_ends_with_its_cgroup(host: Host) -> None:
    host.refuses = errno.EBUSY
    host.look()
    host.processes = {}
    host.look()
    host.processes = {10: (1, "/app")}
    assert WriteCpuset in [type(each) for each in host.look()]


def test_a_write_that_succeeds_ends_a_refusal(host: Host) -> None:
    host.refuses = errno.EBUSY
    host.look()
    host.follows(replace(KEEP, placement=replace(ASKED, cpus=frozenset({2, 3}))))
    host.refuses = 0
    host.look()
    host.follows(KEEP)
    assert [type(each) for each in host.look()] == [WriteCpuset]


def test_a_full_journal_is_no_refusal(host: Host) -> None:
    host.full = "No space left on device"
    assert [type(each) for each in host.look()] == [WriteCpuset, Log]
    assert [type(each) for each in host.look()] == [WriteCpuset]
    assert "the journal cannot be written (No space left on device) (make room; " in host.said()
    host.full = ""
    host.look()
    assert host.cpus == REST


def test_what_the_kernel_does_not_take_back_is_not_asked_again(host: Host) -> None:
    host.look()
    host.refuses = errno.EBUSY
    host.processes = {}
    assert put_back(host.look()) != []
    assert put_back(host.look()) == []
    host.tell(ExclusionTriedAgain())
    assert put_back(host.look()) != []
    host.refuses = 0
    host.changes(armed=False)
    assert put_back(host.tell(ExclusionEnded(frozenset(host.held)))) == ["asked for"]


def test_the_end_of_arming_puts_back_what_no_armed_nic_needs(host: Host) -> None:
    host.engine.handle(NicAttached(replace(NIC, name="other"), armed=True), 0)
    host.look()
    assert host.tell(ExclusionEnded(frozenset(host.held))) == []  # it is armed still
    host.changes(armed=False)
    assert put_back(host.tell(ExclusionEnded(frozenset(host.held)))) == ["asked for"]


def test_what_is_not_known_yet_stays_until_nothing_is_armed(host: Host) -> None:
    host.look()
    host.fresh()
    held = frozenset(host.held)
    assert host.tell(ExclusionEnded(held)) == []
    host.changes(armed=False)
    assert put_back(host.tell(ExclusionEnded(held))) == ["asked for"]


def test_an_armed_nic_writes_for_a_cgroup_that_uses_two(host: Host) -> None:
    host.engine.handle(NicAttached(replace(NIC, name="another"), armed=False), 0)
    host.engine.memory.table.put(flow(2, nic="another", rule_name=RULE.name, thread=APP))
    [write] = host.look()
    assert isinstance(write, WriteCpuset)
    assert write.action.nic == "nic"
    host.changes(armed=False)
    assert put_back(host.tell(ExclusionEnded(frozenset(host.held)))) == ["asked for"]


def test_it_hurries_after_a_change_and_comes_to_rest(host: Host) -> None:
    assert not host.known.pressing()
    host.look()
    looks = 0
    while host.known.pressing():
        host.look()
        looks += 1
    assert 3 < looks < 8
    host.tell(ExclusionTriedAgain())
    assert host.known.pressing()
    while host.known.pressing():
        host.look()
    host.becomes(cpus="1")  # another program
    host.look()
    while host.known.pressing():
        looks += 1
        host.look()
    assert looks > 8
    host.processes.clear()
    host.look()
    assert host.known.pressing()
    host.tell(ExclusionTriedAgain())
    assert host.known.pressing()
    host.follows(RULE)
    host.held.clear()
    host.look()
    assert not host.known.pressing()


def test_what_is_full_makes_no_hurry(host: Host) -> None:
    host.full = "No space left on device"
    for _ in range(9):
        host.look()
    assert not host.known.pressing()
