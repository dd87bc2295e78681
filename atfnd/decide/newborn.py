# SPDX-License-Identifier: GPL-2.0-or-later
"""Who connects and who listens, on every NIC, and what is decided of them and of flows that may
share a filter. Pure: the daemon has it decide as things happen, a replay as they happened.

Rules of the policy that do not keep order, or not from the first byte on, have no part in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial

from atfnd.decide import birth, ports, retire, spans
from atfnd.decide.birth import Birth
from atfnd.decide.connects import Connects
from atfnd.decide.listeners import Listeners
from atfnd.decide.memory import Memory
from atfnd.decide.wide import covers
from atfnd.model import (
    Connecting,
    FlowKey,
    FlowRule,
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

__all__ = ["Newborn", "keeps_order_from_birth", "ordered"]


def keeps_order_from_birth(rule: FlowRule) -> bool:
    """It steers flows in order, and from their first byte on."""
    late = rule.min_bytes or rule.min_age_ns or rule.min_rate_bit_s
    return not late and rule.placement is not Placement.LEAVE and rule.order is not Mode.IMMEDIATE


def ordered(rule: FlowRule | None) -> FlowRule | None:
    """The rule, if flows are placed at their birth by it."""
    return rule if rule is not None and keeps_order_from_birth(rule) else None


class Newborn:
    """Knows nobody at first. Changed by its methods."""

    def __init__(self) -> None:
        self.connects = Connects()
        self.listeners: dict[str, Listeners] = {}  # by NIC

    def keep(self, nics: Collection[str]) -> None:
        """Forget who listened on others."""
        self.listeners = {name: each for name, each in self.listeners.items() if name in nics}

    def found(self, nic: str, listeners: Iterable[Listening], memory: Memory, now_ns: int) -> None:
        """These are all that listen on this NIC."""
        self.listeners.setdefault(nic, Listeners()).found(listeners, memory, now_ns)

    def connecting(
        self, event: Connecting, nic: NicView, rule: FlowRule, rss_queue: int | None,
        memory: Memory, now_ns: int,
    ) -> Birth | None:  # fmt: skip
        """A thread connects, by `rule`; RSS would deliver it by `rss_queue`. None: nothing is to be
        done."""
        wide = memory.table.covering(event.key)
        if wide is not None:
            rss_queue = wide.target_queue  # its rule has it whenever none else has
        distances = self.connects.distances
        return birth.connecting(event, nic, rule, rss_queue, distances, memory, now_ns)

    def opened(self, event: Listening, nic: str, memory: Memory) -> tuple[Birth, ...]:
        """A socket listens, and receives through this NIC alone."""
        known = self.listeners.setdefault(nic, Listeners())
        births = ports.wanted_again(event, known, memory)
        known.opened(event, memory)
        return births

    def read(self, event: ThreadReads, nic: str) -> bool:
        """A thread has read an accepted connection. True: look at the ports, for several threads
        are seen to serve one."""
        known = self.listeners.get(nic)
        return known is not None and known.read(event) is not None

    def why_no_port(self, nic: str, key: FlowKey) -> str | None:
        """Why the port of a connection is to have no filter. None: it may have one."""
        known = self.listeners.get(nic)
        if known is None or key.protocol != Protocol.TCP or not key.local_port:
            return None
        why = next((known.several(port) for port in known.sockets if covers(port, key)), None)
        return None if why is None else f"No filter for the port: {why}."

    def closed(self, cookie: int, memory: Memory, now_ns: int) -> Plan:
        """A socket that connected or listened is gone."""
        if any(each.closed(cookie, now_ns) for each in self.listeners.values()):
            return ()
        return retire.gone(cookie, memory)

    def listening(self) -> bool:
        """Some port is to be looked at."""
        return any(each.sockets or each.closed_ns for each in self.listeners.values())

    def look_at_ports(
        self, nic: NicView, rule_of: ports.RuleOf, uses: Sequence[SocketUse], memory: Memory,
        now_ns: int,
    ) -> tuple[Birth, ...]:  # fmt: skip
        """Which ports of a NIC need a rule, or another one. `uses` is every connected socket."""

        def by_order(key: FlowKey, thread: Thread | None) -> FlowRule | None:
            return ordered(rule_of(key, thread))

        known = self.listeners.get(nic.name)
        if known is None or not nic.armed:
            return ()
        return ports.look(nic, by_order, known, uses, memory, now_ns)

    def look_at_spans(
        self, nic: NicView, rule_of: spans.RuleOf, uses: Sequence[SocketUse], memory: Memory,
        now_ns: int,
    ) -> tuple[Birth, ...]:  # fmt: skip
        """Which flows of a NIC may share a filter, and which of those there are nobody needs."""

        def by_order(key: FlowKey) -> FlowRule | None:
            return ordered(rule_of(key))

        listened = partial(self._listened, nic.name, memory)
        return spans.look(nic, by_order, listened, uses, memory, now_ns)

    def uses(self, memory: Memory, now_ns: int) -> list[SocketUse]:
        """What an audit of sockets does not know of."""
        known = self.listeners.values()
        listening = [use for each in known for use in each.uses(memory, now_ns)]
        return [*self.connects.uses(memory, now_ns), *listening]

    def _listened(self, nic: str, memory: Memory, key: FlowKey) -> bool:
        """Its port has a rule, or may get one."""
        known = self.listeners.get(nic)
        if known is None or key.protocol != Protocol.TCP:
            return False
        spending = memory.spending_of(nic)  # those wait for a slot
        hopeless = known.why_not.keys() - spending.covers - spending.promised
        return any(covers(port, key) for port in known.sockets if port not in hopeless)
