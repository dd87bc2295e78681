# SPDX-License-Identifier: GPL-2.0-or-later
"""A driver's filter table, as each row of `atfnd.nic.driver_table` says that it behaves.

It answers what `kernel.ethtool.rxnfc.Rxnfc` asks, so the real `nic.ethtool.filters.Ntuple` drives
it. Each entry knows who wrote it, which no real NIC does: that is how a filter of another program
that atfnd deletes is seen.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from atfnd.kernel.ethtool.rxnfc import RxnfcCount
from atfnd.model import Actuator, Filter, Match
from atfnd.nic.drivers import Driver, Masks, Overwrite, Placing
from tests.simulation.world import World

__all__ = ["FOREIGN", "OURS", "Door", "Entry", "Refusal", "Table", "refused"]

OURS, FOREIGN = "atfnd", "another program"
WRITE_NS = 10_000
SHORT_NS, LONG_NS = (1_000, 8_000), (100_000, 300_000)
LATE_NS = 100_000, 5_000_000  # until an accepted filter of an asynchronous driver takes effect


class Refusal(NamedTuple):
    """The answer to a write that is to come."""

    errno: int
    done: bool = False  # it is done nevertheless
    loses: bool = False  # and the filter that was to be changed is gone


@dataclass(slots=True)
class Entry:
    """One filter in the NIC."""

    location: int
    match: Match | None
    queue: int | None
    owner: str
    by: object  # what it was written for
    effective: bool = True
    seen: tuple[Match | None, int | None] | None = None  # when atfnd last read it


def refused(code: int, what: str = "") -> OSError:
    return OSError(code, what or os.strerror(code))


def _fields(match: Match) -> tuple[int, int, bool, bool]:
    return match.src_prefix, match.dst_prefix, match.src_port is None, match.dst_port is None


class Table:
    """The entries of one NIC. `changed` is called with the match and the author of each change."""

    def __init__(
        self,
        world: World,
        driver: Driver,
        slots: int,
        rings: Callable[[], int],
        changed: Callable[[Match, object], None],
    ) -> None:
        self.world, self.driver, self.slots = world, driver, slots
        self.rings, self.changed = rings, changed
        self.entries: dict[int, Entry] = {}
        self.written: list[Entry] = []  # since the run last looked
        self._exact: dict[Match, list[Entry]] = {}
        self.wide: list[Entry] = []
        self.present = self.up = self.ntuple = True
        self.refusals: deque[Refusal] = deque()
        self.unread: deque[int] = deque()  # errnos of lists of its filters to come
        self.says_any = driver.placing is Placing.DRIVER  # that it chooses locations
        self.says_size = True  # with the number of its filters; else with their list
        self.complaints = 0  # lines of the kernel's log: filters refused for what they are
        self.drops = 0  # so many accepted filters to come are dropped (asynchronous drivers)
        self.slow_ns = 0  # more for each write
        self.overwrite = driver.overwrite
        if self.overwrite is Overwrite.TRY:  # the device's choice
            choices = [Overwrite.IN_PLACE, Overwrite.GAP, Overwrite.REFUSED]
            self.overwrite = world.random.choice(choices)

    def queue_of(self, match: Match) -> tuple[int, object] | None:
        """The queue that a filter gives a flow of this 5-tuple, and for what it was written. The
        lowest location wins; where the driver places, the narrower one."""
        best: Entry | None = None
        for entry in self._exact.get(match, ()):
            if entry.effective and (best is None or entry.location < best.location):
                best = entry
        exact_wins = best is not None and self.driver.placing is Placing.DRIVER
        for entry in () if exact_wins else self.wide:
            lower = best is None or entry.location < best.location
            if lower and entry.effective and _takes(entry, match):
                best = entry
        return None if best is None or best.queue is None else (best.queue, best.by)

    def put(self, entry: Entry) -> None:
        """Without time, at once."""
        self.entries[entry.location] = entry
        self.written.append(entry)
        if entry.match is not None and None not in entry.match:
            self._exact.setdefault(entry.match, []).append(entry)
        else:
            self.wide.append(entry)
        if entry.match is not None and entry.effective:
            self.changed(entry.match, entry.by)

    def take(self, location: int, by: object) -> None:
        entry = self.entries.pop(location)
        if entry.match is not None and None not in entry.match:
            known = self._exact[entry.match]
            known.remove(entry)
            if not known:
                del self._exact[entry.match]
        else:
            self.wide.remove(entry)
        if entry.match is not None and entry.effective:
            self.changed(entry.match, by)

    def clear(self, by: object) -> None:
        """The NIC loses them all."""
        for location in list(self.entries):
            self.take(location, by)

    def of(self, match: Match) -> list[Entry]:
        """The entries of exactly this match."""
        return [e for e in (*self._exact.get(match, ()), *self.wide) if e.match == match]

    def free(self) -> list[int]:
        return [location for location in range(self.slots) if location not in self.entries]


def _takes(entry: Entry, match: Match) -> bool:
    wide = entry.match
    if wide is None or wide.family != match.family:
        return False
    if wide.protocol not in (None, match.protocol):
        return False
    if wide.src_port not in (None, match.src_port) or wide.dst_port not in (None, match.dst_port):
        return False
    return wide.src in (None, match.src) and wide.dst in (None, match.dst)


class Door:
    """The table as one program sees it: `kernel.ethtool.rxnfc.Rxnfc` of a simulated driver."""

    def __init__(self, table: Table, owner: str, name: str) -> None:
        self._table, self._owner, self.name = table, owner, name
        self.by: object = owner  # for what is written now
        self.on_write: Callable[[Match, int], None] | None = None  # before a filter exists
        self.on_tried: Callable[[Match, int], None] | None = None  # an insert that was refused
        self.is_ambiguous: Callable[[tuple[Match, int]], bool] | None = None  # it could be ours

    def close(self) -> None:
        """Nothing is open."""

    def rings(self) -> int:
        return self._table.rings()

    def ntuple_on(self) -> bool:
        return self._table.ntuple

    def count(self) -> RxnfcCount:
        self._asked("count")
        if not self._table.driver.filters:
            raise refused(errno.EOPNOTSUPP)
        table = self._table
        size = table.slots if table.says_size else 0
        return RxnfcCount(len(table.entries), size, table.says_any)

    def locations(self) -> tuple[tuple[int, ...], int]:
        self._asked("locations")
        if self._owner == OURS and self._table.unread:
            raise refused(self._table.unread.popleft())
        return tuple(self._table.entries), self._table.slots

    def filter(self, location: int) -> Filter | None:
        self._asked("filter")
        entry = self._table.entries.get(location)
        if entry is None:
            return None
        if self._owner == OURS:
            entry.seen = entry.match, entry.queue
        return Filter(location, entry.match, entry.queue)

    def insert(self, match: Match, queue: int, location: int | None) -> int:
        table, driver = self._table, self._table.driver
        self._asked("insert")
        refusal = table.refusals.popleft() if self._owner == OURS and table.refusals else None
        try:
            self._check(match, queue, location)
        except OSError:
            table.complaints += 1
            raise
        self._pass(WRITE_NS // 2 + table.slow_ns)
        if refusal is not None and not refusal.done:
            if refusal.loses and location in table.entries and driver.overwrite is Overwrite.GAP:
                self._may_replace(table.entries[location])
                table.take(location, self.by)
            if location not in table.entries and self.on_tried is not None:
                self.on_tried(match, queue)  # the answer does not say whether it is there
            table.world.note(
                f"insert refused {errno.errorcode[refusal.errno]}", "insert is refused"
            )
            raise refused(refusal.errno)
        at = self._place(match, location)
        old = table.entries.get(at)
        if old is not None:
            self._may_replace(old)
        if self.on_write is not None:
            self.on_write(match, queue)
        if old is not None and table.overwrite is Overwrite.GAP:
            table.take(at, self.by)
            short = driver.actuator is Actuator.SHORT_GAP
            self._pass(table.world.random.randrange(*(SHORT_NS if short else LONG_NS)))
            old = table.entries.get(at)  # somebody was quicker
            if old is not None:
                raise refused(errno.EEXIST)
        if old is not None:
            self._replace(old, match, queue)
        else:
            table.put(Entry(at, match, queue, self._owner, self.by, not driver.asynchronous))
            if driver.asynchronous:
                self._take_effect_later(table.entries[at])
        self._pass(table.world.random.randrange(100, WRITE_NS))
        table.world.operation("insert is done") if self._owner == OURS else None
        if refusal is not None:
            raise refused(refusal.errno)
        return at

    def delete(self, location: int) -> None:
        table = self._table
        self._asked("delete")
        refusal = table.refusals.popleft() if self._owner == OURS and table.refusals else None
        if refusal is not None and not refusal.done:
            table.world.note(
                f"delete refused {errno.errorcode[refusal.errno]}", "delete is refused"
            )
            raise refused(refusal.errno)
        self._pass(WRITE_NS // 2 + table.slow_ns)
        entry = table.entries.get(location)
        if entry is None:
            raise refused(
                errno.EINVAL if table.driver.overwrite is Overwrite.IN_PLACE else errno.ENOENT
            )
        self._may_replace(entry)
        table.take(location, self.by)
        self._pass(WRITE_NS // 2)
        if self._owner == OURS:
            table.world.operation("delete is done")
        if refusal is not None:
            raise refused(refusal.errno)

    def _asked(self, what: str) -> None:
        if self._owner == OURS:
            self._table.world.operation(what)
            self._table.world.pass_ns(1_000)
        if not self._table.present:
            raise refused(errno.ENODEV)

    def _pass(self, ns: int) -> None:
        if self._owner == OURS:
            self._table.world.pass_ns(ns)
            if not self._table.present:
                raise refused(errno.ENODEV)

    def _check(self, match: Match, queue: int, location: int | None) -> None:
        table, driver = self._table, self._table.driver
        if not driver.filters:
            raise refused(errno.EOPNOTSUPP)
        if driver.needs_ntuple and not table.ntuple:
            raise refused(errno.EPERM if driver.placing is Placing.DRIVER else errno.EOPNOTSUPP)
        if not table.up and driver.name in ("bnxt_en", "cxgb4", "rvu-nicpf"):
            raise refused(errno.EAGAIN)
        if driver.types and (match.family, match.protocol) not in driver.types:
            raise refused(errno.EINVAL)
        if driver.masks is Masks.EXACT and None in match:
            raise refused(errno.EINVAL)
        if driver.masks in (Masks.ONE, Masks.PER_TYPE):
            kind = (match.family, match.protocol) if driver.masks is Masks.PER_TYPE else ()
            for entry in table.entries.values():
                there = entry.match
                if there is None or (kind and (there.family, there.protocol) != kind):
                    continue
                if there.family == match.family and _fields(there) != _fields(match):
                    raise refused(errno.EINVAL)
        if not 0 <= queue < table.rings():
            raise refused(errno.EINVAL)
        if location is not None and not 0 <= location < table.slots:
            raise refused(errno.EINVAL)
        if (location is None) != (driver.placing is Placing.DRIVER):
            raise refused(errno.EINVAL)

    def _place(self, match: Match, location: int | None) -> int:
        table = self._table
        same = next((e for e in table.entries.values() if e.match == match), None)
        if location is None:
            if same is not None and table.overwrite is Overwrite.BY_MATCH:
                return same.location
            if same is not None and table.overwrite is not Overwrite.ADDED:
                raise refused(errno.EEXIST)
            free = table.free()
            if not free:
                raise refused(table.driver.full_errno)
            return table.world.random.choice(free)
        if location in table.entries:
            if table.overwrite is Overwrite.REFUSED:
                raise refused(errno.EEXIST)
            return location
        if same is not None and table.driver.name not in ("mlx4_en", "mlx5_core"):
            raise refused(errno.EINVAL if table.driver.asynchronous else errno.EEXIST)
        return location

    def _may_replace(self, entry: Entry) -> None:
        """Broken: atfnd writes over a filter that it had seen to be another program's."""
        if self._owner != OURS or entry.owner == OURS:
            return
        now = entry.match, entry.queue
        if entry.seen != now:
            self._table.world.seen["excused: somebody was quicker than a look and a write"] += 1
            return
        match, queue = now
        ask = self.is_ambiguous
        if match is not None and queue is not None and ask is not None and ask((match, queue)):
            self._table.world.seen["excused: cannot be distinguished from ours"] += 1
            return
        self._table.world.broken("foreign filter", f"atfnd replaces {now} at {entry.location}")

    def _replace(self, old: Entry, match: Match, queue: int) -> None:
        """One atomic write."""
        table = self._table
        if old.match == match:
            old.queue, old.owner, old.by, old.seen = queue, self._owner, self.by, None
            table.written.append(old)
            if old.effective:
                table.changed(match, self.by)
            return
        table.take(old.location, self.by)
        table.put(Entry(old.location, match, queue, self._owner, self.by))

    def _take_effect_later(self, entry: Entry) -> None:
        table = self._table
        dropped, table.drops = table.drops > 0, max(0, table.drops - 1)
        table.world.after(table.world.random.randrange(*LATE_NS), self._effect, entry, dropped)

    def _effect(self, entry: Entry, dropped: bool) -> None:
        table = self._table
        if table.entries.get(entry.location) is not entry:
            return
        if dropped:
            table.world.note("dropped filter", f"the NIC drops filter {entry.location} it accepted")
            table.take(entry.location, "the NIC")
            return
        entry.effective = True
        if entry.match is not None:
            table.changed(entry.match, entry.by)
