# SPDX-License-Identifier: GPL-2.0-or-later
"""What was changed: counted, and logged: what, old, new, why, and the policy's
file:line."""

from __future__ import annotations

import errno
import os
from collections import Counter
from functools import lru_cache

from atfnd.daemon.in_force import InForce
from atfnd.daemon.session import Sessions
from atfnd.model import BUDGET_SETTINGS, Action, NicView, Outcome, Policy, brief
from atfnd.model.reason import Why
from atfnd.move.command import Ended
from atfnd.move.verdict import Verdict
from atfnd.policy.match.match import interface_rule
from atfnd.serve.log.event_log import EventLog

__all__ = ["ChangeLog", "source_of", "tell", "tell_end"]


class ChangeLog:
    """Since the start."""

    def __init__(self, log: EventLog, sessions: Sessions, in_force: InForce) -> None:
        self.log, self._sessions, self._in_force = log, sessions, in_force
        self.changes = Counter[tuple[str, str, int]]()  # NIC, kind, errno
        self.moves = Counter[tuple[str, str]]()  # by mechanism and verdict
        self.late_packets = 0  # that were overtaken in a move

    def record(self, outcome: Outcome) -> None:
        """Count the outcome of an action, and log it."""
        action = outcome.action
        self.changes[action.nic, action.kind.value, outcome.errno] += 1
        tell(self.log, outcome, self._nic(action.nic), self._in_force.policy)

    def ended(self, ended: Ended, *, news: bool) -> None:
        """Count how a move ended; log it, if it is worth a line."""
        self.moves[ended.mechanism.value, ended.verdict.value] += 1
        self.late_packets += ended.violations
        if news:
            nic = self._nic(ended.action.nic)
            tell_end(self.log, ended, nic, self._in_force.policy)

    def _nic(self, name: str) -> NicView | None:
        session = self._sessions.get(name)
        return None if session is None else session.view


def tell(log: EventLog, outcome: Outcome, nic: NicView | None, policy: Policy) -> None:
    """`nic` None: it has gone."""
    action = outcome.action
    what = _moved(action.queue, action.old, action.new)
    old, new = _place(action.queue, action.old), _place(action.queue, action.new)
    if action.setting is not None and action.value is not None:
        old, new = outcome.before, action.value
        what = f"{action.setting} = {brief(action.value)}"
    kind, code = action.kind.value, None
    why: Why | str = action.why
    if outcome.errno:
        code = errno.errorcode.get(outcome.errno, str(outcome.errno))
        kind, why = "refused", f"{os.strerror(outcome.errno)}; {outcome.left}"
    log.add(
        kind, what, why, nic=action.nic, flow=action.key, rule=action.rule_name or None,
        old=old, new=new, source=source_of(action, nic, policy), errno=code,
    )  # fmt: skip


def tell_end(log: EventLog, ended: Ended, nic: NicView | None, policy: Policy) -> None:
    """How a move ended, on a NIC that is there still, or not (None)."""
    action = ended.action
    log.add(
        ended.verdict.value, _how(ended), ended.why, nic=action.nic, flow=action.key,
        rule=action.rule_name or None, old=_place(action.queue, action.old),
        new=_place(action.queue, action.new), source=source_of(action, nic, policy),
    )  # fmt: skip


def source_of(action: Action, nic: NicView | None, policy: Policy) -> str | None:
    """file:line of the rule that wants it; for what concerns an interface, that of the interface's
    rule. None: no rule does, or the interface has gone."""
    if action.setting in BUDGET_SETTINGS:
        return policy.softirq_budget.source
    for rule in policy.flows if action.key is not None else policy.forwarding:
        if rule.name == action.rule_name:
            return rule.source
    if action.key is not None or nic is None:
        return None
    its = interface_rule(policy.interfaces, nic)
    return None if its is None else its.source


@lru_cache(maxsize=1024)
def _moved(queue: int | None, old: int | None, new: int | None) -> str:
    place = "queue" if queue is None else f"queue {queue}: CPU"
    return f"{place} {'-' if old is None else old} -> {'-' if new is None else new}"


@lru_cache(maxsize=1024)
def _place(queue: int | None, number: int | None) -> str | None:
    """What `old` and `new` of an action mean: its queue's CPU, or a flow's queue."""
    if number is None:
        return None
    return f"queue {number}" if queue is None else f"CPU {number}"


def _how(ended: Ended) -> str:
    action, how = ended.action, ended.mechanism.value
    what = f"queue {action.old} -> {'-' if action.new is None else action.new}"
    if action.queue is not None:
        what = f"queue {action.queue} to CPU {action.new}"
    if ended.verdict is Verdict.DEFERRED:
        return f"{what}, not moved"
    late = f", {ended.violations} packets late" if ended.violations else ""
    return f"{what}, by {how}{late}"
