# SPDX-License-Identifier: GPL-2.0-or-later
"""Applications of rules that say `cpu_exclusion`: the cpusets of their cgroups exclude the rules'
CPUs.

A look, at regular times, finds the processes that have a flow under such a rule, the cgroup of
each, and whether that cgroup may be narrowed (`engine.ownership.cpu_exclusion`). A cgroup stays
narrowed while a process of the rule lives in it. It gets back what it had when no such process is
left, when other processes share it, or when the rule is gone. A value that another program wrote
meanwhile stays, until a NIC is resumed.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from atfnd.daemon.executor import Executor, UndoPermit
from atfnd.engine.ownership.cpu_exclusion import (
    ExclusionReport,
    Ruling,
    judge,
    refusal,
    sentence,
    unseen,
)
from atfnd.model import (
    Action,
    Cgroup,
    CgroupId,
    Finding,
    Flow,
    FlowRule,
    Level,
    NicView,
    Plan,
    Policy,
    Thread,
    brief,
)
from atfnd.observe.processes import cgroup as observe
from atfnd.observe.processes.process import Processes
from atfnd.policy.match.match import names
from atfnd.program.cpuset import CGROUPS, Cpusets
from atfnd.program.journals.record_file import Unrecorded
from atfnd.program.journals.undo_journal import OwnedSetting, UndoJournal
from atfnd.program.setting import DONE
from atfnd.serve.log.event_log import EventLog

__all__ = ["CpuExclusion"]

_Id = tuple[int, int]  # a process: pid, when it was started

_EAGER = 5  # quick looks after one that found a change


class _Use(NamedTuple):
    """A process has or had a flow of this rule, through this NIC."""

    rule: str
    nic: str


_Uses = Mapping[int, set[_Use]]  # of the processes of a cgroup, by pid


class CpuExclusion:
    """Writes through the executor."""

    def __init__(self, executor: Executor, undo_journal: UndoJournal, log: EventLog) -> None:
        self._executor, self._undo_journal, self._log = executor, undo_journal, log
        self._cpusets, self._processes = Cpusets(), Processes(command=False)
        self._policy: Policy | None = None
        self._known: dict[_Id, set[_Use]] = {}
        self._seen: dict[int, set[_Use]] = defaultdict(set)  # by pid, since the last look
        self._reports: dict[str | None, ExclusionReport] = {}  # by path
        self._paths: dict[int, str | None] = {}  # by pid
        self._adopted = set(undo_journal.held(CGROUPS))  # whose processes this run has not seen yet
        self._refused: dict[str, str | None] = {}  # by setting: what the kernel did not take
        self._eager = 0

    def seen(self, thread: Thread | None, rule: FlowRule | None, nic: str) -> None:
        """A thread uses a socket that falls under a rule. It may have no entry in the table."""
        if thread is not None and rule is not None and rule.placement.cpu_exclusion:
            self._seen[thread.pid].add(_Use(rule.name, nic))

    def look(self, policy: Policy, flows: Iterable[Flow], nics: Mapping[str, NicView]) -> None:
        """Decide everything again: narrow what may be narrowed, put back what may no longer be."""
        rules = {rule.name: rule for rule in policy.flows if rule.placement.cpu_exclusion}
        held = self._undo_journal.held(CGROUPS)
        for name in self._undo_journal.manual(CGROUPS):
            if self._cpusets.setting(name) is None:
                self._undo_journal.forget(CGROUPS, name)  # it is gone
        before, self._reports, self._paths = self._reports, {}, {}
        if policy is not self._policy:  # flows may have come under other rules
            self._policy, self._known = policy, {}
            asked = any(rule.commands is not None for rule in rules.values())
            self._processes = Processes(command=asked)
        if not rules and not held:
            self._seen.clear()
            self._eager = 0
            return
        armed = set(filter(self._executor.armed, nics))
        judged: set[str] = set()
        if rules:
            self._gather(rules, flows)
            cpusets, ours = observe.has_cpusets(), {CgroupId.of(name).path for name in held}
            for path, known in self._by_cgroup(rules, nics).items():
                usable = cpusets and path is not None and not path.startswith("/..")
                pins = path not in ours
                group = observe.cgroup(path, pins=pins) if path and usable else None
                uses = set().union(*known.values())
                used_by = [rules[name] for name in sorted({use.rule for use in uses})]
                through = {use.nic for use in uses}
                by = min(through & armed, default=None)
                if group is not None:
                    judged.add(group.id.setting)
                    said = self._judge(group, known, used_by, by)
                else:
                    said = refusal(unseen(path, cpusets=cpusets), used_by)
                self._reports[path], said.nics = said, through
                self._say(said, before.get(path), used_by, armed=by is not None)
        for name in (each for each in held if each not in judged):
            self._leave(name, bool(rules), bool(armed) or not nics)
        for name in self._refused.keys() - judged - held.keys():
            del self._refused[name]
        texts = {path: report.text for path, report in self._reports.items()}
        news = texts != {path: report.text for path, report in before.items()}
        self._eager = _EAGER if news else max(0, self._eager - 1)

    def pressing(self) -> bool:
        """Something has just changed, and more may follow."""
        return self._eager > 0

    def arm(self) -> None:
        """A NIC was armed by an operator: what the kernel refused is tried again."""
        self._refused, self._eager = {}, _EAGER

    def take_back(self) -> None:
        """A NIC was resumed: look again at cgroups that another program had changed."""
        self._undo_journal.take_back(CGROUPS)
        self.arm()

    def pause(self, nics: Mapping[str, NicView]) -> list[str]:
        """Put back what no armed NIC needs, also what the kernel refused before. Returns what it
        refused."""
        self._refused = {name: cpus for name, cpus in self._refused.items() if cpus is not None}
        armed = set(filter(self._executor.armed, nics))
        kept = {path for path, report in self._reports.items() if report.nics & armed}
        refused = []
        for name in self._undo_journal.held(CGROUPS):
            path = CgroupId.of(name).path
            if path not in kept and (path in self._reports or not armed):
                refused += self._put_back(name, "asked for")
        return refused

    def planned(self, nic: str) -> Plan:
        """What would be done for the flows of a NIC, as the last look found it."""
        here = (report.action for report in self._reports.values() if nic in report.nics)
        return tuple(action for action in here if action is not None)

    def report(self, flow: Flow) -> str | None:
        """A sentence on the application of a flow; None: no rule excludes a CPU for it."""
        pid = None if flow.thread is None else flow.thread.pid
        report = self._reports.get(self._paths[pid]) if pid in self._paths else None
        if report is None:
            return None
        return f"{report.text}{f' ({report.advice})' if report.advice else ''}."

    def findings(self) -> list[Finding]:
        """Findings about the machine, for `doctor`."""
        return [
            Finding(None, Level.OK if report.off else Level.WARNING, report.text, report.advice)
            for report in self._reports.values()
        ]

    def _gather(self, rules: Mapping[str, FlowRule], flows: Iterable[Flow]) -> None:
        """Processes with flows of these rules."""
        for flow in flows:
            if flow.thread is not None and flow.rule_name in rules:
                self._seen[flow.thread.pid].add(_Use(flow.rule_name, flow.nic))
        for pid, uses in self._seen.items():
            if (born := observe.born(pid)) is not None:
                self._known.setdefault((pid, born), set()).update(uses)
        self._seen.clear()

    def _by_cgroup(
        self, rules: Mapping[str, FlowRule], nics: Mapping[str, NicView]
    ) -> dict[str | None, dict[int, set[_Use]]]:
        """Processes of these rules that are alive, by pid; none through a NIC that is gone."""
        groups: dict[str | None, dict[int, set[_Use]]] = defaultdict(dict)
        for (pid, born), uses in list(self._known.items()):
            of_rules = {use for use in uses if use.rule in rules and use.nic in nics}
            if not of_rules or observe.born(pid) != born:
                del self._known[pid, born]
                continue
            self._paths[pid] = path = observe.cgroup_of(pid)
            groups[path][pid] = of_rules
        return groups

    def _judge(
        self,
        group: Cgroup,
        known: _Uses,
        rules: list[FlowRule],
        by: str | None,
    ) -> ExclusionReport:
        """`by`: an armed NIC that it uses."""
        name = group.id.setting
        self._adopted.discard(name)
        held = self._still_ours(name, group.cpus, self._undo_journal.held(CGROUPS).get(name))
        original = None if held is None else held.original
        ruling = judge(
            group,
            frozenset().union(*(rule.placement.cpus for rule in rules)),
            known.keys() | self._named(group, rules),
            observe.possible(),
            original,
            observe.asked_for(group.cpus if original is None else original),
        )
        if name in self._undo_journal.manual(CGROUPS):
            manual = f"another program set its cpuset.cpus to {brief(group.cpus or '')}"
            return refusal(
                Ruling(None, manual, "to exclude these CPUs again: atfnctl resume"), rules
            )
        if ruling.cpus is None:
            if held is not None and by is not None:
                self._put_back(name, ruling.why)
            return refusal(ruling, rules)
        if ruling.cpus == group.cpus:
            return ExclusionReport(
                f"{sentence(ruling, rules)}: cpuset.cpus is {group.cpus}", None, True
            )
        return self._narrow(group, ruling, rules, known, by)

    def _narrow(
        self,
        group: Cgroup,
        ruling: Ruling,
        rules: list[FlowRule],
        known: _Uses,
        by: str | None,
    ) -> ExclusionReport:
        name, nic = group.id.setting, by or min(set().union(*known.values())).nic
        why = f"{rules[0].placement}: {ruling.why}"
        action = Action.of_setting(nic, name, ruling.cpus, why, rules[0].name)
        if by is None:
            would = f"{nic} is not armed: cpuset.cpus of {group.id.path} would be {ruling.cpus}"
            return refusal(Ruling(None, would, f"atfnctl arm {nic}"), rules, action)
        if name not in self._refused or self._refused[name] != ruling.cpus:
            try:
                outcome = self._executor.write_cpuset(action)
            except Unrecorded as full:
                unrecorded = f"the journal cannot be written ({full.strerror})"
                return refusal(Ruling(None, unrecorded, "make room; it is tried again"), rules)
            if not outcome.errno:
                self._refused.pop(name, None)
                text = f"{sentence(ruling, rules)}: cpuset.cpus is {ruling.cpus}"
                return ExclusionReport(text, None, True)
            self._refused[name] = ruling.cpus
        refused = f"the kernel refused cpuset.cpus {ruling.cpus} of {group.id.path}"
        return refusal(Ruling(None, refused, "atfnctl events says why"), rules)

    def _still_ours(
        self, name: str, cpus: str | None, held: OwnedSetting | None
    ) -> OwnedSetting | None:
        """A value that another program wrote over ours belongs to that program."""
        if held is None or held.ours(now := cpus or ""):
            return held
        self._undo_journal.leave_alone(CGROUPS, name)
        why = "another program changed it: left alone until `atfnctl resume`"
        self._log.add("manual", f"{name} is {brief(now)}", why)
        return None

    def _named(self, group: Cgroup, rules: list[FlowRule]) -> set[int]:
        """Processes that match a rule by its conditions on processes."""
        tests, now_ns = [names(rule) for rule in rules], time.monotonic_ns()
        return {
            m.pid
            for m in group.members
            if any(test(m.comm, self._processes.of(m.pid, now_ns)) for test in tests)
        }

    def _leave(self, name: str, rules: bool, writable: bool) -> None:
        """A cgroup of ours in which no process of a rule is known to live."""
        now, held = self._cpusets.setting(name), self._undo_journal.held(CGROUPS).get(name)
        if now is None:
            self._undo_journal.forget(CGROUPS, name)  # it is gone
        elif self._still_ours(name, now, held) is None:
            self._adopted.discard(name)
        elif writable and not (rules and name in self._adopted):
            self._put_back(name, "no rule excludes a CPU for a process in it")

    def _put_back(self, name: str, why: str) -> list[str]:
        """Returns the setting if the kernel refused; the kernel is not asked again until a NIC is
        armed."""
        if name in self._refused and self._refused[name] is None:
            return [name]
        refused = []
        for each in self._executor.put_back_cpuset(name, UndoPermit(CGROUPS, why)):
            if each.errno not in DONE:
                self._refused[name] = None
                refused.append(f"{name} ({os.strerror(each.errno)})")
        self._adopted.discard(name)
        return refused

    def _say(
        self,
        report: ExclusionReport,
        before: ExclusionReport | None,
        rules: list[FlowRule],
        *,
        armed: bool,
    ) -> None:
        """Log once why an application is not kept off."""
        if armed and not report.off and (before is None or before.text != report.text):
            self._log.add("not-kept-off", report.text, report.advice or "", policy=rules[0].name)
