# SPDX-License-Identifier: GPL-2.0-or-later
"""Connects and listeners on every NIC: what is decided about them. Pure: the daemon calls it as
things happen, a replay in the recorded order.

It ignores rules of the policy that do not keep order, or not from the first byte on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from atfnd.engine.filters import port_filters
from atfnd.engine.filters.listeners import Listeners, ServedPort
from atfnd.engine.handshake import birth
from atfnd.engine.handshake.connects import Connects
from atfnd.engine.table import retire
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    Connecting,
    FlowKey,
    FlowRule,
    Forked,
    Listening,
    Mode,
    NicView,
    Placement,
    Plan,
    Protocol,
    SocketUse,
    Thread,
    ThreadReads,
)
from atfnd.model.reason import Why
from atfnd.move.event import Wanted

__all__ = ["Handshakes", "keeps_order_from_birth", "listeners", "ordered"]


def keeps_order_from_birth(rule: FlowRule) -> bool:
    """The rule steers flows in order, and from their first byte on."""
    late = rule.min_bytes or rule.min_age_ns or rule.min_rate_bit_s
    return not late and rule.placement is not Placement.LEAVE and rule.order is not Mode.IMMEDIATE


def ordered(rule: FlowRule | None) -> FlowRule | None:
    """The rule, if it places flows at their birth."""
    return rule if rule is not None and keeps_order_from_birth(rule) else None


def listeners(memory: Memory) -> dict[str, Listeners]:
    """By NIC, where they are known."""
    return {name: nic.listeners for name, nic in memory.nics.items() if nic.listeners is not None}


def _why_no_port(port: FlowKey, known: Listeners, memory: Memory) -> Why | None:
    entry = memory.table.get(port)
    filtered = entry is not None and entry.location is not None
    return known.several(port) or (None if filtered else known.why_not.get(port))


def _listeners(nic: str, memory: Memory) -> Listeners:
    known = memory.nics[nic]
    known.listeners = known.listeners or Listeners()
    return known.listeners


class Handshakes:
    """Knows no socket at first. Changed by its methods."""

    def __init__(self) -> None:
        self.connects = Connects()

    def found(self, nic: str, listeners: Iterable[Listening], memory: Memory, now_ns: int) -> None:
        """These are all that listen on this NIC."""
        _listeners(nic, memory).found(listeners, memory.table, now_ns)

    def connecting(
        self, event: Connecting, nic: NicView, rule: FlowRule, rss_queue: int | None,
        memory: Memory, now_ns: int,
    ) -> Wanted | None:  # fmt: skip
        """A thread connects, under `rule`; RSS would deliver the flow through `rss_queue`. None:
        there is nothing to do."""
        port = memory.table.covering(event.key)
        if port is not None:
            rss_queue = port.target_queue  # without a rule of its own, this one serves it
        distances = self.connects.distances
        return birth.connecting(event, nic, rule, rss_queue, distances, memory, now_ns)

    def opened(self, event: Listening, nic: str, memory: Memory) -> tuple[Wanted, ...]:
        """A socket listens, and receives through this NIC alone."""
        known = _listeners(nic, memory)
        births = port_filters.wanted_again(event, known, memory)
        known.opened(event, memory.table)
        return births

    def read(self, event: ThreadReads, nic: str, memory: Memory) -> bool:
        """A thread has read an accepted connection. True: several threads now serve one port, so
        look at the ports."""
        known = memory.nics[nic].listeners
        return known is not None and known.read(event) is not None

    def why_no_port(self, nic: str, key: FlowKey, memory: Memory) -> str | None:
        """Why the port of a connection must not have a filter. None: it may have one."""
        known = memory.nics[nic].listeners
        if known is None or key.protocol != Protocol.TCP or not key.local_port:
            return None
        why = next((_why_no_port(port, known, memory) for port in known.ports_of(key)), None)
        return None if why is None else f"No filter for the port: {why}."

    def shared_ports(self, nic: str, memory: Memory) -> frozenset[int]:
        """Ports where one socket listens, and several threads read what it accepts."""
        known = memory.nics[nic].listeners
        return frozenset() if known is None else known.shared_ports()

    def forked(self, event: Forked, memory: Memory) -> bool:
        """A process that was alone has a thread or a child more. True: look at the ports."""
        look = False
        for each in listeners(memory).values():
            look |= each.forked(event.pid)
        return look

    def closed(self, cookie: int, memory: Memory, now_ns: int) -> Plan:
        """A socket that connected or listened is gone."""
        if any(each.closed(cookie, now_ns) for each in listeners(memory).values()):
            return ()
        return retire.gone(cookie, memory)

    def listening(self, memory: Memory) -> bool:
        """Some port must be looked at."""
        return any(each.sockets or each.closed_ns for each in listeners(memory).values())

    def asks_of_ports(self, nic: NicView, memory: Memory) -> frozenset[ServedPort]:
        """What `look_at_ports` asks the policy."""
        known = memory.nics[nic.name].listeners
        if known is None or not nic.armed:
            return frozenset()
        return port_filters.asks(nic, known, memory)

    def look_at_ports(
        self, nic: NicView, rule_of: port_filters.RuleOf, uses: Sequence[SocketUse], memory: Memory,
        now_ns: int,
    ) -> tuple[Wanted, ...]:  # fmt: skip
        """Which ports of a NIC need a rule, or another one. `uses` is every connected socket."""

        def by_order(key: FlowKey, thread: Thread | None) -> FlowRule | None:
            return ordered(rule_of(key, thread))

        known = memory.nics[nic.name].listeners
        if known is None:
            return ()
        if not nic.armed:
            port_filters.forget_closed(nic.name, known, memory)
            return ()
        return port_filters.look(nic, by_order, known, uses, memory, now_ns)

    def uses(self, memory: Memory, now_ns: int) -> list[SocketUse]:
        """The sockets that an audit does not know."""
        known = listeners(memory).values()
        listening = [use for each in known for use in each.uses(memory.table, now_ns)]
        return [*self.connects.uses(memory, now_ns), *listening]
