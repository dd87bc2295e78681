# SPDX-License-Identifier: GPL-2.0-or-later
"""Switch RFS of one queue on or off (rps_flow_cnt), so that no packet overtakes another.

Writes /sys/class/net/X/queues/rx-N/rps_flow_cnt, while the queue is quiesced (`quiesce`):

- on: what was polled before has been delivered, for it was delivered inline. A queue that is polled
  meanwhile may hold packets in a list of which only the rest is handed on
  (netif_receive_skb_list_internal(), net/core/dev.c);
- off: what was polled before may wait in the backlogs of CPUs, and what is polled next is delivered
  inline. So the backlogs deliver first what they were given.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import replace

from atfnd.model import Action, Outcome, Queue
from atfnd.observe.sockets.transit import Transit
from atfnd.program.quiesce import QueueHold

__all__ = ["switch"]

LIMIT_NS = 50_000_000
LOOK_S = 20e-6


def switch(action: Action, transit: Transit, queue: Queue, write: Callable[[], Outcome]) -> Outcome:
    """`transit` is started and watches the queue. Not written: EAGAIN (not now), EOPNOTSUPP (it is
    not known what the backlogs deliver), and those of `QueueHold`."""

    def refused(code: int, why: str) -> Outcome:
        left = f"{action.setting} stays as it is: {why}"
        return Outcome(action, time.monotonic_ns(), code, None, left)

    off, known = action.value == "0", transit.know_backlogs()
    if off and not known:
        return refused(errno.EOPNOTSUPP, "it is not known what the backlogs of CPUs deliver")
    until_ns = time.monotonic_ns() + LIMIT_NS
    try:
        hold = QueueHold(transit, (), queue, until_ns)
    except OSError as refusal:
        why = refusal.strerror or str(refusal)
        return refused(refusal.errno or errno.EIO, f"queue {queue.index} is not quiesced: {why}")
    try:
        delivered = not off or _delivered(transit, until_ns)
        if not delivered or not hold.in_force():
            return refused(errno.EAGAIN, "the backlogs of CPUs did not deliver in time")
        outcome = write()
    finally:
        held = hold.release()
    if outcome.errno or held.unbroken:
        return outcome
    return replace(outcome, left=f"{outcome.left}; not proven in order: the hold ended early")


def _delivered(transit: Transit, until_ns: int) -> bool:
    """The backlogs have delivered what they hold now."""
    transit.mark_backlogs()
    while not transit.backlogs_passed():
        if time.monotonic_ns() >= until_ns:
            return False
        time.sleep(LOOK_S)
    return True
