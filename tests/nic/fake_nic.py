# SPDX-License-Identifier: GPL-2.0-or-later
"""A NIC in memory, for pure tests of what writes to one: it refuses what it is ordered to refuse.

It implements `nic.Nic`. Rules, queue CPUs and settings are kept as a real NIC keeps them; every
call that writes is noted in `calls`. `refuse` orders the answer of the next calls of one name;
`loses`, `does_it_anyway` and `elsewhere` are what drivers do when they are asked to rewrite a rule.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any

from atfnd.kernel.interface import Interface
from atfnd.model import Actuator, Caps, Conflict, Device, Filter, Match, NicStats, Queue, Rss
from atfnd.nic import Claims

__all__ = ["FakeNic"]

CAPS = Caps("fake", True, 64, True, False, True, True, Actuator.IN_PLACE)


class FakeNic:
    """`slots` locations, `queues` queues, one CPU each."""

    netns: str | None = None

    def __init__(
        self, name: str = "nic", queues: int = 4, slots: int = 64, ifindex: int = 1
    ) -> None:
        self.name, self.ifindex, self.slots = name, ifindex, slots
        self.table: dict[int, Filter] = {}
        self.cpus = list(range(queues))
        self.values = {f"queue-cpu:{queue}": str(queue) for queue in range(queues)}
        self.table_of_rss = Rss(bytes(40), tuple(range(queues)) * 4)
        self.calls: list[tuple[Any, ...]] = []
        self.loses = False  # a refused rewrite has taken the rule out
        self.does_it_anyway = False  # a refused insert or rewrite has been done
        self.elsewhere: int | None = None  # a rewrite comes to this location
        self.is_up = self.is_open = True
        self._refusals: defaultdict[str, deque[int]] = defaultdict(deque)

    def refuse(self, call: str, *codes: int) -> None:
        """The next calls of this name raise these errnos, one each; 0: that call is answered."""
        self._refusals[call] += codes

    def put(self, location: int, match: Match | None, queue: int | None) -> Filter:
        """Another program writes a filter, over whatever is there."""
        self.table[location] = Filter(location, match, queue, other=None if match else "drop")
        return self.table[location]

    def _refused(self, call: str) -> int:
        return self._refusals[call].popleft() if self._refusals[call] else 0

    def _asked(self, call: str) -> None:
        if code := self._refused(call):
            raise OSError(code, os.strerror(code))

    @property
    def interface(self) -> Interface:
        raise OSError(errno.ENODEV, "nothing receives packets here")

    def caps(self) -> Caps:
        return CAPS

    def probe(self, claims: Claims | None = None) -> Caps:
        return CAPS

    def device(self) -> Device:
        return Device(driver="fake", channels=len(self.cpus))

    def conflicts(self) -> tuple[Conflict, ...]:
        return ()

    def up(self) -> bool:
        return self.is_up

    def queues(self) -> tuple[Queue, ...]:
        self._asked("queues")
        return tuple(Queue(i, 100 + i, None, cpu, True, None) for i, cpu in enumerate(self.cpus))

    def set_queue_cpu(self, index: int, cpu: int) -> None:
        self.write_setting(f"queue-cpu:{index}", str(cpu))

    def filters(self) -> list[Filter]:
        self._asked("filters")
        return [rule for _, rule in sorted(self.table.items())]

    def filter(self, location: int) -> Filter | None:
        self._asked("filter")
        return self.table.get(location)

    def insert(self, match: Match, queue: int, location: int | None = None) -> int:
        self.calls.append(("insert", match, queue, location))
        rewritten = None if location is None else self.table.get(location)
        if location is not None and rewritten is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        if rewritten is not None and rewritten.match != match:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
        code = self._refused("insert")
        if code and location is not None and self.loses:
            del self.table[location]
        if code and not self.does_it_anyway:
            raise OSError(code, os.strerror(code))
        if queue >= len(self.cpus):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        at = location if location is not None else self._free()
        if location is not None and self.elsewhere is not None:
            del self.table[location]
            at = self.elsewhere
        self.table[at] = Filter(at, match, queue)
        if code:
            raise OSError(code, os.strerror(code))
        return at

    def _free(self) -> int:
        for location in reversed(range(self.slots)):
            if location not in self.table:
                return location
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def delete(self, location: int) -> None:
        self.calls.append(("delete", location))
        self._asked("delete")
        if location not in self.table:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        del self.table[location]

    def rss(self) -> Rss | None:
        return self.table_of_rss

    def set_rss(self, rss: Rss) -> None:
        self.calls.append(("set_rss", rss))
        self._asked("set_rss")
        self.table_of_rss = rss

    def settings(self) -> Mapping[str, str]:
        self._asked("settings")
        return dict(self.values)

    def setting(self, name: str) -> str | None:
        self._asked("setting")
        return self.values.get(name)

    def write_setting(self, name: str, value: str) -> None:
        self.calls.append(("write_setting", name, value))
        self._asked("write_setting")
        if name not in self.values:
            raise KeyError(name)
        self.values[name] = value
        if name.startswith("queue-cpu:"):
            self.cpus[int(name.partition(":")[2])] = int(value)

    def ring_size(self) -> int | None:
        return 256

    def stats(self) -> NicStats:
        return NicStats((), None)

    def close(self) -> None:
        self.is_open = False
