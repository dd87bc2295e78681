# SPDX-License-Identifier: GPL-2.0-or-later
"""A real NIC's filters: insert, move, delete, list, whatever the driver's own way is.

Reads and writes through `kernel.ethtool.rxnfc`. The kernel does not record which program wrote a
filter, and on some drivers an insert at a used location overwrites: so a location is looked at
before it is taken. Between the look and the insert an admin could still take it; the kernel has no
better call.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import TypeVar

from atfnd.errors import refusable
from atfnd.kernel.ethtool.rxnfc import Rxnfc
from atfnd.model import Filter, Match
from atfnd.nic.drivers import Capacity, Driver, Overwrite
from atfnd.nic.location import choose, is_wide

__all__ = ["EthtoolNtuple"]

_PATIENCE_S = (0.001, 0.002, 0.004, 0.008, 0.016)

T = TypeVar("T")


class EthtoolNtuple:
    """The filters of one NIC, errors as in `nic.Nic`. Keeps only which locations were free."""

    def __init__(
        self, rxnfc: Rxnfc, driver: Driver, ntuple_fixed: Callable[[], bool] = lambda: False
    ) -> None:
        """`ntuple_fixed`: the feature ntuple-filters cannot be switched."""
        self.rxnfc, self.ntuple_fixed = rxnfc, ntuple_fixed
        self.driver = driver
        self.overwrite = driver.overwrite  # the probe may know better
        self.asynchronous = driver.asynchronous  # this too
        self._location_any: bool | None = None
        self._free = self._size = 0  # one bit per location; each is looked at before use
        self._matches: dict[int, Match | None] = {}  # of a NIC that replaces by match

    @property
    def nic(self) -> str:
        """The interface's name, for messages."""
        return self.rxnfc.name

    def location_any(self) -> bool:
        """The NIC chooses locations itself: only one that reports this is asked to. The probe may
        find that it does not."""
        if self._location_any is None:
            self._location_any = self.rxnfc.count().location_any
        return self._location_any

    def slots(self) -> int | None:
        """How many filters it takes in all; None: it does not say."""
        size = 0
        if self.driver.capacity is Capacity.COUNT:
            count = self.rxnfc.count()
            size = count.size
            if not size and count.location_any and not self.location_any():
                size = self.rxnfc.locations()[1]
        elif self.driver.capacity is Capacity.LIST:
            size = self.rxnfc.locations()[1]
        return size or self.driver.slots

    def list(self) -> list[Filter]:
        """Every filter, ours or not, in location order."""
        found = (self.rxnfc.filter(location) for location in sorted(self.rxnfc.locations()[0]))
        return [each for each in found if each is not None]  # one may be gone since it was listed

    def filter(self, location: int) -> Filter | None:
        return self.rxnfc.filter(location)

    def insert(self, match: Match, queue: int, location: int | None = None) -> int:
        """As `Nic.insert`. `filter` reads what a failed move left."""
        if location is not None:
            return self._move(match, queue, location)
        if self.location_any():
            if self.overwrite in (Overwrite.BY_MATCH, Overwrite.TRY):
                self._refuse_known(match)
            return self._insert_anywhere(match, queue)
        location = self._free_location(is_wide(match))
        try:
            return self.rxnfc.insert(match, queue, location)
        except OSError:
            self._free |= 1 << location
            raise

    def insert_chosen(self, match: Match, queue: int) -> int:
        """Insert where we choose, although the NIC says that it chooses. Once it has taken that, we
        choose for good. OSError: it has not; EINVAL also where it does not say its size."""
        self._location_any = False
        try:
            if not self.slots():
                raise OSError(errno.EINVAL, "it does not say how many locations it has")
            return self.insert(match, queue)
        except OSError:
            self._location_any = True
            raise

    def _insert_anywhere(self, match: Match, queue: int) -> int:
        try:
            location = self.rxnfc.insert(match, queue, None)
        except OSError as error:
            if error.errno == self.driver.full_errno:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            raise
        self._matches[location] = match
        return location

    def delete(self, location: int) -> None:
        """OSError(ENOENT) when no filter is there, whatever the driver says for it."""
        try:
            self.patiently(lambda: self.rxnfc.delete(location))
        except OSError as error:
            if error.errno == errno.EINVAL and self.filter(location) is None:
                raise OSError(errno.ENOENT, f"no filter at location {location}") from error
            raise
        self._matches.pop(location, None)
        if not self.location_any():
            self._free |= 1 << location

    def patiently(self, call: Callable[[], T]) -> T:
        """Call again while an asynchronous driver is busy with what it accepted before: 31 ms at
        most. OSError(EBUSY, EAGAIN) after that; any other driver raises at once."""
        for pause_s in _PATIENCE_S if self.asynchronous else ():
            with refusable(errno.EBUSY, errno.EAGAIN):
                return call()
            time.sleep(pause_s)
        return call()

    def close(self) -> None:
        self.rxnfc.close()

    def _move(self, match: Match, queue: int, location: int) -> int:
        """Another queue for the filter at `location`."""
        there = self.filter(location)
        if there is None:
            raise OSError(errno.ENOENT, f"no filter at location {location}")
        if there.match != match:
            raise OSError(errno.EEXIST, f"location {location} holds another filter")
        # A filter that has this queue is written anew: the NIC may only list it (and ice answers
        # EINVAL).
        if self.overwrite is not Overwrite.REFUSED and there.queue != queue:
            try:
                return self._overwrite(match, queue, location)
            except OSError as error:
                if self.overwrite is not Overwrite.TRY or error.errno != errno.EEXIST:
                    raise
        place = None if self.location_any() else location
        self.delete(location)
        return self.patiently(lambda: self.rxnfc.insert(match, queue, place))

    def _overwrite(self, match: Match, queue: int, location: int) -> int:
        if not self.location_any():
            return self.rxnfc.insert(match, queue, location)
        moved = self._insert_anywhere(match, queue)
        if moved != location:  # now it has both
            self.delete(location)
        return moved

    def _free_location(self, wide: bool) -> int:
        for looked in (False, True):
            if looked:
                self._look_for_free()
            while True:
                location = choose(self._free, self._size, wide, self._is_wide)
                if location is None:
                    break
                self._free &= ~(1 << location)
                if self.filter(location) is None:
                    return location
        raise OSError(errno.ENOSPC, f"no location of {self.slots()} is free for it")

    def _is_wide(self, location: int) -> bool | None:
        """The filter there is for many flows; None: it is not of our kind, or gone."""
        there = self.filter(location)
        return None if there is None or there.match is None else is_wide(there.match)

    def _look_for_free(self) -> None:
        used, self._size = self.rxnfc.locations()[0], self.slots() or 0
        self._free = (1 << self._size) - 1
        for location in used:
            self._free &= ~(1 << location)

    def _refuse_known(self, match: Match) -> None:
        """OSError(EEXIST) before an insert that would silently replace a filter of this match."""
        known, there = self._matches, set(self.rxnfc.locations()[0])
        for location in known.keys() - there:
            del known[location]
        # A location may have been reused since it was read.
        suspect = [location for location, held in known.items() if held == match]
        for location in [*(there - known.keys()), *suspect]:
            found = self.filter(location)
            known[location] = found.match if found is not None else None
            if known[location] == match:
                raise OSError(errno.EEXIST, f"location {location} has this match")
