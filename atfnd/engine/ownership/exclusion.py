# SPDX-License-Identifier: GPL-2.0-or-later
"""Applications of rules that say `cpu_exclusion`: the cpusets of their cgroups exclude the rules'
CPUs. Pure.

A look, at regular times, finds the processes that have a flow under such a rule, the cgroup of
each, and whether that cgroup may be narrowed (`cpu_exclusion.judge`). A cgroup stays narrowed while
a process of the rule lives in it. It gets back what it had when no such process is left, when other
processes share it, or when the rule is gone. A value that another program wrote meanwhile stays,
until a NIC is resumed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

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
from atfnd.engine.event import CgroupRead, ProcessesRead
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
    HeldCpuset,
    Level,
    NicView,
    Plan,
    Process,
    Thread,
    brief,
)
from atfnd.policy.match.match import names

__all__ = ["Exclusion"]

_EAGER = 5  # quick looks after one that found a change


class _Use(NamedTuple):
    """A process has or had a flow of this rule, through this NIC."""

    rule: str
    nic: str


Nics = Mapping[str, NicView]


class Exclusion:
    """What is known of these applications. Each step of a look gives what it asks for next."""

    def __init__(self) -> None:
        self._by_name: Mapping[str, FlowRule] = {}  # of the policy in force
        self._rules: Mapping[str, FlowRule] = {}  # those of them that exclude CPUs
        self._known: dict[tuple[int, int], set[_Use]] = {}  # by pid and when it was started
        self._seen: dict[int, set[_Use]] = defaultdict(set)  # by pid, since the last look
        self._paths: dict[int, str | None] = {}  # by pid
        self._groups: dict[str | None, dict[int, set[_Use]]] = {}  # by path, then by pid
        self._judged: set[str] = set()  # settings, in this look
        self._reports: dict[str | None, ExclusionReport] = {}  # by path
        self._before: dict[str | None, ExclusionReport] = {}  # at the look before
        self._adopted: set[str] | None = None  # whose processes this run has not seen yet
        self._refused: dict[str, str | None] = {}  # by setting: what the kernel did not take
        self._eager = 0

    # ---- a look

    def seen(self, thread: Thread | None, rule: FlowRule | None, nic: str) -> None:
        """A thread uses a socket that falls under a rule. It may have no entry in the table."""
        if thread is not None and rule is not None and rule.placement.cpu_exclusion:
            self._seen[thread.pid].add(_Use(rule.name, nic))

    def due(
        self, held: Collection[str], by_name: Mapping[str, FlowRule], flows: Iterable[Flow]
    ) -> Iterable[Command]:
        """Decide everything again: narrow what may be narrowed, put back what may no longer be.
        `held`: settings that are ours."""
        self._adopt(held)
        self._before, self._reports, self._paths = self._reports, {}, {}
        self._groups, self._judged = {}, set()
        if by_name is not self._by_name:  # flows may have come under other rules
            self._by_name, self._known = by_name, {}
            self._rules = {n: rule for n, rule in by_name.items() if rule.placement.cpu_exclusion}
        if self._rules:
            for flow in flows:
                if flow.thread is not None and flow.rule_name in self._rules:
                    self._seen[flow.thread.pid].add(_Use(flow.rule_name, flow.nic))
            yield ReadProcesses(frozenset({*self._seen, *(pid for pid, _ in self._known)}))
        else:
            self._seen.clear()
        yield ReadCpusets()

    def _adopt(self, held: Collection[str]) -> None:
        if self._adopted is None:
            self._adopted = {*held}

    def processes(self, read: ProcessesRead, nics: Nics) -> Iterable[Command]:
        """Whose cgroups to look at: none of processes that have ended, or whose NIC is gone."""
        found, cpusets = read.found, read.cpusets
        for pid in self._seen.keys() & found.keys():
            self._known.setdefault((pid, found[pid][0]), set()).update(self._seen[pid])
        self._seen.clear()
        for (pid, born), uses in list(self._known.items()):
            of_rules = {use for use in uses if use.rule in self._rules and use.nic in nics}
            now, path = found.get(pid, (None, None))
            if not of_rules or now != born:
                del self._known[pid, born]
                continue
            self._paths[pid] = path
            self._groups.setdefault(path, {})[pid] = of_rules
        ours = {CgroupId.of(name).path for name in read.held}
        commands = any(rule.commands is not None for rule in self._rules.values())
        for path in self._groups:
            if cpusets and path is not None and not path.startswith("/.."):
                yield ReadCgroup(path, path not in ours, commands)
            else:
                self._report(path, refusal(unseen(path, cpusets=cpusets), self._used_by(path)))

    def cgroup(self, read: CgroupRead, nics: Nics) -> Iterable[Command]:
        """Whether to narrow a cgroup in which processes of rules live."""
        path, group, held = read.path, read.group, read.held
        rules = self._used_by(path)
        if group is None:
            self._report(path, refusal(unseen(path, cpusets=True), rules))
            return
        name, through = group.id.setting, self._through(path)
        by = min((nic for nic in through if nics[nic].armed), default=None)
        self._judged.add(name)
        self._ours_again(name)
        if held is not None and not held.ours:
            yield from self._leave_alone(name, group.cpus)
        if read.manual or (held is not None and not held.ours):
            why = f"another program set its cpuset.cpus to {brief(group.cpus or '')}"
            advice = "to exclude these CPUs again: atfnctl resume"
            self._report(path, refusal(Ruling(None, why, advice), rules))
            return
        excluded = frozenset[int]().union(*(rule.placement.cpus for rule in rules))
        known = self._groups[path].keys() | _named(group, rules, read.processes)
        original = None if held is None else held.original
        ruling = judge(group, excluded, known, read.possible, original, read.asked)
        if ruling.cpus is None:
            if held is not None and by is not None:
                yield from self._put_back(name, ruling.why)
            self._report(path, refusal(ruling, rules))
            return
        why = f"{rules[0].placement}: {ruling.why}"
        action = Action.of_setting(by or min(through), name, ruling.cpus, why, rules[0].name)
        text = f"{sentence(ruling, rules)}: cpuset.cpus is {ruling.cpus}"
        self._report(path, ExclusionReport(text, None, True))
        if ruling.cpus == group.cpus:
            return
        if by is None:
            would = f"{action.nic} is not armed: cpuset.cpus of {path} would be {ruling.cpus}"
            advice = f"atfnctl arm {action.nic}"
            self._report(path, refusal(Ruling(None, would, advice), rules, action))
        elif self._refused.get(name) == ruling.cpus:
            self._report(path, _refused(path, ruling.cpus, rules))
        else:
            yield WriteCpuset(action)

    def written(self, action: Action, errno: int, unrecorded: str | None) -> None:
        """A cpuset was written; or it was refused, or could not be journaled."""
        name, cpus = action.setting or "", action.value or ""
        path = CgroupId.of(name).path
        if unrecorded is not None:
            why = f"the journal cannot be written ({unrecorded})"
            full = Ruling(None, why, "make room; it is tried again")
            self._report(path, refusal(full, self._used_by(path)))
        elif errno:
            self._refused[name] = cpus
            self._report(path, _refused(path, cpus, self._used_by(path)))
        else:
            self._refused.pop(name, None)

    def cpusets(
        self, ours: Mapping[str, HeldCpuset], theirs: Mapping[str, str | None], nics: Nics
    ) -> Iterable[Command]:
        """The end of a look: what there is now of the cpusets that we changed, and of those that
        another program changed after us."""
        for name, now in theirs.items():
            if now is None:
                yield ForgetCpuset(name)  # it is gone
        armed = {name for name, nic in nics.items() if nic.armed}
        if not self._rules and not ours:
            self._eager = 0
            return
        for name in (each for each in ours if each not in self._judged):
            yield from self._leave(name, ours[name], writable=bool(armed) or not nics)
        for name in self._refused.keys() - self._judged - ours.keys():
            del self._refused[name]
        news = self._before.keys() != self._reports.keys()
        for path, report in self._reports.items():
            before = self._before.get(path)
            if before is None or before.text != report.text:
                news = True
                if report.nics & armed and not report.off:
                    by = self._used_by(path)[0].name
                    yield Log("not-kept-off", report.text, report.advice or "", {"policy": by})
        self._eager = _EAGER if news else max(0, self._eager - 1)

    def _leave(self, name: str, held: HeldCpuset, *, writable: bool) -> Iterable[Command]:
        """A cgroup of ours in which no process of a rule is known to live."""
        if held.now is None:
            yield ForgetCpuset(name)  # it is gone
        elif not held.ours:
            self._ours_again(name)
            yield from self._leave_alone(name, held.now)
        elif writable and not (self._rules and name in (self._adopted or ())):
            yield from self._put_back(name, "no rule excludes a CPU for a process in it")

    def _leave_alone(self, name: str, now: str | None) -> Iterable[Command]:
        """A value that another program wrote over ours belongs to that program."""
        yield LeaveCpuset(name)
        why = "another program changed it: left alone until `atfnctl resume`"
        yield Log("manual", f"{name} is {brief(now or '')}", why)

    def _ours_again(self, name: str) -> None:
        """This run knows what lives in it."""
        if self._adopted is not None:
            self._adopted.discard(name)

    def _put_back(self, name: str, why: str) -> Iterable[Command]:
        """If the kernel refused that, it is not asked again until a NIC is armed."""
        if name not in self._refused or self._refused[name] is not None:
            self._ours_again(name)
            yield PutBackCpuset(name, why)

    def kept(self, name: str) -> None:
        """The kernel refused it."""
        self._refused[name] = None

    # ---- what an operator asks for

    def try_again(self) -> None:
        """What the kernel refused is tried again."""
        self._refused, self._eager = {}, _EAGER

    def ended(self, held: Collection[str], nics: Nics) -> Iterable[Command]:
        """Put back what no armed NIC needs, also what the kernel refused before."""
        self._adopt(held)
        self._refused = {name: cpus for name, cpus in self._refused.items() if cpus is not None}
        armed = {name for name, nic in nics.items() if nic.armed}
        kept = {path for path, report in self._reports.items() if report.nics & armed}
        for name in held:
            path = CgroupId.of(name).path
            if path not in kept and (path in self._reports or not armed):
                yield from self._put_back(name, "asked for")

    # ---- what is known

    def pressing(self) -> bool:
        """Something has just changed, and more may follow."""
        return self._eager > 0

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

    def _report(self, path: str | None, report: ExclusionReport) -> None:
        self._reports[path], report.nics = report, self._through(path)

    def _through(self, path: str | None) -> set[str]:
        """The NICs by which a cgroup has flows."""
        return {use.nic for uses in self._groups[path].values() for use in uses}

    def _used_by(self, path: str | None) -> list[FlowRule]:
        """The rules of a cgroup's flows."""
        used = {use.rule for uses in self._groups[path].values() for use in uses}
        return [self._rules[name] for name in sorted(used)]


def _named(group: Cgroup, rules: Iterable[FlowRule], processes: Mapping[int, Process]) -> set[int]:
    """Processes that match a rule by its conditions on processes."""
    tests = [names(rule) for rule in rules]
    members = (m for m in group.members if m.pid in processes)
    return {m.pid for m in members if any(test(m.comm, processes[m.pid]) for test in tests)}


def _refused(path: str, cpus: str, rules: list[FlowRule]) -> ExclusionReport:
    why = f"the kernel refused cpuset.cpus {cpus} of {path}"
    return refusal(Ruling(None, why, "atfnctl events says why"), rules)
