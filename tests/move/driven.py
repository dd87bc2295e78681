# SPDX-License-Identifier: GPL-2.0-or-later
"""A mover whose actions are written by its own actuator, as the daemon has them written."""

from __future__ import annotations

from typing import Any

from atfnd.daemon.moving import carry_out
from atfnd.model import Outcome
from atfnd.move.command import Ended
from atfnd.move.event import Event
from atfnd.move.mover import Mover

__all__ = ["driven"]


def driven(mover: Mover, *events: Event) -> list[Outcome | Ended]:
    """Tell it these events. Returns the writes that were tried and the moves that ended."""
    writer: Any = mover.actuator
    return carry_out(mover.steps(*events), writer.write)
