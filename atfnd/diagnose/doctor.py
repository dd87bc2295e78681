# SPDX-License-Identifier: GPL-2.0-or-later
"""What atfnd can do on a NIC, what stands in its way there, and what to do about it. Pure.

`doctor_queues` looks at its queues and their CPUs, `doctor_machine` at what surrounds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from atfnd.diagnose.machine import rivals_of
from atfnd.diagnose.queues import queues_of
from atfnd.model import (
    Actuator,
    Finding,
    Level,
    Machine,
    NicView,
    Protocol,
    SteeringMethod,
    Topology,
)

__all__ = ["examine"]

_MOVES = {
    Actuator.IN_PLACE: "moving a flow is one write (K1)",
    Actuator.SHORT_GAP: "moving a flow deletes and adds its filter: RSS has it for microseconds "
    "meanwhile (K2)",
    Actuator.LONG_GAP: "moving a flow deletes and adds its filter: RSS has it for 100 microseconds "
    "or more meanwhile (K3)",
    Actuator.NONE: "it has no 5-tuple filters (K4)",
}
_METHODS = {
    SteeringMethod.FILTERS: "steers each flow by a filter of its own",
    SteeringMethod.RSS: "steers by the indirection table of RSS",
    SteeringMethod.RFS: "steers by RFS",
}
_ALMOST = 0.9  # of the filter table


def examine(
    nic: NicView, topology: Topology, machine: Machine, *, watched: bool | None = True
) -> tuple[Finding, ...]:
    """All findings on one NIC: first what it can do. `watched`: by the daemon; None: there is
    none."""
    return (
        *_method(nic),
        *_state(nic, watched),
        *_filters(nic),
        *queues_of(nic, topology),
        *(
            Finding(nic.name, Level.BLOCKER if each.blocks else Level.WARNING, each.what,
                    each.advice)
            for each in nic.conflicts
        ),
        *rivals_of(nic, machine),
    )  # fmt: skip


def _method(nic: NicView) -> Iterator[Finding]:
    caps = nic.caps
    why = (
        f": {nic.method_why}" if nic.method_why and nic.method is not SteeringMethod.FILTERS else ""
    )
    if nic.method is SteeringMethod.NONE:
        if nic.paused or any(conflict.blocks for conflict in nic.conflicts):
            return  # said below
        reason = str(nic.method_why) or caps.why or _MOVES[caps.actuator]
        what, advice = f"nothing can be steered here: {reason}", _gate(nic)
        yield Finding(nic.name, Level.BLOCKER, what, advice)
        return
    yield Finding(nic.name, Level.OK, f"{_METHODS[nic.method]}{why}")
    if nic.method is SteeringMethod.FILTERS:
        yield Finding(nic.name, Level.OK, _MOVES[caps.actuator])
    elif caps.actuator is not Actuator.NONE:
        reason = caps.why or "it refused one"
        yield Finding(nic.name, Level.WARNING, f"it takes no filters now: {reason}", _gate(nic))
    if not caps.probed:
        yield Finding(
            nic.name,
            Level.NOTE,
            f"this is what driver {caps.driver} is expected to do; it is proven when it is armed",
        )


def _gate(nic: NicView) -> str | None:
    if nic.device.ntuple is False and not nic.device.ntuple_fixed:
        return f"ethtool -K {quote(nic.name)} ntuple on (some drivers reset the link for it)"
    return None


def _state(nic: NicView, watched: bool | None) -> Iterator[Finding]:
    if watched is False:
        yield Finding(
            nic.name,
            Level.NOTE,
            "atfnd does not watch it",
            f"start atfnd with --nic {quote(nic.name)} as well",
        )
    if not nic.up:
        yield Finding(
            nic.name, Level.BLOCKER, "it is down: it delivers nothing", f"bring {nic.name} up"
        )
    if nic.paused:
        what = "it is paused: our filters are out, and nothing is changed"
        yield Finding(nic.name, Level.NOTE, what, f"atfnctl resume {quote(nic.name)}")
    elif watched and not nic.armed:
        what = "it is not armed: it is observed, and nothing is changed"
        yield Finding(nic.name, Level.NOTE, what, f"atfnctl arm {quote(nic.name)}")
    if nic.manual:
        settings = ", ".join(sorted(nic.manual))
        what = f"another program changed {settings} after atfnd, which now leaves that alone"
        yield Finding(
            nic.name, Level.WARNING, what, f"to take it back: atfnctl resume {quote(nic.name)}"
        )


def _filters(nic: NicView) -> Iterator[Finding]:
    caps, used, ours = nic.caps, len(nic.filters), len(nic.owned)
    foreign = used - ours
    if not caps.filters:
        if foreign > 0:
            yield Finding(nic.name, Level.NOTE, _foreign(foreign))
        return
    slots = caps.filter_slots
    if slots is None:
        what = f"{used} filters in it, {ours} ours; it does not say how many it can hold"
        yield Finding(nic.name, Level.OK, what)
    else:
        free = max(slots - used, 0)
        what = f"{used} of {slots} filter slots used, {ours} by us, {free} free"
        advice = None
        level = Level.OK
        if used >= slots * _ALMOST:
            level = Level.WARNING
            what += ": flows that find no slot are delivered by RSS"
            advice = (
                "let the policy match fewer flows (min_rate, min_bytes)"
                if ours
                else f"they are not ours: ethtool -n {quote(nic.name)} lists them"
            )
        yield Finding(nic.name, level, what, advice)
    if foreign > 0:
        yield Finding(nic.name, Level.NOTE, _foreign(foreign))
    if nic.budget is not None and ours >= nic.budget:
        yield Finding(
            nic.name,
            Level.WARNING,
            f"our share of {nic.budget} filters is used up: more flows are delivered by RSS",
            "raise filters.max of this interface in the policy, or match fewer flows",
        )
    if caps.why:
        yield Finding(nic.name, Level.NOTE, caps.why)
    if caps.flow_types is not None:
        types = ", ".join(sorted(f"{_protocol(p)} over IPv{f}" for f, p in caps.flow_types))
        what = f"it takes filters for {types or 'no flow'} only: RSS delivers the others"
        yield Finding(nic.name, Level.NOTE, what)
    if not caps.prefix_masks:
        what = "it takes exact 5-tuples only: RSS delivers what comes to unconnected UDP sockets"
        yield Finding(nic.name, Level.NOTE, what)


def _foreign(count: int) -> str:
    return f"{count} filters in it are not ours: they stay as they are, and win where they match"


def _protocol(number: int) -> str:
    return Protocol(number).name if number in set(Protocol) else f"protocol {number}"
