# SPDX-License-Identifier: GPL-2.0-or-later
"""Which queue serves a CPU. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from atfnd.model import Queue

__all__ = ["same_core"]


def same_core(queues: Sequence[Queue], cpu: int, load: Callable[[int], int]) -> Queue | None:
    """The queue delivered on `cpu` with the fewest of our rules; None when no queue is."""
    there = [queue for queue in queues if queue.cpu == cpu]
    return min(there, key=lambda queue: (load(queue.index), queue.index), default=None)
