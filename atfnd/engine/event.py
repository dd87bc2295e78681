# SPDX-License-Identifier: GPL-2.0-or-later
"""What the engine is given. Pure values; times are CLOCK_MONOTONIC nanoseconds.

`moving` are the flows of which a move waits or is under way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType
from typing import NamedTuple

from atfnd.engine.command import AskBalancer
from atfnd.engine.filters.listeners import ServedPort
from atfnd.engine.trials.subjects import Application
from atfnd.engine.trials.usage import UsageReading
from atfnd.model import (
    Action,
    Bans,
    Born,
    Filter,
    Flow,
    FlowKey,
    FlowRule,
    HostSetting,
    Listening,
    NicFacts,
    Outcome,
    Pairs,
    Policy,
    Rss,
    SocketSeen,
    SocketUse,
    ThreadReads,
    Topology,
)
from atfnd.model.reason import Why
from atfnd.move.command import Ended

__all__ = [
    "Armed",
    "ArmedAfterPause",
    "AuditDue",
    "BalancerAsked",
    "BalancerRead",
    "BalancersFound",
    "BansEnding",
    "BirthHeard",
    "BirthsDetached",
    "BirthsHeard",
    "BirthsLost",
    "CpuSpent",
    "CpusChanged",
    "CpusRead",
    "Disarmed",
    "EntriesDue",
    "EntriesLeftAlone",
    "EntriesLooked",
    "EntriesWritten",
    "Event",
    "FiltersLeft",
    "FiltersListed",
    "ForeignFound",
    "HeirFound",
    "HostSettingRefused",
    "HostSettingsDue",
    "HostSettingsEnded",
    "HostSettingsRead",
    "InterruptsSpared",
    "ListenersFound",
    "LoadRead",
    "MethodDue",
    "MovesDropped",
    "MovesReported",
    "NicAttached",
    "NicLost",
    "NicRead",
    "NicRenamed",
    "Offer",
    "OriginalsRead",
    "PairsCounted",
    "Paused",
    "PolicyLoaded",
    "PortsDue",
    "PortsJudged",
    "PortsLooked",
    "QueuesLooked",
    "QueuesLoosened",
    "RemainsDue",
    "Resumed",
    "Reviewed",
    "SettingsDue",
    "SettingsLeftAlone",
    "SocketClosed",
    "SocketReported",
    "SocketsAudited",
    "SpreadRead",
    "StraysLooked",
    "TakenOut",
    "TakenUp",
    "Tick",
    "UndoDue",
    "UsageRead",
]

PortRules = Mapping[ServedPort, FlowRule | None]
Cpusets = Mapping[int, frozenset[int] | None]  # by thread; None: any CPU
NOTHING: Cpusets = MappingProxyType({})


class NicAttached(NamedTuple):
    """A NIC is served from now on. `armed`: it may be written to."""

    facts: NicFacts
    armed: bool


class NicRead(NamedTuple):
    """A NIC has been read again."""

    facts: NicFacts


class MethodDue(NamedTuple):
    """Capabilities, settings and conflicts of a NIC have been read: its flows may have to be
    steered in another way."""

    nic: str


class Armed(NamedTuple):
    """A NIC may be written to from now on. This ends a pause."""

    nic: str


class Disarmed(NamedTuple):
    """Nothing is written to a NIC from now on. This ends a pause."""

    nic: str


class Paused(NamedTuple):
    """Nothing is written to a NIC until `Resumed`."""

    nic: str


class Resumed(NamedTuple):
    """The pause of a NIC ends, if it is paused: it is armed if it was so before."""

    nic: str


class ArmedAfterPause(NamedTuple):
    """Whether the end of the pause of a NIC arms it."""

    nic: str
    armed: bool


class SettingsLeftAlone(NamedTuple):
    """Settings of a NIC that another program has changed. They are left alone."""

    nic: str
    settings: frozenset[str]


class ForeignFound(NamedTuple):
    """The filters of other programs in a NIC."""

    nic: str
    filters: tuple[Filter, ...]


class NicLost(NamedTuple):
    """A NIC is gone."""

    nic: str


class NicRenamed(NamedTuple):
    """A NIC has another name now, and is about to be attached under it. Its flows end."""

    nic: str
    new: str


class SocketReported(NamedTuple):
    """A thread uses a socket that the policy asks for on another CPU than its packets arrive on, or
    than it was last reported on. `rule` is the policy's rule for it; `rss_cpu` is where RSS would
    deliver it, for an observer that does not see where packets arrive."""

    nic: str
    seen: SocketSeen
    rule: FlowRule | None
    rss_cpu: int | None = None
    cpusets: Cpusets = NOTHING  # of its thread, where its place depends on that


class SocketClosed(NamedTuple):
    cookie: int


class AuditDue(NamedTuple):
    """An observer of sockets is about to be read: before that, it must know the sockets that it
    does not know yet."""


class SocketsAudited(NamedTuple):
    """Every reported socket that is still open. `ended`: threads that have exited. A `Reviewed`
    follows, after the flows that now fall under another rule have been reported."""

    uses: Sequence[SocketUse]
    ended: Sequence[int] = ()


class QueuesLooked(NamedTuple):
    """It is time to decide which thread owns which queue. `online`: the CPUs that are online."""

    online: frozenset[int]


class Reviewed(NamedTuple):
    """The end of an audit: filters go to the flows that gain most from them."""

    topology: Topology


class Offer(NamedTuple):
    """A NIC that a connection may come by, with the policy's rule for it. `rss_queue`: where RSS
    would deliver it."""

    nic: str
    rule: FlowRule
    rss_queue: int | None
    cpusets: Cpusets = NOTHING


class BirthHeard(NamedTuple):
    """One observation about a birth: `nic` is the only NIC that a listener receives through;
    `offers` are those for a connect that is still unanswered (`connects.unanswered`)."""

    event: Born | ThreadReads
    nic: str | None = None
    offers: Sequence[Offer] = ()


class BirthsHeard(NamedTuple):
    """What was read of births at one time, in its order."""

    events: Sequence[BirthHeard]


class BirthsDetached(NamedTuple):
    """Births are not observed any more, and what listens is not known."""


class BirthsLost(NamedTuple):
    """Births were missed."""


class ListenersFound(NamedTuple):
    """All that listen on a NIC and on no other."""

    nic: str
    listeners: Sequence[Listening]


class CpusRead(NamedTuple):
    """The CPUs have been read, for the first time or again."""

    topology: Topology


class CpusChanged(NamedTuple):
    """A CPU went offline or came back, and the CPUs have been read: queues of this NIC may have to
    go elsewhere."""

    nic: str


class QueuesLoosened(NamedTuple):
    """The link of a NIC came up again, and these queues are confined to no CPU since. `cpus`: where
    each was before."""

    nic: str
    cpus: Mapping[int, int]


class BalancersFound(NamedTuple):
    """Every irqbalance that runs."""

    pids: frozenset[int]
    bans: Bans


class BalancerRead(NamedTuple):
    """What an irqbalance leaves alone. None: it does not answer."""

    pid: int
    spares: frozenset[int] | None
    bans: Bans


class BalancerAsked(NamedTuple):
    """What became of this command. `refused`: why it is not done; None: it is."""

    asked: AskBalancer
    refused: str | None


class BansEnding(NamedTuple):
    """Some irqbalances are about to be asked to move interrupts again."""

    pids: frozenset[int]


class InterruptsSpared(NamedTuple):
    """irqbalance leaves these interrupts of a NIC alone from now on. `moved`: settings that do not
    have the value that we wrote, with that value."""

    nic: str
    irqs: frozenset[int]
    moved: Mapping[str, str]


class SettingsDue(NamedTuple):
    """A NIC has been armed or has come up anew, and the CPUs have been read: its settings may not
    be those that steering it takes."""

    nic: str


class OriginalsRead(NamedTuple):
    """What the settings of a NIC that we wrote were before that. Its queues go back to the CPUs
    that follow from this when they have no owner."""

    nic: str
    originals: Mapping[str, str]


class HostSettingsDue(NamedTuple):
    """It is time to look at the settings of the whole machine, which have been read. `again`: what
    the kernel refused is tried again."""

    settings: Mapping[str, HostSetting]
    again: bool = False


class HostSettingsEnded(NamedTuple):
    """A NIC is not armed any more: what no armed NIC needs goes back."""

    settings: Mapping[str, HostSetting]


class HostSettingsRead(NamedTuple):
    """Settings of the whole machine were read, after a look at them."""

    settings: Mapping[str, HostSetting]


class HostSettingRefused(NamedTuple):
    """The kernel refused a value, or (None) to put a setting back; `left`, in words."""

    setting: str
    value: str | None
    left: str


class EntriesLooked(NamedTuple):
    """It is time to look at every flow of a NIC that is steered by its indirection table."""

    nic: str


class EntriesDue(NamedTuple):
    """The indirection table of a NIC has been read, and may be written for the flows that wait."""

    nic: str


class EntriesWritten(NamedTuple):
    """The outcomes of what followed an `EntriesDue`, where the NIC had `before`; its table has been
    read again."""

    nic: str
    before: Rss | None
    outcomes: Sequence[Outcome]


class SpreadRead(NamedTuple):
    """What the queues of a NIC received has been read. `originals`: as in `OriginalsRead`."""

    nic: str
    originals: Mapping[str, str]


class EntriesLeftAlone(NamedTuple):
    """Another program has written the indirection table of a NIC."""

    nic: str


class LoadRead(NamedTuple):
    """How busy each CPU has been lately, in percent (`placement.load`). A CPU that is not there
    counts as idle."""

    busy: Mapping[int, int]


class CpuSpent(NamedTuple):
    """The CPU time that the daemon and its children have used since it started."""

    spent_ns: int


class UsageRead(NamedTuple):
    """What the applications of `Engine.tried`, and the queues of `Engine.tried_queues`, have used
    until now. None: there are none."""

    flows: Mapping[Application, Sequence[Flow]]
    reading: UsageReading | None


class PortsLooked(NamedTuple):
    """Every connected socket, to see which ports need a filter. `rules`, by NIC, are the answers to
    `Engine.ports_to_match`."""

    rules: Mapping[str, PortRules]
    uses: Sequence[SocketUse]


class PortsDue(NamedTuple):
    """It is time to see which ports need a filter, or a different one."""


class PortsJudged(NamedTuple):
    """Another policy is in force, which may not want the filters of some ports. `rules`, by NIC,
    are the answers to `Engine.ports_to_judge`."""

    rules: Mapping[str, PortRules]
    moving: Set[FlowKey]


class MovesReported(NamedTuple):
    """The results of commands and moves of a NIC, in order."""

    said: Sequence[Outcome | Ended]


class MovesDropped(NamedTuple):
    """All moves of this NIC have stopped: it was disarmed, or is gone. `flows`: the flows that were
    moving."""

    nic: str
    flows: Sequence[FlowKey]


class HeirFound(NamedTuple):
    """Another socket has the 5-tuple of a closed flow, whose filter this action is to delete."""

    action: Action
    cookie: int


class UndoDue(NamedTuple):
    """Our changes are to be taken out of a NIC, of which no move waits or is under way."""

    nic: str
    why: Why


class TakenOut(NamedTuple):
    """Our changes were taken out of a NIC. `outcomes` are those of the filters."""

    nic: str
    outcomes: Sequence[Outcome]


class FiltersLeft(NamedTuple):
    """Filters of ours that an earlier run left in a NIC, and every socket."""

    nic: str
    filters: Sequence[Filter]
    uses: Sequence[SocketUse]


class FiltersListed(NamedTuple):
    """The filters that a NIC holds. `disturbed`: the NIC says that another program has just changed
    it."""

    nic: str
    filters: Sequence[Filter]
    disturbed: bool


class RemainsDue(NamedTuple):
    """It is time to delete the filters of flows that the policy now leaves alone, and filters that
    no flow of the table has."""

    moving: Set[FlowKey]


class StraysLooked(NamedTuple):
    """Whether a socket has the 5-tuple of a filter that no flow of the table has."""

    lives: Mapping[tuple[str, FlowKey], bool]
    moving: Set[FlowKey]


class TakenUp(NamedTuple):
    """Look at the flows of a NIC again: it was armed, or its queues moved. `manual`: include the
    flows that another program steers."""

    nic: str
    manual: bool = False


class PolicyLoaded(NamedTuple):
    """Another policy is in force. `rules` names the rule that now steers each flow of
    `Engine.flows_to_match`, by cookie and key; None: it is left alone."""

    policy: Policy
    rules: Mapping[tuple[int, FlowKey], str | None]
    moving: Set[FlowKey]


class PairsCounted(NamedTuple):
    """What was forwarded since the last one, while some forwarding rule places channels."""

    pairs: Pairs


class Tick(NamedTuple):
    """Time has passed (`Engine.due_ns`)."""


Event = (
    NicAttached | NicRead | NicLost | SocketReported | SocketClosed | SocketsAudited | Reviewed
    | BirthsHeard | BirthsLost | ListenersFound | PortsLooked | MovesReported
    | MovesDropped | FiltersListed | FiltersLeft | StraysLooked | TakenUp | PolicyLoaded | Tick
    | AuditDue | PortsDue | PortsJudged | QueuesLooked | RemainsDue | LoadRead | CpuSpent
    | BirthsDetached | CpusRead | SettingsDue | OriginalsRead | SpreadRead | EntriesLooked
    | EntriesDue | EntriesWritten | EntriesLeftAlone | HeirFound | UndoDue | TakenOut | UsageRead
    | NicRenamed
    | CpusChanged | QueuesLoosened | InterruptsSpared | BalancersFound | BalancerRead
    | BalancerAsked | BansEnding
    | MethodDue | Armed | Disarmed | Paused | Resumed | ArmedAfterPause | SettingsLeftAlone
    | ForeignFound | PairsCounted | HostSettingsDue | HostSettingsEnded
    | HostSettingsRead | HostSettingRefused
)  # fmt: skip
