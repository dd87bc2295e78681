# SPDX-License-Identifier: GPL-2.0-or-later
"""The Flow-to-Core table (paper, section 3.3): receive-direction 5-tuples, bounded, aged.

Pure: no clock, no I/O. An entry is one flow an observer reported and the policy wants steered; a
flow that is not here is delivered by RSS. Nothing is evicted to admit a newcomer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from atfnd.engine.ownership.shares import Tenant, whose
from atfnd.engine.table.slots import FlowSlots
from atfnd.engine.table.wide_key import Opening, covers, within
from atfnd.model import Flow, FlowKey, FlowState, Protocol

__all__ = ["Elsewhere", "FlowNotes", "FlowRecord", "FlowTable", "t_delete_in_force_ns"]

_KNEE = 0.5  # up to this fill, T_delete is what the policy says
_FLOOR = 1 / 16  # of T_delete, when the table is full

_Keys = dict[FlowKey, None]  # in the order in which they came: what is decided depends on it


def t_delete_in_force_ns(t_delete_ns: int, entries: int, capacity: int) -> int:
    """T_delete at this fill: whole up to half full, then linear down to a sixteenth when full.

    The paper ages "more aggressively by using a smaller T_delete" as the table fills, and leaves
    the curve open. It is flat to the knee, because a table with room gains nothing from forgetting;
    never zero, because then a full table would forget flows in use between two looks at them.
    """
    fill = entries / capacity if capacity else 1.0
    if fill <= _KNEE:
        return t_delete_ns
    share = 1 - (1 - _FLOOR) * (min(fill, 1.0) - _KNEE) / (1 - _KNEE)
    return max(1, int(t_delete_ns * share))


class Elsewhere(NamedTuple):
    """A flow with a rule that was observed on another queue than that of the rule."""

    bytes: int  # at the last look
    looks: int  # with traffic, since the rule was last written
    attempts: int  # to write it anew


@dataclass(frozen=True, slots=True)
class FlowNotes:
    """What decisions remember of a flow beside its entry. Replaced, never changed; most flows have
    none."""

    due_ns: int | None = None  # look at it again, not before
    dropped: tuple[int, int] = (0, 0)  # its rule by the NIC: how often, retry after (ns)
    deferrals: int = 0  # in a row, of its move
    put_off: str = ""  # why, without its numbers
    turn_ns: int | None = None  # when its shares allow a move
    elsewhere: Elsewhere | None = None


_NOTHING = FlowNotes()


@dataclass(slots=True)
class FlowRecord:
    """What the table knows of a flow beside the `Flow`, and forgets with it."""

    generation: int
    notes: FlowNotes


class FlowTable:
    """Flows by key and by socket cookie, with how many rules each queue serves."""

    def __init__(self, capacity: int, notes: Mapping[FlowKey, FlowNotes] | None = None) -> None:
        """`notes` are those of flows that are about to be put."""
        self.capacity = capacity
        self._slots: FlowSlots[FlowKey] = FlowSlots()
        self._cookies: dict[int, FlowKey | tuple[FlowKey, ...]] = {}
        self._threads: dict[int, _Keys] = {}
        self._load: dict[tuple[str, int], int] = {}
        self._ports: _Keys = {}  # of listeners
        self._prefixes: dict[FlowKey, Opening] = {}  # of other keys that stand for many flows
        self._openings: Counter[Opening] = Counter()
        self._stand: dict[tuple[str, FlowState, str], int] = {}
        self._filters: dict[str, dict[Tenant, _Keys]] = {}  # by NIC: flows with one
        self._listens: dict[tuple[str, Tenant], int] = {}  # entries of ports, by NIC
        self._bare: dict[Tenant, _Keys] = {}  # flows without
        self.entries: Counter[Tenant] = Counter()  # of this table
        self._entries: dict[FlowKey, FlowRecord] = {}
        self._begun = 0  # generations
        self._coming = dict(notes or {})  # until their flows are put

    def __len__(self) -> int:
        return self._slots.taken()

    def __iter__(self) -> Iterator[Flow]:
        """Every flow; the table must not change meanwhile."""
        return (flow for flow in self._slots if flow is not None)

    def slots(self) -> Sequence[Flow | None]:
        """The live table by slot, for reading a page at a time."""
        return self._slots

    def get(self, key: FlowKey) -> Flow | None:
        return self._slots.of(key)

    def generation(self, key: FlowKey) -> int:
        """The generation of an entry: it changes as soon as the entry belongs to another socket.
        What was decided for an earlier socket then no longer counts. 0: there is no entry."""
        entry = self._entries.get(key)
        return 0 if entry is None else entry.generation

    def noted(self, key: FlowKey) -> FlowNotes:
        """What is remembered of a flow."""
        entry = self._entries.get(key)
        return _NOTHING if entry is None else entry.notes

    def note(self, key: FlowKey, notes: FlowNotes) -> None:
        """Remember this until the flow's entry ends, whichever socket it comes to belong to.
        Nothing is remembered of a flow without an entry."""
        if (entry := self._entries.get(key)) is not None:
            entry.notes = _NOTHING if notes == _NOTHING else notes

    def notes(self) -> Mapping[FlowKey, FlowNotes]:
        """Of all flows that have some. Reads the whole table."""
        entries = self._entries.items()
        return {key: entry.notes for key, entry in entries if entry.notes is not _NOTHING}

    def full(self) -> bool:
        """No room for a newcomer."""
        return len(self) >= self.capacity

    def put(self, flow: Flow) -> None:
        """Add or replace; for a new key, the caller has asked `full` first."""
        old = self.get(flow.key)
        if old is None or (old.cookie != flow.cookie and not flow.key.wide):
            self._begun += 1
            entry = self._entries.get(flow.key)
            if entry is None:
                notes = self._coming.pop(flow.key, _NOTHING)
                self._entries[flow.key] = FlowRecord(self._begun, notes)
            else:
                entry.generation = self._begun
        if old is not None:
            self._count(old, -1)
        if old is None or (old.cookie, old.thread) != (flow.cookie, flow.thread):
            if old is not None:
                self._forget(old)
            known = self.keys_of(flow.cookie)
            self._cookies[flow.cookie] = (*known, flow.key) if known else flow.key
            if flow.thread is not None:
                self._threads.setdefault(flow.thread.tid, {})[flow.key] = None
        self._slots.put(flow.key, flow)
        self._count(flow, 1)
        if flow.key.listens:
            self._ports[flow.key] = None
        elif old is None and flow.key.wide:
            self._prefixes[flow.key] = opening = Opening.of(flow.key)
            self._openings[opening] += 1

    def remove(self, key: FlowKey) -> None:
        """Forget a flow; KeyError when it is not here."""
        flow = self._slots.drop(key)
        del self._entries[key]
        self._count(flow, -1)
        self._forget(flow)
        self._ports.pop(key, None)
        if (opening := self._prefixes.pop(key, None)) is not None:
            self._openings -= Counter([opening])

    def keys_of(self, cookie: int) -> tuple[FlowKey, ...]:
        """The flows of one socket: none, one, or two for a dual-stack UDP socket."""
        found = self._cookies.get(cookie)
        if found is None:
            return ()
        return (found,) if isinstance(found, FlowKey) else found

    def of_cookie(self, cookie: int) -> list[Flow]:
        """The flows of one socket."""
        return [flow for key in self.keys_of(cookie) if (flow := self.get(key)) is not None]

    def threads(self) -> set[int]:
        """The threads that were last seen to use flows."""
        return set(self._threads)

    def of_thread(self, tid: int) -> list[Flow]:
        """The flows a thread was last seen to use."""
        return [f for key in self._threads.get(tid, ()) if (f := self.get(key)) is not None]

    def rules_on(self, nic: str, queue: int) -> int:
        """How many of our rules point to this queue."""
        return self._load.get((nic, queue), 0)

    def rules_in(self, nic: str) -> int:
        """How many rules this NIC holds for us."""
        return sum(count for (name, _), count in self._load.items() if name == nic)

    def filters_of(self, nic: str) -> Mapping[Tenant, Collection[FlowKey]]:
        """The flows with a filter of their own in this NIC, and ports with one, by tenant: kept,
        not counted."""
        return self._filters.get(nic, {})

    def ports_held(self, nic: str, tenant: Tenant) -> int:
        """How many ports of a tenant have a filter in this NIC, or are about to get one."""
        return self._listens.get((nic, tenant), 0)

    def bare_of(self, tenant: Tenant) -> Collection[FlowKey]:
        """The flows of a tenant that have no filter of their own."""
        return self._bare.get(tenant, ())

    def covering(self, key: FlowKey) -> Flow | None:
        """The entry of the rule that delivers a flow without one of its own, a port's or a
        prefix's: the flow comes through the queue of that rule, not through that of RSS."""
        entries = (*self.ports_of(key), *self._prefixes_of(key))
        return next((entry for entry in entries if entry.location is not None), None)

    def prefix_rules(self, nic: str) -> list[Flow]:
        """The entries that stand for many flows and are not of ports."""
        found = [self.get(key) for key in self._prefixes]
        return [entry for entry in found if entry is not None and entry.nic == nic]

    def wide(self, nic: str) -> list[Flow]:
        """The entries that stand for many flows, of ports and prefixes."""
        return self.ports(nic) + self.prefix_rules(nic)

    def ports(self, nic: str) -> list[Flow]:
        """The entries of ports, with a rule or without one yet."""
        found = (self.get(key) for key in self._ports)
        return [entry for entry in found if entry is not None and entry.nic == nic]

    def _prefixes_of(self, key: FlowKey) -> Iterator[Flow]:
        for opening in self._openings:
            wide = within(key, opening)
            entry = self.get(wide) if wide != key and wide in self._prefixes else None
            if entry is not None and covers(wide, key):
                yield entry

    def ports_of(self, key: FlowKey) -> Iterator[Flow]:
        """The entries of ports that a connection belongs to, with a rule or without one yet."""
        if not self._ports or key.protocol != Protocol.TCP or key.listens:
            return
        anyone = bytes(len(key.remote))
        for local in dict.fromkeys((key.local, anyone)):
            entry = self.get(
                key._replace(local=local, remote=anyone, remote_port=0, remote_prefix=0)
            )
            if entry is not None:
                yield entry

    def steered(self, nic: str) -> Iterator[Flow]:
        """Flows with a rule in this NIC."""
        return (flow for flow in self if flow.nic == nic and flow.location is not None)

    def standing(self) -> Mapping[tuple[str, FlowState, str], int]:
        """How many flows of an interface are in each state, by policy rule. Kept up to date, so
        that asking costs nothing."""
        return self._stand

    def by_state(self) -> dict[FlowState, int]:
        """How many flows are in each state."""
        counts = dict.fromkeys(FlowState, 0)
        for (_, state, _), count in self._stand.items():
            counts[state] += count
        return counts

    def _forget(self, flow: Flow) -> None:
        rest = tuple(key for key in self.keys_of(flow.cookie) if key != flow.key)
        if rest:
            self._cookies[flow.cookie] = rest[0] if len(rest) == 1 else rest
        else:
            self._cookies.pop(flow.cookie, None)
        if flow.thread is not None:
            keys = self._threads[flow.thread.tid]
            keys.pop(flow.key, None)
            if not keys:
                del self._threads[flow.thread.tid]

    def _count(self, flow: Flow, change: int) -> None:
        stands = flow.nic, flow.state, flow.rule_name
        if count := self._stand.get(stands, 0) + change:
            self._stand[stands] = count
        else:
            del self._stand[stands]
        if flow.location is not None and flow.target_queue is not None:
            place = flow.nic, flow.target_queue
            self._load[place] = self._load.get(place, 0) + change
        if flow.key.listens:
            self._count_port(flow, change)
        elif not flow.key.wide:
            ruled = flow.location is not None
            self._belongs(
                flow, self._filters.setdefault(flow.nic, {}) if ruled else self._bare, change
            )
            for tenant in whose(flow):
                self.entries[tenant] += change
                if not self.entries[tenant]:
                    del self.entries[tenant]

    def _count_port(self, flow: Flow, change: int) -> None:
        for tenant in whose(flow):
            at = flow.nic, tenant
            if count := self._listens.get(at, 0) + change:
                self._listens[at] = count
            else:
                del self._listens[at]
        if flow.location is not None:
            self._belongs(flow, self._filters.setdefault(flow.nic, {}), change)

    def _belongs(self, flow: Flow, to: dict[Tenant, _Keys], change: int) -> None:
        for tenant in whose(flow):
            if change > 0:
                to.setdefault(tenant, {})[flow.key] = None
                continue
            to[tenant].pop(flow.key, None)
            if not to[tenant]:
                del to[tenant]
