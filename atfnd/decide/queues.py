# SPDX-License-Identifier: GPL-2.0-or-later
"""Queues and CPUs: which queue serves a CPU, and which queue lost its CPU. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from atfnd.model import Action, ActionKind, Plan, Queue

__all__ = ["confine", "same_core"]


def same_core(queues: Sequence[Queue], cpu: int, load: Callable[[int], int]) -> Queue | None:
    """The queue delivered on `cpu` with the fewest of our rules; None when no queue is."""
    there = [queue for queue in queues if queue.cpu == cpu]
    return min(there, key=lambda queue: (load(queue.index), queue.index), default=None)


def confine(nic: str, unpinned: Iterable[tuple[Queue, int]]) -> Plan:
    """Put queues back on the CPUs they had (reference/lab.md: a link flap forgets them)."""
    why = "the NAPI threads of a link that came up again are not confined to a CPU"
    return tuple(
        Action(ActionKind.QUEUE_CPU, nic, None, None, None, cpu, why, "", queue.index)
        for queue, cpu in unpinned
    )
