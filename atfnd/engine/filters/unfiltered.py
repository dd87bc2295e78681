# SPDX-License-Identifier: GPL-2.0-or-later
"""Flows without a filter of their own: which of them a filter for many would catch. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from atfnd.engine.filters import aggregate, budget
from atfnd.engine.table.memory import Memory
from atfnd.engine.table.wide_key import bits, covers, overlap
from atfnd.model import Flow, FlowKey, NicView, Protocol, SocketUse, network_of

__all__ = ["Unfiltered"]


class _Socket(NamedTuple):
    """Flows that a prefix filter would catch, and that should go to `queue` (None: to none)."""

    key: FlowKey
    queue: int | None
    policy: str | None  # None: that of whatever is there


class Unfiltered:
    """All flows that have no filter of their own."""

    def __init__(self, nic: NicView, uses: Sequence[SocketUse], memory: Memory) -> None:
        queues = {queue.napi_id: queue.index for queue in nic.queues if queue.napi_id is not None}
        known = {use.key for use in uses}
        others = (f for f in memory.table if f.nic == nic.name and f.key not in known)
        found = (_of_use(use, queues, nic, memory) for use in uses)
        unborn = (_of_flow(flow, None, nic, memory) for flow in others if not flow.key.wide)
        self._whole: defaultdict[tuple[int, int], list[_Socket]] = defaultdict(list)
        self._open: list[_Socket] = []  # to whatever remote
        for each in chain(found, unborn):
            if each is None:
                continue
            if each.key.remote_port:
                self._whole[each.key.protocol, each.key.family].append(each)
            else:
                self._open.append(each)
        for some in self._whole.values():
            some.sort(key=lambda each: each.key.remote)

    def overlapping(self, wide: FlowKey) -> Iterator[_Socket]:
        """Those whose packets a filter for this prefix would catch."""
        some = self._whole.get((wide.protocol, wide.family), [])
        prefix, first = bits(wide), wide.remote
        at = bisect_left(some, first, key=lambda each: each.key.remote) if prefix else 0
        for each in some[at:]:
            if prefix and network_of(each.key.remote, prefix) != first:
                break
            if covers(wide, each.key):
                yield each
        yield from (each for each in self._open if overlap(wide, each.key))


def _of_use(use: SocketUse, queues: dict[int, int], nic: NicView, memory: Memory) -> _Socket | None:
    at = None if use.napi_id is None else queues.get(use.napi_id)
    flow = memory.table.get(use.key)
    return _Socket(use.key, at, None) if flow is None else _of_flow(flow, at, nic, memory)


def _of_flow(flow: Flow, at: int | None, nic: NicView, memory: Memory) -> _Socket | None:
    """None: its own filter wins, as it names a whole 5-tuple."""
    if flow.location is not None:
        open_end = flow.key.protocol == Protocol.UDP and not flow.key.remote_port
        return _Socket(flow.key, flow.target_queue, flow.rule_name) if open_end else None
    if budget.waits(flow):
        at = aggregate.belongs(flow, nic, memory)
    return _Socket(flow.key, at, flow.rule_name)
