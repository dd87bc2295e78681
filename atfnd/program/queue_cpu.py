# SPDX-License-Identifier: GPL-2.0-or-later
"""The CPU a queue is delivered on: NAPI thread or IRQ affinity, through the Nic."""

from __future__ import annotations

import errno
import os
import time

from atfnd.model import Action, Outcome
from atfnd.nic import Nic

__all__ = ["apply"]


def apply(nic: Nic, action: Action) -> Outcome:
    """Confine queue `action.queue` to CPU `action.new`; a kernel refusal is an Outcome."""
    if action.queue is None or action.new is None:
        raise ValueError(f"a queue's CPU without queue or CPU: {action}")
    try:
        nic.set_queue_cpu(action.queue, action.new)
    except OSError as refusal:
        code = refusal.errno or errno.EIO
        left = f"queue {action.queue} stays where it is ({os.strerror(code)})"
        return Outcome(action, time.monotonic_ns(), code, None, left)
    return Outcome(action, time.monotonic_ns(), 0, None, "as planned")
