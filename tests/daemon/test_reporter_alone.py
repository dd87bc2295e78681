# SPDX-License-Identifier: GPL-2.0-or-later
"""`Reporter` without a daemon: what it shows of the table, the NICs and the changes."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from atfnd.daemon.changes import ChangeLog
from atfnd.daemon.in_force import InForce
from atfnd.daemon.reporter import Reporter
from atfnd.daemon.session import Sessions
from atfnd.engine.engine import Engine
from atfnd.engine.event import NicAttached
from atfnd.engine.table.memory import Memory
from atfnd.errors import OperatorError
from atfnd.model import Action, ActionKind, Policy
from atfnd.model.reason import Code
from atfnd.serve.log.event_log import EventLog
from tests.values import NIC, RULE, key

POLICY = Policy((), (RULE,), "auto", 64, 0, ("a.yaml",))
INSERT = Action(ActionKind.INSERT, "nic", key(1), None, None, 2, Code.KERNEL("why"), "rest")


class Parts:
    """A reporter, and what stands for the parts that it reads."""

    def __init__(self) -> None:
        part: Any = SimpleNamespace
        self.engine = Engine(Memory.of(POLICY))
        self.engine.handle(NicAttached(NIC, armed=True), 0)
        self.refusal = 0
        watch = part(reads=lambda: None)
        session = part(view=NIC, shown=self._shown, watch=watch)
        self.sessions: Sessions = {NIC.name: session}
        self.in_force, self.said = InForce(POLICY), list[str]()
        self.changes = ChangeLog(EventLog(), self.sessions, self.in_force)
        observer = part(name="bpf", lost=lambda: 7)
        self.reporter = Reporter(
            self.engine, self.sessions, observer, "", self.in_force, self.changes, part()
        )
        notify: Any = part(ready=self.said.append, alive=self.said.append)
        self.reporter.notify = notify

    def _shown(self, owned: Any) -> Any:
        if self.refusal:
            raise OSError(self.refusal, os.strerror(self.refusal))
        return replace(NIC, owned=owned())


@pytest.fixture
def parts() -> Parts:
    return Parts()


@pytest.mark.parametrize("code", [errno.ENODEV, errno.EIO])
def test_one_that_has_gone_is_left_out_and_one_that_cannot_be_read_is_an_error(
    parts: Parts, code: int
) -> None:
    parts.refusal = code
    if code == errno.ENODEV:
        assert parts.reporter.nics() == []
        return
    with pytest.raises(OperatorError, match="nic cannot be read now"):
        parts.reporter.nics()


def test_the_service_manager_hears_why_a_policy_was_not_reloaded(parts: Parts) -> None:
    parts.reporter.tell_ready()
    parts.in_force.refused = "a.yaml:3:1: no such key"
    parts.reporter.tell_alive()
    short = "1 of 1 NICs armed: nic; 0 flows known, 0 by a filter"
    assert parts.said == [short, f"{short}; not reloaded: a.yaml:3:1: no such key"]
