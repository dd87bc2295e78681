# SPDX-License-Identifier: GPL-2.0-or-later
"""Every value that crosses rooms. No I/O, imports nothing of ours.

Addresses are packed bytes (4 or 16), ports are host-order integers, CPUs and queues are integers.
`None` means "the kernel did not say". Times are CLOCK_MONOTONIC nanoseconds.
"""

from __future__ import annotations

from atfnd.model.birth import Accepted, Born, Connected, Connecting, Forked, Listening
from atfnd.model.cgroup import Cgroup, CgroupId, Member, Pin
from atfnd.model.change import Action, ActionKind, Outcome, Plan, Planned, Restored, brief
from atfnd.model.clause import Clause
from atfnd.model.counts import Counts, Lateness, NicCounts
from atfnd.model.cpu_time import CpuTime, NapiTime
from atfnd.model.facts import Facts, Process
from atfnd.model.finding import Finding, FoundInterface, Level, LinkFile, Machine, Rival
from atfnd.model.flow import (
    Direction,
    Flow,
    FlowKey,
    FlowState,
    Move,
    Protocol,
    SocketGone,
    SocketSeen,
    SocketUse,
    Thread,
    ThreadReads,
    endpoint,
    network_of,
)
from atfnd.model.nic import (
    Actuator,
    Caps,
    Conflict,
    Device,
    Filter,
    Match,
    NicStats,
    NicView,
    Queue,
    QueueStats,
    Rss,
    Shape,
    SteeringMethod,
)
from atfnd.model.placement import Placement, PlacementKind
from atfnd.model.policy import FlowRule, InterfaceRule, Migrant, Mode, Network, Policy, Share
from atfnd.model.reads import NicReads, ReadBytes
from atfnd.model.status import Event, Status
from atfnd.model.topology import Cpu, Node, Topology, cpu_list

__all__ = [
    "Accepted",
    "Action",
    "ActionKind",
    "Actuator",
    "Born",
    "Caps",
    "Cgroup",
    "CgroupId",
    "Clause",
    "Conflict",
    "Connected",
    "Connecting",
    "Counts",
    "Cpu",
    "CpuTime",
    "Device",
    "Direction",
    "Event",
    "Facts",
    "Filter",
    "Finding",
    "Flow",
    "FlowKey",
    "FlowRule",
    "FlowState",
    "Forked",
    "FoundInterface",
    "InterfaceRule",
    "Lateness",
    "Level",
    "LinkFile",
    "Listening",
    "Machine",
    "Match",
    "Member",
    "Migrant",
    "Mode",
    "Move",
    "NapiTime",
    "Network",
    "NicCounts",
    "NicReads",
    "NicStats",
    "NicView",
    "Node",
    "Outcome",
    "Pin",
    "Placement",
    "PlacementKind",
    "Plan",
    "Planned",
    "Policy",
    "Process",
    "Protocol",
    "Queue",
    "QueueStats",
    "ReadBytes",
    "Restored",
    "Rival",
    "Rss",
    "Shape",
    "Share",
    "SocketGone",
    "SocketSeen",
    "SocketUse",
    "Status",
    "SteeringMethod",
    "Thread",
    "ThreadReads",
    "Topology",
    "brief",
    "cpu_list",
    "endpoint",
    "network_of",
]
