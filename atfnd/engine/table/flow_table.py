# SPDX-License-Identifier: GPL-2.0-or-later
"""The Flow-to-Core table (paper, section 3.3): receive-direction 5-tuples, bounded, aged.

Pure: no clock, no I/O. An entry is one flow an observer reported and the policy wants steered; a
flow that is not here is delivered by RSS. Nothing is evicted to admit a newcomer.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import (
    Collection,
    Hashable,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    Set,
)
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import NamedTuple, TypeVar

from atfnd.engine.ownership.shares import Tenant, whose
from atfnd.engine.table.slots import FlowSlots
from atfnd.model import Action, ActionKind, Flow, FlowKey, FlowState, Protocol

__all__ = [
    "Elsewhere",
    "FlowNotes",
    "FlowPending",
    "FlowRecord",
    "FlowTable",
    "Hashed",
    "Weight",
    "Writing",
    "t_delete_in_force_ns",
    "waits",
]

_KNEE = 0.5  # up to this fill, T_delete is what the policy says
_FLOOR = 1 / 16  # of T_delete, when the table is full
_OUTDATED = 8  # entries of the agenda, besides half of them

_Counted = TypeVar("_Counted", bound=Hashable)

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
    """A flow with a filter that was observed on another queue than that of the filter."""

    bytes: int  # at the last look
    looks: int  # with traffic, since the filter was last written
    attempts: int  # to write it anew


@dataclass(frozen=True, slots=True)
class FlowNotes:
    """What decisions remember of a flow beside its entry. Replaced, never changed; most flows have
    none."""

    dropped: tuple[int, int] = (0, 0)  # its filter by the NIC: how often, retry after (ns)
    deferrals: int = 0  # in a row, of its move
    put_off: tuple[object, ...] = ()  # `Why.shape`
    rests_ns: int = 0  # no filter is taken from it, or for it, before
    turn_ns: int | None = None  # when its shares allow a move
    elsewhere: Elsewhere | None = None


class Weight(NamedTuple):
    """What a flow carries, and how far away it would be delivered without a filter of its own."""

    bytes: int  # at the last look
    at_ns: int
    bytes_per_s: float | None  # recently; None: looked at once
    mismatch: float  # 0: on its application's core; 1: on another one of that node
    look: int = 0  # the number of the look that weighed it last

    @property
    def worth(self) -> float | None:
        """None: not measured yet."""
        return None if self.bytes_per_s is None else self.bytes_per_s * self.mismatch


class Hashed(NamedTuple):
    """The entry of the indirection table that a flow hashes to (None: to no one entry)."""

    entry: int | None
    bytes: int = 0  # at the last look
    recently: int = 0  # bytes, those from before the last looks halved at each look


class Writing(Enum):
    """Why the filter of a flow that has just come is being written."""

    CONNECT = "connect"
    PORT = "port"  # a look at ports wants it


_NOTHING = FlowNotes()


@dataclass(slots=True)
class FlowPending:
    """What most flows have nothing of."""

    asked: Action | None = None  # a write of its filter: asked for, not answered
    swap: tuple[FlowKey | None] | None = None  # its filter goes, to this flow
    promised: bool = False  # a slot was cleared for it
    writing: Writing | None = None
    unjudged: bool = False  # a new policy may not want its filter
    leaves: bool = False  # the policy leaves it alone: its filter is to go
    closed: bool = False  # its socket was closed: only its filter's delete is still to come
    hashed: Hashed | None = None
    planned: bool = False  # its entry of the indirection table is looked at in the next plan
    weight: Weight | None = None
    rss: tuple[int, int | None] | None = None  # RSS's queue, by the RSS of this number

    def __deepcopy__(self, memo: dict[int, object]) -> FlowPending:
        """The one that all share stays that one."""
        if self is _NONE_PENDING:
            return self
        return FlowPending(*(deepcopy(getattr(self, each.name), memo) for each in fields(self)))


_NONE_PENDING = FlowPending()  # of all flows that have nothing of it; never changed


@dataclass(slots=True)
class FlowRecord:
    """What the table knows of a flow beside the `Flow`, and forgets with it. Of what the table has
    an index, only the table changes it."""

    slot: int
    generation: int
    notes: FlowNotes = _NOTHING
    due_ns: int | None = None  # look at it again, not before
    pending: FlowPending = field(default_factory=lambda: _NONE_PENDING)

    def own(self) -> FlowPending:
        """What is pending, to be changed."""
        if self.pending is _NONE_PENDING:
            self.pending = FlowPending()
        return self.pending

    def done(self) -> None:
        """Something has ended: most likely nothing is pending any more."""
        if self.pending == _NONE_PENDING:
            self.pending = _NONE_PENDING


@dataclass(slots=True)
class _OfNic:
    """Indexes of the flows of one NIC, which ends with the last of them."""

    flows: int = 0
    count: int = 0  # of filters
    led_to: dict[int, _Keys] = field(default_factory=dict)  # filters, by queue
    steered: _Keys = field(default_factory=dict)  # with a filter
    waiting: _Keys = field(default_factory=dict)  # for one
    led: _Keys = field(default_factory=dict)  # by their port's filter
    aimless: _Keys = field(default_factory=dict)  # without a filter, or a target CPU
    astray: _Keys = field(default_factory=dict)  # their filter leads elsewhere
    adopted: _Keys = field(default_factory=dict)  # with a filter of an earlier run
    filters: dict[Tenant, _Keys] = field(default_factory=dict)  # flows with one
    under: dict[str, _Keys] = field(default_factory=dict)  # the same, by their rule
    listens: Counter[Tenant] = field(default_factory=Counter)  # entries of ports
    inserting: dict[FlowKey, Action] = field(default_factory=dict)  # asked for
    rewriting: dict[FlowKey, Action] = field(default_factory=dict)  # the same
    swaps: dict[FlowKey, FlowKey | None] = field(default_factory=dict)  # whose filter, for which
    promised: _Keys = field(default_factory=dict)
    planned: _Keys = field(default_factory=dict)
    hashed: dict[int | None, _Keys] = field(default_factory=dict)  # by entry


_NO_NIC = _OfNic()  # never changed


def waits(flow: Flow) -> bool:
    """It found no filter left."""
    return flow.state is FlowState.OVERFLOW and flow.location is None and not flow.key.listens


def _astray(flow: Flow) -> bool:
    """It has a filter, and was last seen on another queue than that of the filter. Only TCP flows
    prove that the filter is without effect (`filters.ineffective`)."""
    return (
        flow.rx_queue != flow.target_queue
        and flow.rx_queue is not None
        and flow.location is not None
        and flow.state is FlowState.STEERED
        and flow.key.protocol == Protocol.TCP
    )


def _counted_alike(old: Flow, new: Flow) -> bool:
    """No index but that of slots differs between them."""
    return (
        old.state is new.state
        and old.rx_queue == new.rx_queue
        and old.location == new.location
        and old.target_queue == new.target_queue
        and (old.target_cpu is None) == (new.target_cpu is None)
        and (old.thread is new.thread or old.thread == new.thread)
        and old.nic == new.nic
        and old.rule_name == new.rule_name
        and old.listener == new.listener
    )


class FlowTable:
    """Flows by key and by socket cookie, and what is remembered of each. The indexes are for speed,
    and follow the entries."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._slots = FlowSlots()
        self._records: dict[FlowKey, FlowRecord] = {}
        self._begun = 0  # generations
        self._nics: dict[str, _OfNic] = {}
        self._cookies: dict[int, FlowKey | tuple[FlowKey, ...]] = {}
        self._threads: dict[int, _Keys] = {}
        self._ports: _Keys = {}  # of listeners
        self._stand: Counter[tuple[str, FlowState, str]] = Counter()
        self._bare: dict[Tenant, _Keys] = {}  # flows without a filter
        self.entries: Counter[Tenant] = Counter()  # of this table
        self._noted: _Keys = {}  # with notes
        self._writing: _Keys = {}
        self._leaving: _Keys = {}
        self._agenda: list[tuple[int, FlowKey]] = []  # a heap; some are outdated
        self._due = 0  # flows that are due some time
        # Flows that found no room here, the last ones, for show: they have no record.
        self.overflowed: OrderedDict[FlowKey, Flow] = OrderedDict()
        # Sockets of flows that the policy leaves alone and that have ended: the observer still
        # knows them.
        self.left_behind: set[int] = set()

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Flow]:
        """Every flow; the table must not change meanwhile."""
        return (flow for flow in self._slots if flow is not None)

    def slots(self) -> Sequence[Flow | None]:
        """The live table by slot, for reading a page at a time."""
        return self._slots

    def get(self, key: FlowKey) -> Flow | None:
        record = self._records.get(key)
        return None if record is None else self._slots[record.slot]

    def record(self, key: FlowKey) -> FlowRecord | None:
        """What is known beside the flow. None: there is no entry."""
        return self._records.get(key)

    def generation(self, key: FlowKey) -> int:
        """The generation of an entry: it changes as soon as the entry belongs to another socket, or
        is `outdated`. What was decided before then no longer counts. 0: there is no entry."""
        record = self._records.get(key)
        return 0 if record is None else record.generation

    def outdate(self, key: FlowKey) -> None:
        """What was decided for an entry, and is not written yet, no longer counts."""
        self._begun += 1
        self._records[key].generation = self._begun

    def full(self) -> bool:
        """No room for a newcomer."""
        return len(self) >= self.capacity

    def others(self, keys: Set[FlowKey]) -> list[FlowKey]:
        """The entries that are not among these."""
        return [key for key in self._records if key not in keys]

    def cookies(self) -> KeysView[int]:
        """The sockets of all entries."""
        return self._cookies.keys()

    def put(self, flow: Flow) -> None:
        """Add or replace; for a new key, the caller has asked `full` first."""
        record = self._records.get(flow.key)
        if record is None:
            self._begun += 1
            self._records[flow.key] = FlowRecord(self._slots.add(flow), self._begun)
            self.overflowed.pop(flow.key, None)
            self._used_by(flow)
            self._count(flow, 1)
            if flow.key.listens:
                self._ports[flow.key] = None
            return
        old = self._slots[record.slot]
        assert old is not None
        if old.nic != flow.nic:
            self._forget(flow.key)
        self._slots.replace(record.slot, flow)
        if old.cookie != flow.cookie and not flow.key.listens:
            self.outdate(flow.key)
            self._has_left(flow.key, record, old.cookie)
            self.close(flow.key, False)
        if old.cookie != flow.cookie or old.thread != flow.thread:
            self._not_used_by(old)
            self._used_by(flow)
        if not _counted_alike(old, flow):
            self._count(old, -1)
            self._count(flow, 1)
            self._end_of(old.nic)

    def remove(self, key: FlowKey) -> None:
        """Forget a flow; KeyError when it is not here."""
        record = self._records[key]
        flow = self._slots[record.slot]
        assert flow is not None
        self._forget(key)
        self._has_left(key, record, flow.cookie)
        self._count(flow, -1)
        self._end_of(flow.nic)
        self._not_used_by(flow)
        self._ports.pop(key, None)
        self._slots.drop(record.slot)
        del self._records[key]

    def _end_of(self, nic: str) -> None:
        """If that was the last flow of a NIC, its indexes end."""
        if not self._nics[nic].flows:
            del self._nics[nic]

    def _forget(self, key: FlowKey) -> None:
        """What is remembered of a flow ends: take it out of the indexes."""
        self.note(key, _NOTHING)
        self.defer(key, None)
        self.answered(key)
        self.gives(key, None)
        self.promise(key, False)
        self.writes(key, None)
        self.hash(key, None)
        self.plan(key, False)
        record = self._records[key]
        if record.pending is not _NONE_PENDING:  # figures of this NIC
            own = record.own()
            own.weight = own.rss = None
            record.done()

    # ---- what is remembered of a flow, until its entry ends

    def noted(self, key: FlowKey) -> FlowNotes:
        """What is remembered of a flow."""
        record = self._records.get(key)
        return _NOTHING if record is None else record.notes

    def note(self, key: FlowKey, notes: FlowNotes) -> None:
        """Remember this until the flow's entry ends, whichever socket it comes to belong to.
        Nothing is remembered of a flow without an entry."""
        if (record := self._records.get(key)) is None:
            return
        if notes == _NOTHING:
            record.notes = _NOTHING
            self._noted.pop(key, None)
        else:
            record.notes = notes
            self._noted[key] = None

    def notes(self) -> Mapping[FlowKey, FlowNotes]:
        """Of all flows that have some."""
        return {key: self._records[key].notes for key in self._noted}

    def due_ns(self, key: FlowKey) -> int | None:
        """When to look at a flow again. None: there is no need to."""
        record = self._records.get(key)
        return None if record is None else record.due_ns

    def defer(self, key: FlowKey, at_ns: int | None) -> None:
        """Look at this flow again, not before `at_ns`; None: there is no need to."""
        record = self._records.get(key)
        if record is None or record.due_ns == at_ns:
            return
        self._due += (at_ns is not None) - (record.due_ns is not None)
        record.due_ns = at_ns
        if at_ns is not None:
            heapq.heappush(self._agenda, (at_ns, key))
        if not self._due:
            self._agenda.clear()
        elif len(self._agenda) > 2 * self._due + _OUTDATED:
            self._agenda = [each for each in self._agenda if self._is_due(*each)]
            heapq.heapify(self._agenda)

    def _is_due(self, at_ns: int, key: FlowKey) -> bool:
        return self.due_ns(key) == at_ns

    def deferred(self) -> dict[FlowKey, int]:
        """When each deferred flow is due."""
        return {key: at_ns for at_ns, key in self._agenda if self._is_due(at_ns, key)}

    def next_due_ns(self) -> int | None:
        """When the first deferred flow is due."""
        while self._agenda and not self._is_due(*self._agenda[0]):
            heapq.heappop(self._agenda)
        return self._agenda[0][0] if self._agenda else None

    def take_due(self, now_ns: int) -> list[FlowKey]:
        """The flows that are due; they are no longer deferred."""
        keys = []
        while (at_ns := self.next_due_ns()) is not None and at_ns <= now_ns:
            _, key = heapq.heappop(self._agenda)
            self.defer(key, None)
            keys.append(key)
        return keys

    def ask(self, action: Action) -> None:
        """The filter of an entry is to be written; another write that was asked for is
        outdated."""
        record = None if action.key is None else self._records.get(action.key)
        if record is None or action.key is None:
            return
        self.answered(action.key)
        record.own().asked = action
        self._asked(action.kind, self._of(action.key))[action.key] = action
        if action.kind is ActionKind.INSERT:
            self.promise(action.key, False)

    def asked(self, key: FlowKey) -> Action | None:
        """The write of its filter that was asked for and not answered."""
        record = self._records.get(key)
        return None if record is None else record.pending.asked

    def answered(self, key: FlowKey) -> None:
        """No write of its filter is asked for any more."""
        record = self._records.get(key)
        if record is not None and record.pending.asked is not None:
            del self._asked(record.pending.asked.kind, self._of(key))[key]
            record.own().asked = None
            record.done()

    def inserting(self, nic: str) -> Mapping[FlowKey, Action]:
        """The filters to be inserted into a NIC that were asked for and not answered."""
        return self._nics.get(nic, _NO_NIC).inserting

    def rewriting(self, nic: str) -> Mapping[FlowKey, Action]:
        """The same of filters to be rewritten."""
        return self._nics.get(nic, _NO_NIC).rewriting

    def gives(self, key: FlowKey, swap: tuple[FlowKey | None] | None) -> None:
        """The filter of an entry is to go, to this flow (or to none); None: it stays."""
        record = self._records.get(key)
        if record is not None and record.pending.swap != swap:
            record.own().swap = swap
            record.done()
            if swap is None:
                del self._of(key).swaps[key]
            else:
                self._of(key).swaps[key] = swap[0]

    def swaps(self, nic: str) -> Mapping[FlowKey, FlowKey | None]:
        """The entries of a NIC whose filter is to go, and to which flow."""
        return self._nics.get(nic, _NO_NIC).swaps

    def promise(self, key: FlowKey, promised: bool) -> None:
        """A slot of the NIC was cleared for this flow, or no longer is."""
        record = self._records.get(key)
        if record is not None and record.pending.promised != promised:
            record.own().promised = promised
            record.done()
            _mark(self._of(key).promised, key, promised)

    def promised(self, nic: str) -> Collection[FlowKey]:
        """The flows of a NIC for which a slot was cleared."""
        return self._nics.get(nic, _NO_NIC).promised

    def writes(self, key: FlowKey, writing: Writing | None) -> None:
        """The first filter of an entry is being written, or no longer is."""
        record = self._records.get(key)
        if record is not None and record.pending.writing is not writing:
            record.own().writing = writing
            record.done()
            _mark(self._writing, key, writing is not None)

    def writing(self, why: Writing) -> list[FlowKey]:
        """The entries whose first filter is being written."""
        return [key for key in self._writing if self._records[key].pending.writing is why]

    def leave(self, key: FlowKey) -> None:
        """The policy leaves this flow alone: its filter is to go."""
        if (record := self._records.get(key)) is not None:
            record.own().leaves = True
            self._leaving[key] = None

    def stay(self) -> set[FlowKey]:
        """No flow is to go any more. Returns those that were."""
        were = {*self._leaving}
        for key in were:
            self._records[key].own().leaves = False
            self._records[key].done()
        self._leaving.clear()
        return were

    def leaving(self) -> Collection[FlowKey]:
        """The flows that the policy leaves alone and that have an entry."""
        return self._leaving

    def _has_left(self, key: FlowKey, record: FlowRecord, cookie: int) -> None:
        """The socket of a flow that was to go has ended, or its entry."""
        if record.pending.leaves:
            record.own().leaves = False
            record.done()
            del self._leaving[key]
            self.left_behind.add(cookie)

    def close(self, key: FlowKey, closed: bool) -> None:
        """The socket of this flow was closed, or is used again (a TCP socket can connect again)."""
        record = self._records.get(key)
        if record is not None and record.pending.closed is not closed:
            record.own().closed = closed
            record.done()

    def is_closed(self, key: FlowKey) -> bool:
        """Its socket was closed, and its entry waits for the delete of its filter."""
        record = self._records.get(key)
        return record is not None and record.pending.closed

    def hash(self, key: FlowKey, hashed: Hashed | None) -> None:
        """A flow hashes to this entry of the indirection table. None: that is not known."""
        record = self._records.get(key)
        if record is None:
            return
        old = record.pending.hashed
        if old is hashed:
            return
        record.own().hashed = hashed
        record.done()
        if old is not None:
            _sort(self._of(key).hashed, old.entry, key, False)
        if hashed is not None:
            _sort(self._of(key).hashed, hashed.entry, key, True)

    def hashed(self, nic: str) -> Mapping[int | None, Collection[FlowKey]]:
        """The flows of a NIC by their entry of the indirection table, as far as that is known."""
        return self._nics.get(nic, _NO_NIC).hashed

    def plan(self, key: FlowKey, planned: bool) -> None:
        """Look at the entry of this flow in the next plan, or no more."""
        record = self._records.get(key)
        if record is not None and record.pending.planned != planned:
            record.own().planned = planned
            record.done()
            _mark(self._of(key).planned, key, planned)

    def planned(self, nic: str) -> Collection[FlowKey]:
        """The flows whose entry is looked at in the next plan."""
        return self._nics.get(nic, _NO_NIC).planned

    def remembered(self, nic: str) -> dict[FlowKey, FlowRecord]:
        """A copy of the records of a NIC's flows, where they say more than that there is one."""
        of = self._nics.get(nic, _NO_NIC)
        some = (
            *self._noted, *self._leaving, *of.inserting, *of.rewriting, *of.swaps, *of.promised,
            *of.planned, *(key for keys in of.hashed.values() for key in keys),
            *(of.steered if of.waiting else ()), *of.waiting,
        )  # fmt: skip
        known = {key: self._records[key] for key in some}
        return {key: replace(each, pending=replace(each.pending)) for key, each in known.items()}

    def remember(self, key: FlowKey, before: FlowRecord) -> None:
        """Take over what a record of another table says of this entry."""
        self.note(key, FlowNotes(dropped=before.notes.dropped))
        if before.pending.asked is not None:
            self.ask(before.pending.asked)
        self.gives(key, before.pending.swap)
        self.promise(key, before.pending.promised)
        self.hash(key, before.pending.hashed)
        self.plan(key, before.pending.planned)
        if before.pending.leaves:
            self.leave(key)
        record = self._records[key]
        if before.pending.weight is not None:
            record.own().weight = before.pending.weight

    # ---- indexes

    def _of(self, key: FlowKey) -> _OfNic:
        """The indexes of an entry's NIC."""
        flow = self._slots[self._records[key].slot]
        assert flow is not None
        return self._nics[flow.nic]

    def _asked(self, kind: ActionKind, of: _OfNic) -> dict[FlowKey, Action]:
        return of.inserting if kind is ActionKind.INSERT else of.rewriting

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

    def filters_on(self, nic: str, queue: int) -> int:
        """How many of our filters point to this queue."""
        return len(self._nics.get(nic, _NO_NIC).led_to.get(queue, ()))

    def filters_in(self, nic: str) -> int:
        """How many filters this NIC holds for us."""
        return self._nics.get(nic, _NO_NIC).count

    def filters_of(self, nic: str) -> Mapping[Tenant, Collection[FlowKey]]:
        """The flows with a filter of their own in this NIC, and ports with one, by tenant: kept,
        not counted."""
        return self._nics.get(nic, _NO_NIC).filters

    def filters_under(self, nic: str, rule: str) -> Collection[FlowKey]:
        """The same, of one rule of the policy."""
        return self._nics.get(nic, _NO_NIC).under.get(rule, ())

    def ports_held(self, nic: str, tenant: Tenant) -> int:
        """How many ports of a tenant have a filter in this NIC, or are about to get one."""
        return self._nics.get(nic, _NO_NIC).listens[tenant]

    def bare_of(self, tenant: Tenant) -> Collection[FlowKey]:
        """The flows of a tenant that have no filter of their own."""
        return self._bare.get(tenant, ())

    def waiting(self, nic: str) -> list[Flow]:
        """The flows of a NIC that found no filter left."""
        return self._flows(self._nics.get(nic, _NO_NIC).waiting)

    def led(self, nic: str) -> list[Flow]:
        """The flows of a NIC without a filter of their own that their port's filter leads."""
        return self._flows(self._nics.get(nic, _NO_NIC).led)

    def astray(self) -> list[Flow]:
        """The flows that were last seen on another queue than that of their filter."""
        return [flow for of in self._nics.values() for flow in self._flows(of.astray)]

    def led_to(self, nic: str, queue: int) -> list[Flow]:
        """The flows and ports whose filter points to this queue."""
        return self._flows(self._nics.get(nic, _NO_NIC).led_to.get(queue, ()))

    def aimless(self, nic: str) -> list[Flow]:
        """The flows of a NIC that have no filter, or no CPU that they should come to."""
        return self._flows(self._nics.get(nic, _NO_NIC).aimless)

    def adopted(self, nic: str) -> list[Flow]:
        """The flows of a NIC whose filter is of an earlier run."""
        return self._flows(self._nics.get(nic, _NO_NIC).adopted)

    def steered(self, nic: str) -> list[Flow]:
        """Flows with a filter in this NIC."""
        return self._flows(self._nics.get(nic, _NO_NIC).steered)

    def _flows(self, keys: Iterable[FlowKey]) -> list[Flow]:
        return [flow for key in keys if (flow := self.get(key)) is not None]

    def covering(self, key: FlowKey) -> Flow | None:
        """The entry of the port whose filter delivers a flow without one of its own: the flow comes
        through the queue of that filter, not through that of RSS."""
        return next((each for each in self.ports_of(key) if each.location is not None), None)

    def ports(self, nic: str) -> list[Flow]:
        """The entries of ports, with a filter or without one yet."""
        return [entry for entry in self.every_port() if entry.nic == nic]

    def every_port(self) -> list[Flow]:
        """The same, of all NICs."""
        return self._flows(self._ports)

    def ports_of(self, key: FlowKey) -> list[Flow]:
        """The entries of ports that a connection belongs to, with a filter or without one yet."""
        if not self._ports or key.protocol != Protocol.TCP or key.listens:
            return []
        anyone = bytes(len(key.remote))
        local = dict.fromkeys((key.local, anyone))
        return self._flows(key._replace(local=each, remote=anyone, remote_port=0) for each in local)

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

    def _used_by(self, flow: Flow) -> None:
        known = self.keys_of(flow.cookie)
        self._cookies[flow.cookie] = (*known, flow.key) if known else flow.key
        if flow.thread is not None:
            self._threads.setdefault(flow.thread.tid, {})[flow.key] = None

    def _not_used_by(self, flow: Flow) -> None:
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
        key, filtered, here = flow.key, flow.location is not None, change > 0
        of = self._nics.get(flow.nic)
        if of is None:
            of = self._nics[flow.nic] = _OfNic()
        of.flows += change
        _add(self._stand, (flow.nic, flow.state, flow.rule_name), change)
        if filtered:
            _mark(of.steered, key, here)
            if flow.target_queue is not None:
                of.count += change
                _sort(of.led_to, flow.target_queue, key, here)
            if _astray(flow):
                _mark(of.astray, key, here)
            if not flow.rule_name:
                _mark(of.adopted, key, here)
            _sort(of.under, flow.rule_name, key, here)
        elif waits(flow):
            _mark(of.waiting, key, here)
        if flow.state is FlowState.PORT:
            _mark(of.led, key, here)
        if not filtered or flow.target_cpu is None:
            _mark(of.aimless, key, here)
        if key.listens:
            for tenant in whose(flow):
                _add(of.listens, tenant, change)
            if filtered:
                _belongs(flow, of.filters, here)
        else:
            _belongs(flow, of.filters if filtered else self._bare, here)
            for tenant in whose(flow):
                _add(self.entries, tenant, change)


def _mark(index: _Keys, key: FlowKey, here: bool) -> None:
    if here:
        index[key] = None
    else:
        index.pop(key, None)


def _sort(index: dict[_Counted, _Keys], of: _Counted, key: FlowKey, here: bool) -> None:
    """No part of the index stays empty."""
    if here:
        index.setdefault(of, {})[key] = None
        return
    del index[of][key]
    if not index[of]:
        del index[of]


def _add(counts: Counter[_Counted], of: _Counted, change: int) -> None:
    """No count stays at zero."""
    counts[of] += change
    if not counts[of]:
        del counts[of]


def _belongs(flow: Flow, to: dict[Tenant, _Keys], here: bool) -> None:
    for tenant in whose(flow):
        if here:
            to.setdefault(tenant, {})[flow.key] = None
            continue
        to[tenant].pop(flow.key, None)
        if not to[tenant]:
            del to[tenant]
