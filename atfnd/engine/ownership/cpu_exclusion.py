# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether the cgroup of an application may be kept off dedicated CPUs, and by what cpuset. Pure.

The cgroup must be the application's alone, and must have a cpuset already: no controller is enabled
for it. The rule must know all its processes: by a flow, by name, or as children of a known process.
A list of CPUs that would leave it none of its present CPUs is not written, or is taken back.
Offline CPUs stay in the list, so that they come back to it; a dedicated one that is offline stays
out.

sched_setaffinity(2) is not used instead: it would overwrite what a thread asked for itself, would
have to be repeated for new threads, and for those nothing says what to put back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from atfnd.model import Action, Cgroup, FlowRule, cpu_list

__all__ = ["ExclusionReport", "Ruling", "family", "judge", "refusal", "sentence", "unseen"]

_UNITS = ".service", ".scope"


class Ruling(NamedTuple):
    """What cpuset.cpus should be. None: as it was before us."""

    cpus: str | None
    why: str
    advice: str | None = None
    off: bool = False  # it has none of those CPUs anyway


@dataclass(slots=True)
class ExclusionReport:
    """What there is to say about one cgroup."""

    text: str
    advice: str | None
    off: bool
    action: Action | None = None  # to be carried out if its NIC were armed
    nics: set[str] = field(default_factory=set)  # through which it has flows


def sentence(ruling: Ruling, rules: Sequence[FlowRule]) -> str:
    """Says that the application of these rules is kept off, or why it is not."""
    if ruling.off:
        return ruling.why
    cpus = cpu_list(frozenset().union(*(rule.placement.cpus for rule in rules)))
    whose = ", ".join(f"`{rule.name}`" for rule in rules)
    return f"the application of {whose} may still use CPUs {cpus}: {ruling.why}"


def refusal(
    ruling: Ruling, rules: Sequence[FlowRule], action: Action | None = None
) -> ExclusionReport:
    """Nothing is written; `action` says what would be."""
    return ExclusionReport(sentence(ruling, rules), ruling.advice, ruling.off, action)


def unseen(path: str | None, *, cpusets: bool) -> Ruling:
    """For an application whose cgroup could not be looked at."""
    if not cpusets:
        why = "cpusets are not in cgroup version 2 on this machine (or the kernel has none)"
        return Ruling(None, why, "boot with systemd.unified_cgroup_hierarchy=1, or use taskset")
    if path is None:
        return Ruling(None, "the cgroup of its process is not known: it has ended, or is hidden")
    if path.startswith("/.."):
        return Ruling(None, f"its cgroup {path} is outside the cgroup namespace of atfnd")
    return Ruling(None, f"its cgroup {path} is gone")


def family(group: Cgroup, known: Collection[int]) -> frozenset[int]:
    """Processes of the cgroup that are `known`, with all their descendants."""
    found = {member.pid for member in group.members if member.pid in known}
    grown = True
    while grown:
        more = {m.pid for m in group.members if m.parent in found and m.pid not in found}
        found |= more
        grown = bool(more)
    return frozenset(found)


def judge(
    group: Cgroup,
    asked: frozenset[int],
    known: Collection[int],
    possible: frozenset[int],
    original: str | None = None,
    base: frozenset[int] | None = None,
) -> Ruling:
    """Should a cgroup be kept off the CPUs `asked`? `known` are the pids that match the rule by
    themselves; `original` is its cpuset.cpus before us, None if we have not changed it, and `base`
    is that as a set (None: empty, which means all that are `possible`)."""
    path, free = group.id.path, (possible if base is None else base) - asked
    if (obstacle := _obstacle(group, free)) is not None:
        return obstacle
    strangers = [m for m in group.members if m.pid not in family(group, known)]
    if strangers:
        first, more = strangers[0], len(strangers) - 1
        others = f" and {more} more" if more else ""
        return Ruling(
            None,
            f"cgroup {path} is shared: process {first.pid} ({first.comm}){others} in it does "
            "not match the rule",
            "run the application in a cgroup of its own (a systemd unit), or have the rule match "
            "that cgroup, unit or user",
        )
    if original is None and not group.effective & asked:
        why = f"cgroup {path} has none of CPUs {cpu_list(asked)} anyway"
        return Ruling(None, why, off=True)
    if not group.effective & free:
        why = f"cgroup {path} has no other CPU that is online (it has {cpu_list(group.effective)})"
        return Ruling(None, why, "dedicate fewer CPUs, or give the application more")
    stuck = [pin for pin in group.pinned if not pin.cpus & free]
    if original is None and stuck:
        pin = stuck[0]
        return Ruling(
            None,
            f"thread {pin.tid} ({pin.comm}) of cgroup {path} is pinned to CPU "
            f"{cpu_list(pin.cpus)}, and a cpuset would overrule that",
            "pin it elsewhere, or dedicate another CPU",
        )
    return Ruling(cpu_list(free), f"cgroup {path} may not use CPUs {cpu_list(asked)}", off=True)


def _obstacle(group: Cgroup, free: frozenset[int]) -> Ruling | None:
    """What prevents it in the cgroup itself, whatever processes are in it."""
    path = group.id.path
    name = path.rpartition("/")[2]
    if path == "/":
        own = "run the application in a cgroup of its own (a systemd unit)"
        return Ruling(None, "it is in the root cgroup, which has no cpuset of its own", own)
    if name.endswith(".slice"):
        why = f"{path} is a slice: what systemd starts in it later would lose these CPUs as well"
        return Ruling(None, why, "run the application in a unit of its own")
    if group.cpus is None:
        why = f"the cpuset controller is not enabled for cgroup {path}, and atfnd enables none"
        parent = path.rpartition("/")[0] or "/"
        advice = f"enable cpuset in the cgroup.subtree_control of {parent}"
        if name.endswith(_UNITS):
            advice = f"systemctl set-property --runtime {name} AllowedCPUs={cpu_list(free)}"
        return Ruling(None, why, advice)
    if group.kind != "domain":
        return Ruling(None, f"cgroup {path} is {group.kind}: its threads are in several cpusets")
    if group.partition not in (None, "member"):
        return Ruling(None, f"cgroup {path} is a cpuset partition ({group.partition})")
    if group.children:
        why = f"cgroup {path} has others in it ({group.children[0]}), which would get less too"
        return Ruling(None, why, "run the application in a cgroup without children")
    return None
