# SPDX-License-Identifier: GPL-2.0-or-later
"""What arming would gain, from a survey of what each thread reads and where. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from atfnd.diagnose.gain_advice import Evidence, advise
from atfnd.model import (
    ApplicationGain,
    Cpu,
    Distance,
    Gain,
    Habit,
    Levels,
    NicGain,
    NicView,
    ReadSpread,
    Survey,
    SurveyedReads,
    ThreadGain,
    Topology,
    WouldDo,
)

__all__ = ["Around", "Parts", "levels_of", "not_measured", "summarised"]

LISTED = 50  # of applications, and of threads
CALLS = 10  # fewer say nothing of where a thread stays
HOME = 0.9  # of its calls a thread makes at home
SHORT = 10  # reads of a short connection, at most
FEW = 4  # CPUs that it read on, in what is listed


Key = TypeVar("Key")


class Around(NamedTuple):
    """What else is known of that time."""

    cpus: Topology
    busy: Mapping[int, float]  # the share of its time that a CPU worked, where it is known
    shared: Mapping[str, frozenset[int]]  # by NIC: ports of one listener that several threads read
    would_do: Mapping[str, WouldDo]  # by NIC
    pinned_by: Callable[[int], str | None]  # a thread


class Parts:
    """The parts of a machine that its CPUs are in."""

    def __init__(self, cpus: Topology) -> None:
        self._cpus = cpus
        self._known = {cpu.index: cpu for cpu in cpus.cpus}

    def distance(self, a: int, b: int) -> Distance | None:
        """None: the kernel does not say."""
        for level in Distance:
            one, other = self.part(a, level), self.part(b, level)
            if one is None or other is None:
                return None
            if one == other:
                return level
        return None

    def part(self, index: int, level: Distance) -> Hashable | None:
        """The part of this size that a CPU is in. None: the kernel does not say."""
        cpu = self._known.get(index)
        if level is Distance.CPU:
            return index
        if level is Distance.MACHINE:
            return "this"
        if cpu is None:
            return None
        if level is Distance.NODE:
            return _node(cpu, self._cpus)
        return (cpu.smt if level is Distance.CORE else cpu.llc) or None


def _node(cpu: Cpu, cpus: Topology) -> int | None:
    """A kernel without NUMA has one."""
    return cpu.node if cpus.nodes else 0


def levels_of(cpus: Topology) -> Levels:
    """Of online CPUs."""
    online = [cpu for cpu in cpus.cpus if cpu.online]
    cores = {cpu.smt for cpu in online}
    llcs = {cpu.llc for cpu in online}
    nodes = {_node(cpu, cpus) for cpu in online}
    return Levels(
        len(online),
        None if () in cores else len(cores),
        None if () in llcs else len(llcs),
        None if None in nodes else len(nodes),
    )


def not_measured(why: str, cpus: Topology) -> Gain:
    return Gain(0.0, why, 0, levels_of(cpus), None, (), (), 0, 0, ())


def summarised(survey: Survey, seconds: float, nics: Sequence[NicView], around: Around) -> Gain:
    """Of these NICs."""
    names = {nic.name for nic in nics}
    rows = [row for row in survey.rows if row.nic in names]
    parts = Parts(around.cpus)
    spread = _Spreads(parts)
    by_thread = _grouped(rows, lambda row: row.tid)
    habits = {tid: habit_of(of_thread) for tid, of_thread in by_thread.items()}
    levels = levels_of(around.cpus)
    threads = sorted(by_thread.items(), key=lambda item: _most(item[1]))
    applications = sorted(
        _grouped(rows, lambda row: row.application).items(), key=lambda item: _most(item[1])
    )
    return Gain(
        seconds=seconds,
        why_not=None,
        missed=survey.missed,
        levels=levels,
        note=_note(levels),
        applications=tuple(
            _application(name, of, habits, spread) for name, of in applications[:LISTED]
        ),
        threads=tuple(_thread(of, habits, spread, parts, around) for _, of in threads[:LISTED]),
        more_applications=max(len(applications) - LISTED, 0),
        more_threads=max(len(threads) - LISTED, 0),
        nics=tuple(
            _nic(nic, [row for row in rows if row.nic == nic.name], habits, spread, seconds, around)
            for nic in nics
        ),
    )


class _Spreads:
    """Adds up rows; a pair of CPUs is looked up once."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._known: dict[tuple[int, int], str] = {}

    def of(self, rows: Iterable[SurveyedReads]) -> ReadSpread:
        counts = Counter[str]()
        for row in rows:
            counts[self._field(row)] += row.bytes
        return ReadSpread(**counts)

    def _field(self, row: SurveyedReads) -> str:
        if row.rx_cpu is None:
            return "unseen"
        pair = row.rx_cpu, row.read_cpu
        if pair not in self._known:
            found = self._parts.distance(*pair)
            self._known[pair] = "other" if found is None else found.value
        return self._known[pair]


def habit_of(rows: Sequence[SurveyedReads]) -> Habit:
    """Of one thread. One that may run on one CPU only is pinned, however little it did; also if
    that was one CPU after the other."""
    if all(row.allowed == 1 for row in rows):
        return Habit.PINNED
    calls = _calls_by_cpu(rows)
    if calls.total() < CALLS:
        return Habit.UNKNOWN
    return Habit.SETTLED if max(calls.values()) >= HOME * calls.total() else Habit.WANDERING


def home_of(rows: Sequence[SurveyedReads], parts: Parts) -> Distance | None:
    """The smallest part of the machine that had nine of ten calls of a thread. None: it made too
    few, or the kernel does not say what its CPUs share."""
    calls = _calls_by_cpu(rows)
    if calls.total() < CALLS:
        return None
    for level in Distance:
        there = Counter[Hashable]()
        for cpu, count in calls.items():
            if (part := parts.part(cpu, level)) is None:
                return None
            there[part] += count
        if max(there.values()) >= HOME * calls.total():
            return level
    return None


def _calls_by_cpu(rows: Iterable[SurveyedReads]) -> Counter[int]:
    calls = Counter[int]()
    for row in rows:
        calls[row.read_cpu] += row.calls
    return calls


def _thread(
    rows: Sequence[SurveyedReads],
    habits: Mapping[int, Habit],
    spread: _Spreads,
    parts: Parts,
    around: Around,
) -> ThreadGain:
    first, calls = rows[0], _calls_by_cpu(rows)
    habit = habits[first.tid]
    return ThreadGain(
        tid=first.tid,
        pid=first.pid,
        application=first.application,
        habit=habit,
        pinned_by=around.pinned_by(first.tid) if habit is Habit.PINNED else None,
        home=home_of(rows, parts),
        cpus=tuple(cpu for cpu, _ in calls.most_common(FEW)),
        allowed=max(row.allowed for row in rows),
        calls=calls.total(),
        reads=spread.of(rows),
    )


def _application(
    name: str, rows: Sequence[SurveyedReads], habits: Mapping[int, Habit], spread: _Spreads
) -> ApplicationGain:
    threads = Counter(habits[tid] for tid in {row.tid for row in rows})
    return ApplicationGain(name, len({row.pid for row in rows}), threads, spread.of(rows))


def _nic(
    nic: NicView,
    rows: Sequence[SurveyedReads],
    habits: Mapping[int, Habit],
    spread: _Spreads,
    seconds: float,
    around: Around,
) -> NicGain:
    off, left, shared = Counter[Habit](), 0, 0
    to_cpu, ports = Counter[int](), Counter[int]()
    short = _short(rows, around.shared.get(nic.name, frozenset()))
    for row in rows:
        if row.rx_cpu in (None, row.read_cpu):
            continue
        if row.left:
            left += row.bytes
            continue
        habit = habits[row.tid]
        off[habit] += row.bytes
        if habit in (Habit.PINNED, Habit.SETTLED):
            to_cpu[row.read_cpu] += row.bytes
            if row.tid in short:
                shared += row.bytes
                ports[short[row.tid]] += row.bytes
    reads = spread.of(rows)
    evidence = Evidence(
        seconds, reads, off, left, to_cpu, shared, sorted(ports), around.busy,
        levels_of(around.cpus),
    )  # fmt: skip
    verdict, advice = advise(nic, evidence)
    return NicGain(
        nic.name, nic.armed, nic.method, nic.method_why, nic.caps.probed, reads, off, left,
        around.would_do.get(nic.name), verdict, advice,
    )  # fmt: skip


def _short(rows: Sequence[SurveyedReads], shared: frozenset[int]) -> dict[int, int]:
    """The threads that read short connections of a port that others read too, and the port."""
    calls, accepted, port = Counter[int](), Counter[int](), dict[int, int]()
    for row in rows:
        calls[row.tid] += row.calls
        accepted[row.tid] += row.accepted
        if row.port in shared:
            port[row.tid] = row.port
    return {tid: each for tid, each in port.items() if calls[tid] <= SHORT * accepted[tid]}


def _note(levels: Levels) -> str | None:
    if levels.cpus == 1:
        return "This machine has one CPU: nothing can be read off it, and arming gains nothing."
    if levels.llcs == 1:
        return (
            f"All {levels.cpus} CPUs share one last-level cache: no byte can be read off it. "
            "Arming gains the caches of single cores, and fewer wake-ups from core to core."
        )
    return None


def _most(rows: Iterable[SurveyedReads]) -> int:
    return -sum(row.bytes for row in rows)


def _grouped(
    rows: Iterable[SurveyedReads], key: Callable[[SurveyedReads], Key]
) -> dict[Key, list[SurveyedReads]]:
    groups = defaultdict[Key, list[SurveyedReads]](list)
    for row in rows:
        groups[key(row)].append(row)
    return groups
