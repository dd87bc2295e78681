# SPDX-License-Identifier: GPL-2.0-or-later
"""The real executor, for tests of the parts that have it write cpusets and bans."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from atfnd.daemon.executor import Executor
from atfnd.daemon.session import Sessions
from atfnd.model import Outcome
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.serve.log.event_log import EventLog

__all__ = ["writer"]


def writer(
    sessions: Sessions,
    undo_journal: UndoJournal,
    log: EventLog,
    record: Callable[[Outcome], None] = lambda outcome: None,
) -> Executor:
    """It may write for the NICs of `sessions` that are armed."""
    nothing: Any = SimpleNamespace()
    changes: Any = SimpleNamespace(log=log, record=record)
    return Executor(nothing, sessions, nothing, nothing, undo_journal, changes, nothing)
