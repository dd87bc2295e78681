# SPDX-License-Identifier: GPL-2.0-or-later
"""`GET /v1/gain`: how far from its packets each application reads, what arming would gain."""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from pydantic import Field
from typing_extensions import TypedDict

from atfnd.model import (
    ApplicationGain,
    ArmingVerdict,
    Distance,
    Gain,
    Habit,
    NicGain,
    ReadSpread,
    ThreadGain,
)
from atfnd.serve import Source
from atfnd.serve.api.answers import row_list_in, streaming
from atfnd.serve.api.interfaces import NIC, named
from atfnd.serve.api.route import JSON, Route, Whole
from atfnd.serve.api.values import (
    Amount,
    Count,
    HabitWord,
    MethodWord,
    Positive,
    Proportion,
    Within,
    one_of,
    shown,
    words,
)

__all__ = ["GainRoutes", "gain_view"]

SECONDS = Whole("seconds", 1, 60, 10, "How long to look.")


class BytesByDistance(TypedDict):
    """Bytes that applications read, by what the CPU that read them shares with the one that had
    processed them."""

    cpu: Count
    """It is the same."""
    core: Count
    """The core (SMT)."""
    llc: Count
    """The last-level cache."""
    node: Count
    """The NUMA node."""
    machine: Count
    """Nothing nearer."""
    other: Count
    """Another CPU; what they share is unknown."""
    unseen: Count
    """Unconnected UDP: no CPU is known."""
    total: Count


class SpreadShown(TypedDict):
    """What was read, and the shares of it that were read outside a part of the machine around the
    CPU that had processed it. null: nothing was read, or the kernel does not say what CPUs
    share."""

    bytes: BytesByDistance
    off_cpu: Proportion | None
    off_core: Proportion | None
    off_llc: Proportion | None
    off_node: Proportion | None


class ThreadGainShown(SpreadShown):
    """What a thread reads, and how far from it."""

    tid: int
    pid: int
    application: str
    """Name of the process."""
    habit: HabitWord
    """`pinned`, it may run on one CPU only; `settled`, it made nine of ten calls on one; `unknown`,
    it made fewer than ten calls."""
    pinned_by: Annotated[str, one_of("affinity", "cpuset")] | None
    home: Within | None
    """The smallest part of the machine that had nine of ten calls."""
    cpus: Annotated[list[Count], Field(max_length=4)]
    """That it read on, most calls first."""
    allowed: Positive
    """So many CPUs it could run on."""
    calls: Count


class ApplicationGainShown(SpreadShown):
    """Processes of one name."""

    application: str
    processes: Positive
    threads: dict[HabitWord, Count]
    """How many of each habit."""


class OffCpuBytes(TypedDict):
    """Bytes read off their CPU, by the habit of the threads that read them."""

    pinned: Count
    settled: Count
    wandering: Count
    unknown: Count
    left_alone: Count
    """By whomever, through sockets that the policy leaves alone."""


class WouldDoShown(TypedDict):
    """Writes that arming would begin with."""

    filters: Count
    queues: Count
    """To other CPUs."""
    settings: Count


class NicGainShown(SpreadShown):
    """What arming an interface would gain."""

    nic: str
    armed: bool
    method: MethodWord
    """By which it can be steered."""
    method_why: str
    probed: bool
    """false: this is expected of its driver."""
    off_cpu_bytes: OffCpuBytes
    would_do: WouldDoShown | None
    verdict: Annotated[str, words(ArmingVerdict)]
    advice: str
    """One sentence."""


class LevelsShown(TypedDict):
    """How many of each are online."""

    cpus: Positive
    cores: Positive | None
    llcs: Positive | None
    """Last-level caches."""
    nodes: Positive | None
    """NUMA nodes."""


class GainRest(TypedDict):
    """All but the threads."""

    seconds: Amount
    """How long the look was."""
    why_not: str | None
    """Why nothing was measured."""
    missed_bytes: Count
    """Read, and found no room."""
    machine: LevelsShown
    note: str | None
    """What this machine can gain at all."""
    applications: Annotated[list[ApplicationGainShown], Field(max_length=50)]
    """Those that read most."""
    more_applications: Count
    """That are not listed."""
    more_threads: Count
    nics: list[NicGainShown]


class GainShown(GainRest):
    """What was read in some seconds, by thread, application and interface; advice."""

    threads: Annotated[list[ThreadGainShown], Field(max_length=50)]
    """Those that read most."""


class GainRoutes:
    """Handler over one source."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def routes(self) -> list[Route]:
        return [Route("GET", "/v1/gain", "gain", self.gain, GainShown, (NIC, SECONDS))]

    async def gain(self, request: web.Request) -> web.StreamResponse:
        """What arming would gain, by a look of some seconds at what each thread reads.

        Nothing is changed. The answer begins at once and ends when the time is over. While one look
        is being taken, others who ask get the answer of that one."""
        seconds, nic = SECONDS.of(request), named(self._source, request)
        response = await streaming(request, JSON)
        found = await self._source.gain(nic, seconds)
        rest = gain_view(found)
        rows = map(_thread_view, found.threads)
        return await row_list_in(request, response, "threads", rows, lambda: rest)


def gain_view(gain: Gain) -> GainRest:
    """All but its threads."""
    return shown(
        GainRest,
        gain,
        seconds=round(gain.seconds, 3),
        missed_bytes=gain.missed,
        machine=gain.levels,
        applications=[_application_view(each) for each in gain.applications],
        nics=[_nic_view(each) for each in gain.nics],
    )


def _spread(reads: ReadSpread) -> dict[str, object]:
    """The fields of `SpreadShown`."""
    off = {
        f"off_{each.value}": reads.off(each) for each in Distance if each is not Distance.MACHINE
    }
    return {"bytes": {**reads._asdict(), "total": sum(reads)}, **off}


def _application_view(each: ApplicationGain) -> ApplicationGainShown:
    threads = {habit.value: each.threads.get(habit, 0) for habit in Habit}
    return shown(ApplicationGainShown, each, threads=threads, **_spread(each.reads))


def _thread_view(each: ThreadGain) -> ThreadGainShown:
    return shown(ThreadGainShown, each, **_spread(each.reads))


def _nic_view(each: NicGain) -> NicGainShown:
    off = {habit.value: each.off.get(habit, 0) for habit in Habit}
    off_cpu = {**off, "left_alone": each.left}
    return shown(NicGainShown, each, off_cpu_bytes=off_cpu, **_spread(each.reads))
