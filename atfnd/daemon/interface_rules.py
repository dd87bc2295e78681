# SPDX-License-Identifier: GPL-2.0-or-later
"""What the policy says of interfaces: which of them we may write to.

An operator's `atfnctl arm` and `disarm`, and --arm, hold whatever the policy says.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import NamedTuple

from atfnd.daemon.executor import Executor
from atfnd.daemon.nics import ServedNics
from atfnd.daemon.operator import OperatorCommands
from atfnd.daemon.session import NicSession
from atfnd.engine.event import ArmedAfterPause
from atfnd.model import NicFacts, Policy
from atfnd.model.reason import Code
from atfnd.policy.match.match import armed
from atfnd.program.journals.operator_journal import OperatorJournal

__all__ = ["Given", "InterfaceRules"]


class Given(NamedTuple):
    """What the operator gave at the start. `load` reads the policy again: OperatorError."""

    load: Callable[[], Policy]
    arm: tuple[str, ...]  # shell patterns

    def armed(self, policy: Policy, nic: NicFacts) -> bool:
        """We may write to this interface."""
        return any(fnmatchcase(nic.name, each) for each in self.arm) or armed(policy, nic)


class InterfaceRules:
    """For the interfaces that are here."""

    def __init__(
        self,
        given: Given,
        executor: Executor,
        nics: ServedNics,
        operator: OperatorCommands,
        operator_journal: OperatorJournal,
    ) -> None:
        self._given, self._executor, self._nics = given, executor, nics
        self._operator, self._operator_journal = operator, operator_journal

    def disarmed(self, policy: Policy) -> tuple[str, ...]:
        """Interfaces that the policy arms, and an operator's order keeps disarmed."""
        return tuple(
            name
            for name, session in self._nics.sessions.items()
            if self._operator_journal.armed(name) is False
            and self._given.armed(policy, session.view)
        )

    def use(self, policy: Policy) -> None:
        """Another policy is in force: first what is disarmed, then what is armed."""
        to_arm, to_disarm = list[NicSession](), list[NicSession]()
        for name, session in self._nics.sessions.items():
            if self._operator_journal.armed(name) is not None:
                continue
            may_write = self._given.armed(policy, session.view)
            if session.view.paused:
                self._executor.take(ArmedAfterPause(name, may_write))
            elif may_write and not session.view.armed:
                to_arm.append(session)
            elif session.view.armed and not may_write:
                to_disarm.append(session)
        if to_disarm:
            self._operator.disarm_now(to_disarm, Code.POLICY_SAYS())
        for session in to_arm:
            with self._nics.while_there(session):
                self._operator.arm_now(session, Code.POLICY_SAYS())
