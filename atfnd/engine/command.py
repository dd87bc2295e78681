# SPDX-License-Identifier: GPL-2.0-or-later
"""What the engine asks for. Commands are carried out in order. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from atfnd.model import Action, Ban, FlowKey, Match, Outcome, Plan
from atfnd.model.reason import Why
from atfnd.move.command import Ended
from atfnd.move.event import Event as MoveEvent
from atfnd.move.event import Wanted

__all__ = [
    "Adopt",
    "AskBalancer",
    "Begin",
    "Command",
    "ConfirmBan",
    "CountAsOurs",
    "Expect",
    "FindListeners",
    "Forget",
    "ForgetBan",
    "HandsOn",
    "KeepFilter",
    "LeaveHostSetting",
    "Log",
    "LookAtInterrupts",
    "LookAtPorts",
    "LookAtStrays",
    "PutBackHostSetting",
    "ReadBalancer",
    "ReleaseClaim",
    "ReportEnd",
    "ReportOutcome",
    "TakeOut",
    "TellMoves",
    "WatchAccepts",
    "WriteHostSetting",
    "WriteSettings",
    "actions_of",
]


class Begin(NamedTuple):
    """Begin these moves of one NIC, if it is armed; their results come as a `MovesReported`."""

    nic: str
    wanted: tuple[Wanted, ...]


class WriteSettings(NamedTuple):
    """Write these at once, as far as their NICs are armed: no flow moves. The results come as a
    `MovesReported`."""

    plan: Plan


class CountAsOurs(NamedTuple):
    """These settings of a NIC changed, and no other program did that: their present values count as
    ours. `scattered`: not one that names a single CPU, for the kernel names all that are left."""

    nic: str
    settings: tuple[str, ...]
    scattered: bool = False


class KeepFilter(NamedTuple):
    """Do not carry out this delete."""

    action: Action


class TakeOut(NamedTuple):
    """Take all our changes out of a NIC that is not armed, its filters by these deletes. A
    `TakenOut` is wanted then."""

    nic: str
    plan: Plan


class TellMoves(NamedTuple):
    """Something happened that a move of this NIC may depend on; None: of any NIC."""

    nic: str | None
    event: MoveEvent


class Expect(NamedTuple):
    """The packets of a socket arrive where they should on this CPU: the observer does not report
    the socket while they arrive there."""

    cookie: int
    cpu: int
    at_ns: int  # of the report that this answers


class HandsOn(NamedTuple):
    """The observer takes these queues of a NIC as those that have RFS: by NAPI id, the CPU that
    polls each."""

    nic: str
    cpus: Mapping[int, int]


class Adopt(NamedTuple):
    """The observer takes these sockets as known, each used on this CPU."""

    cpus: Mapping[int, int]  # by cookie


class Forget(NamedTuple):
    """These sockets are reported again when they are used again."""

    cookies: frozenset[int]


class WatchAccepts(NamedTuple):
    """Watch which threads accept connections of these ports, and of no others."""

    ports: frozenset[int]


class LookAtPorts(NamedTuple):
    """A `PortsLooked` is wanted now. Accepts on `ports` must be watched before the sockets are
    read."""

    ports: frozenset[int]


class FindListeners(NamedTuple):
    """A `ListenersFound` of each NIC is wanted now."""


class LookAtStrays(NamedTuple):
    """A `StraysLooked` for these filters is wanted now."""

    keys: tuple[tuple[str, FlowKey], ...]  # NIC, flow


class ReadBalancer(NamedTuple):
    """A `BalancerRead` of this irqbalance is wanted."""

    pid: int


class AskBalancer(NamedTuple):
    """Ask an irqbalance, which leaves `spares` alone, to leave the interrupts of `new`, by NIC,
    alone as well, and to move those of `ended` again. A `BalancerAsked` is wanted then."""

    pid: int
    spares: frozenset[int]
    new: Mapping[str, frozenset[int]]
    ended: tuple[Ban, ...]


class ConfirmBan(NamedTuple):
    """The journal notes that irqbalance has said that it leaves this alone."""

    ban: Ban


class ForgetBan(NamedTuple):
    """The journal drops a ban that has ended. `theirs`: another program ended it, and irqbalance
    must not be asked again."""

    ban: Ban
    theirs: bool = False


class LookAtInterrupts(NamedTuple):
    """An `InterruptsSpared` is wanted, with the settings as they are now."""

    nic: str
    irqs: frozenset[int]


class WriteHostSetting(NamedTuple):
    """Set a setting of the whole machine, if the NIC of this action is armed. If the kernel refuses
    it, a `HostSettingRefused` is wanted."""

    action: Action


class PutBackHostSetting(NamedTuple):
    """Give a setting of the whole machine its value from before us. If the kernel refuses it, a
    `HostSettingRefused` is wanted."""

    setting: str
    why: Why


class LeaveHostSetting(NamedTuple):
    """The journal notes that another program has written this over our value."""

    setting: str


class ReleaseClaim(NamedTuple):
    """The journal drops a filter that the NIC does not hold, or that belongs to another program."""

    nic: str
    match: Match


class ReportOutcome(NamedTuple):
    """Count and log the outcome of an action."""

    outcome: Outcome


class ReportEnd(NamedTuple):
    """Count how a move ended. `news`: log it, too."""

    ended: Ended
    news: bool


class Log(NamedTuple):
    """A line of the log. `fields`: `nic`, `flow`, `rule`."""

    kind: str
    what: str
    why: Why | str
    fields: Mapping[str, Any] = {}


Command = (
    Begin | TellMoves | Expect | HandsOn | Adopt | Forget | WatchAccepts | LookAtPorts
    | FindListeners | LookAtStrays | ReleaseClaim | ReportOutcome | ReportEnd | Log | WriteSettings
    | KeepFilter | TakeOut | CountAsOurs | ReadBalancer | AskBalancer | ConfirmBan | ForgetBan
    | LookAtInterrupts | WriteHostSetting
    | PutBackHostSetting | LeaveHostSetting
)  # fmt: skip


def actions_of(command: Command) -> Plan:
    """What is written when it is carried out."""
    match command:
        case Begin():
            return tuple(each.action for each in command.wanted)
        case WriteSettings() | TakeOut():
            return command.plan
        case _:
            return ()
