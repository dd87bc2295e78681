# SPDX-License-Identifier: GPL-2.0-or-later
"""The real executor, for tests of the parts that have it write settings of the machine and bans."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from atfnd.daemon.executor import Executor
from atfnd.daemon.session import Sessions
from atfnd.engine.engine import Engine
from atfnd.engine.event import NicAttached
from atfnd.engine.table.memory import Memory
from atfnd.model import Outcome, Policy
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.serve.log.event_log import EventLog
from tests.values import RULE

__all__ = ["writer"]


def writer(
    sessions: Sessions,
    undo_journal: UndoJournal,
    log: EventLog,
    record: Callable[[Outcome], None] = lambda outcome: None,
) -> Executor:
    """It may write for the NICs of `sessions` that are armed, which its engine serves."""
    nothing: Any = SimpleNamespace()
    changes: Any = SimpleNamespace(log=log, record=record)
    engine = Engine(Memory.of(Policy((), (RULE,), "auto", 64, 0, ())))
    for session in sessions.values():
        engine.handle(NicAttached(session.view, armed=session.view.armed), 0)
    return Executor(engine, sessions, nothing, nothing, undo_journal, changes, nothing)
