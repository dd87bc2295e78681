# SPDX-License-Identifier: GPL-2.0-or-later
"""Applications of rules that say `keep_off`: their cgroups are kept off the rules' CPUs.

Looked at regularly: who belongs to a rule by a flow, in which cgroup it is, and whether that may
be narrowed (`decide.keep_off`). A cgroup stays narrowed while a process of the rule lives in it. It
gets back what it had when there is none, when it is shared, or when the rule is gone; and what
somebody else wrote meanwhile is his, until a NIC is resumed.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from atfnd.decide.keep_off import Ruling, Told, judge, refusal, sentence, unseen
from atfnd.model import (
    Action,
    ActionKind,
    Cgroup,
    CgroupId,
    Finding,
    Flow,
    FlowRule,
    Level,
    NicView,
    Outcome,
    Plan,
    Policy,
    Thread,
    brief,
)
from atfnd.observe import cgroup as observe
from atfnd.observe.process import Processes
from atfnd.policy.match import names
from atfnd.program import knob
from atfnd.program.cpuset import CGROUPS, Cpusets
from atfnd.program.originals import Held, Originals
from atfnd.serve.eventlog import EventLog

__all__ = ["KeepingOff"]

_Id = tuple[int, int]  # a process: pid, when it was started

_EAGER = 5  # looks in a hurry after one that found something changed


class _Use(NamedTuple):
    """A process has or had a flow of this rule, through this NIC."""

    rule: str
    nic: str


_Uses = Mapping[int, set[_Use]]  # of the processes of a cgroup, by pid


class KeepingOff:
    """`record` counts and logs an outcome. OSError: the journal cannot be written."""

    def __init__(
        self, originals: Originals, record: Callable[[Outcome], None], log: EventLog
    ) -> None:
        self._originals, self._record, self._log = originals, record, log
        self._cpusets, self._processes = Cpusets(), Processes(command=False)
        self._policy: Policy | None = None
        self._known: dict[_Id, set[_Use]] = {}
        self._seen: dict[int, set[_Use]] = defaultdict(set)  # by pid, since the last look
        self._told: dict[str | None, Told] = {}  # by path
        self._paths: dict[int, str | None] = {}  # by pid
        self._adopted = set(originals.held(CGROUPS))  # whose processes this run has not seen yet
        self._refused: dict[str, str | None] = {}  # by knob: what the kernel did not take
        self._eager = 0

    def seen(self, thread: Thread | None, rule: FlowRule | None, nic: str) -> None:
        """A thread uses a socket that falls under a rule. It may have no entry in the table."""
        if thread is not None and rule is not None and rule.placement.keep_off:
            self._seen[thread.pid].add(_Use(rule.name, nic))

    def look(self, policy: Policy, flows: Iterable[Flow], nics: Mapping[str, NicView]) -> None:
        """Everything anew: narrow what may be, put back what may not any more."""
        rules = {rule.name: rule for rule in policy.flows if rule.placement.keep_off}
        held = self._originals.held(CGROUPS)
        before, self._told, self._paths = self._told, {}, {}
        if policy is not self._policy:  # flows may be of other rules by now
            self._policy, self._known = policy, {}
            asked = any(rule.commands is not None for rule in rules.values())
            self._processes = Processes(command=asked)
        if not rules and not held:
            self._seen.clear()
            self._eager = 0
            return
        armed = {name for name, nic in nics.items() if nic.armed}
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
                writable = bool(through & armed)
                if group is not None:
                    judged.add(group.id.knob)
                    said = self._judge(group, known, used_by, writable)
                else:
                    said = refusal(unseen(path, cpusets=cpusets), used_by)
                self._told[path], said.nics = said, through
                self._say(said, before.get(path), used_by, writable)
        for name in held.keys() - judged:
            self._leave(name, bool(rules), bool(armed) or not nics)
        for name in self._refused.keys() - judged - held.keys():
            del self._refused[name]
        texts = {path: told.text for path, told in self._told.items()}
        news = texts != {path: told.text for path, told in before.items()}
        self._eager = _EAGER if news else max(0, self._eager - 1)

    def pressing(self) -> bool:
        """Something was otherwise a moment ago, and more may follow."""
        return self._eager > 0

    def arm(self) -> None:
        """A NIC was armed by an operator: what the kernel refused is tried again."""
        self._refused, self._eager = {}, _EAGER

    def take_back(self) -> None:
        """A NIC was resumed: what was let go of is looked at again."""
        self._originals.take_back(CGROUPS)
        self.arm()

    def pause(self, nics: Mapping[str, NicView]) -> list[str]:
        """Put back what no NIC that is armed needs; what the kernel refused."""
        armed = {name for name, nic in nics.items() if nic.armed}
        kept = {path for path, told in self._told.items() if told.nics & armed}
        refused = []
        for name in self._originals.held(CGROUPS):
            path = CgroupId.of(name).path
            if path not in kept and (path in self._told or not armed):
                refused += self._put_back(name, "asked for")
        return refused

    def planned(self, nic: str) -> Plan:
        """What would be done for the flows of a NIC, as of the last look."""
        here = (told.action for told in self._told.values() if nic in told.nics)
        return tuple(action for action in here if action is not None)

    def told(self, flow: Flow) -> str | None:
        """A sentence on the application of a flow; None: no rule keeps it off anything."""
        pid = None if flow.thread is None else flow.thread.pid
        told = self._told.get(self._paths[pid]) if pid in self._paths else None
        if told is None:
            return None
        return f"{told.text}{f' ({told.advice})' if told.advice else ''}."

    def findings(self) -> list[Finding]:
        """Of the machine, for `doctor`."""
        return [
            Finding(None, Level.OK if told.off else Level.WARNING, told.text, told.advice)
            for told in self._told.values()
        ]

    def _gather(self, rules: Mapping[str, FlowRule], flows: Iterable[Flow]) -> None:
        """Processes with flows of these rules."""
        for flow in flows:
            if flow.thread is not None and flow.policy in rules:
                self._seen[flow.thread.pid].add(_Use(flow.policy, flow.nic))
        for pid, uses in self._seen.items():
            if (born := observe.born(pid)) is not None:
                self._known.setdefault((pid, born), set()).update(uses)
        self._seen.clear()

    def _by_cgroup(
        self, rules: Mapping[str, FlowRule], nics: Mapping[str, NicView]
    ) -> dict[str | None, dict[int, set[_Use]]]:
        """Processes of these rules that live, by pid; of a NIC that is gone none is."""
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
        writable: bool,
    ) -> Told:
        name = group.id.knob
        self._adopted.discard(name)
        held = self._still_ours(group, self._originals.held(CGROUPS).get(name))
        original = None if held is None else held.original
        ruling = judge(
            group,
            frozenset().union(*(rule.placement.cpus for rule in rules)),
            known.keys() | self._named(group, rules),
            observe.possible(),
            original,
            observe.asked_for(group.cpus if original is None else original),
        )
        if name in self._originals.manual(CGROUPS):
            manual = f"somebody else set its cpuset.cpus to {brief(group.cpus or '')}"
            return refusal(Ruling(None, manual, "to have it kept off again: atfnctl resume"), rules)
        if ruling.cpus is None:
            if held is not None and writable:
                self._put_back(name, ruling.why)
            return refusal(ruling, rules)
        if ruling.cpus == group.cpus:
            return Told(f"{sentence(ruling, rules)}: cpuset.cpus is {group.cpus}", None, True)
        return self._narrow(group, ruling, rules, known, writable)

    def _narrow(
        self,
        group: Cgroup,
        ruling: Ruling,
        rules: list[FlowRule],
        known: _Uses,
        writable: bool,
    ) -> Told:
        name, nic = group.id.knob, min(set().union(*known.values())).nic
        why = f"{rules[0].placement}: {ruling.why}"
        action = Action(
            ActionKind.KNOB, nic, None, None, None, None, why, rules[0].name,
            knob=name, value=ruling.cpus,
        )  # fmt: skip
        if not writable:
            would = f"{nic} is not armed: cpuset.cpus of {group.id.path} would be {ruling.cpus}"
            return refusal(Ruling(None, would, f"atfnctl arm {nic}"), rules, action)
        if name not in self._refused or self._refused[name] != ruling.cpus:
            outcome = knob.apply(self._cpusets, self._originals, action, verbatim=True)
            self._record(outcome)
            if not outcome.errno:
                self._refused.pop(name, None)
                text = f"{sentence(ruling, rules)}: cpuset.cpus is {ruling.cpus}"
                return Told(text, None, True)
            self._refused[name] = ruling.cpus
        refused = f"the kernel refused cpuset.cpus {ruling.cpus} of {group.id.path}"
        return refusal(Ruling(None, refused, "atfnctl events says why"), rules)

    def _still_ours(self, group: Cgroup, held: Held | None) -> Held | None:
        """What somebody else wrote over ours is his."""
        if held is None or held.ours(group.cpus or ""):
            return held
        name, now = group.id.knob, group.cpus or ""
        self._originals.let_go(CGROUPS, name)
        why = "somebody else moved it: left alone until `atfnctl resume`"
        self._log.add("manual", f"{name} is {brief(now)}", why)
        return None

    def _named(self, group: Cgroup, rules: list[FlowRule]) -> set[int]:
        """Processes that are a rule's by what it says of processes."""
        tests, now_ns = [names(rule) for rule in rules], time.monotonic_ns()
        return {
            m.pid
            for m in group.members
            if any(test(m.comm, self._processes.of(m.pid, now_ns)) for test in tests)
        }

    def _leave(self, name: str, rules: bool, writable: bool) -> None:
        """A cgroup of ours in which no process of a rule is known to live."""
        if self._cpusets.knob(name) is None:
            self._originals.forget(CGROUPS, name)  # it is gone
        elif writable and not (rules and name in self._adopted):
            self._put_back(name, "no process in it is of a rule that keeps it off any CPU")

    def _put_back(self, name: str, why: str) -> list[str]:
        """The knob, if the kernel refused; it is not asked again until a NIC is armed."""
        if name in self._refused and self._refused[name] is None:
            return [name]
        refused = []
        for each in knob.undo(self._cpusets, self._originals, {name}):
            kind = "undo" if each.errno == 0 else "refused"
            self._log.add(kind, f"{name} {each.left}", why)
            if each.errno not in knob.DONE:
                self._refused[name] = None
                refused.append(f"{name} ({os.strerror(each.errno)})")
        self._adopted.discard(name)
        return refused

    def _say(self, told: Told, before: Told | None, rules: list[FlowRule], armed: bool) -> None:
        """Once, why an application is not kept off."""
        if armed and not told.off and (before is None or before.text != told.text):
            self._log.add("not-kept-off", told.text, told.advice or "", policy=rules[0].name)
