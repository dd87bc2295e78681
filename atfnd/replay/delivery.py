# SPDX-License-Identifier: GPL-2.0-or-later
"""A NIC as a replay has it: where it delivers a flow. Pure."""

from __future__ import annotations

from dataclasses import replace

from atfnd.engine.table.flow_table import FlowTable
from atfnd.model import FlowKey, NicView, SteeringMethod
from atfnd.model.rss_hash import known_entry

__all__ = ["as_moved", "by_rss", "cpu_of", "delivered", "napi_id_of"]


def as_moved(nic: NicView, before: NicView | None) -> NicView:
    """A NIC that was read again: its queues and settings are as the replay moved them, if these are
    still the same queues."""
    if before is None or _napi_ids(before) != _napi_ids(nic):
        return nic
    return replace(nic, queues=before.queues, rss=before.rss, settings=before.settings)


def _napi_ids(nic: NicView) -> list[int | None]:
    return [queue.napi_id for queue in nic.queues]


def delivered(key: FlowKey, nic: NicView, rss_queue: int | None, table: FlowTable) -> int | None:
    """The queue that rules, else the indirection table, else RSS as recorded deliver a flow by;
    None: not known."""
    flow = table.get(key)
    if flow is not None and flow.location is not None:
        return flow.target_queue
    if (port := table.covering(key)) is not None:
        return port.target_queue
    return by_rss(key, nic, rss_queue)


def by_rss(key: FlowKey, nic: NicView, rss_queue: int | None) -> int | None:
    """The queue without any rule: `rss_queue`, as recorded, unless the table is replayed."""
    if nic.method is SteeringMethod.RSS and nic.rss is not None:
        entry = known_entry(nic, key)
        return rss_queue if entry is None else nic.rss.table[entry]
    return rss_queue


def napi_id_of(nic: NicView, queue: int) -> int | None:
    """Of a queue."""
    return next((each.napi_id for each in nic.queues if each.index == queue), None)


def cpu_of(nic: NicView, queue: int) -> int | None:
    """Of a queue."""
    return next((each.cpu for each in nic.queues if each.index == queue), None)
