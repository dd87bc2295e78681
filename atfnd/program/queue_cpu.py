# SPDX-License-Identifier: GPL-2.0-or-later
"""The CPU a queue is delivered on: NAPI thread or IRQ affinity, through the Nic.

Journaled as the setting `queue-cpu:N`, which holds the CPU list of the thread or the interrupt.
"""

from __future__ import annotations

import errno
import time

from atfnd.model import Action, Outcome
from atfnd.nic import Nic
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.program.setting import unchanged, written

__all__ = ["apply"]


def apply(nic: Nic, undo_journal: UndoJournal, action: Action) -> Outcome:
    """Confine queue `action.queue` to CPU `action.new`; a refusal is an Outcome. ESTALE: another
    program put the queue where it is."""
    queue, cpu = action.queue, action.new
    if queue is None or cpu is None:
        raise ValueError(f"a queue's CPU without queue or CPU: {action}")
    setting = f"queue-cpu:{queue}"
    try:
        written(nic, undo_journal, setting, str(cpu), lambda: nic.set_queue_cpu(queue, cpu))
    except OSError as refusal:
        code = refusal.errno or errno.EIO
        left = f"queue {queue}'s CPU {unchanged(refusal)}"
        return Outcome(action, time.monotonic_ns(), code, None, left)
    return Outcome(action, time.monotonic_ns(), 0, None, "as planned")
