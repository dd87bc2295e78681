# SPDX-License-Identifier: GPL-2.0-or-later
"""Another policy in a running daemon: read from the same files, and in force wholly or not at all.

What an operator said by `atfnctl arm` and `disarm`, or by --arm, holds whatever the policy says.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack, aclosing, suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import NamedTuple

from atfnd.attached import Attached
from atfnd.decide import steer
from atfnd.decide.renew import leave, renew
from atfnd.errors import OperatorError
from atfnd.model import Flow, FlowKey, Placement, Policy, SocketSeen
from atfnd.nic import Nic
from atfnd.observe import Qualify
from atfnd.observe.nics import NicWatch
from atfnd.policy.compile import compiled
from atfnd.policy.match import armed, asks_direction, qualify, rule_budget
from atfnd.serve.loopback import Page

__all__ = ["Given", "Reloading", "asked"]


class Given(NamedTuple):
    """What the operator gave at the start. `load` reads the policy again: OperatorError."""

    load: Callable[[], Policy]
    arm: tuple[str, ...]  # shell patterns

    def armed(self, policy: Policy, name: str) -> bool:
        """We may write to this interface."""
        return any(fnmatchcase(name, each) for each in self.arm) or armed(policy, name)

    def watch(self, policy: Policy, nic: Nic) -> NicWatch:
        """A NIC that comes, as the policy wants it watched."""
        budget = rule_budget(policy, nic.name, nic.caps().rule_slots)
        return NicWatch(nic, self.armed(policy, nic.name), budget)


def asked(policy: Policy) -> Qualify:
    """What a policy has the observer tell of."""
    direction, elsewhere = asks_direction(policy), policy.elsewhere()
    return Qualify(*qualify(policy), direction, elsewhere, compiled(policy).clauses)


class Reloading(Attached):
    """The part of the daemon that takes another policy."""

    hangup: asyncio.Event  # SIGHUP
    page: Page
    _given: Given
    _reloads: asyncio.Lock

    async def recording(self, seconds: float, most: int) -> AsyncGenerator[str, None]:
        """As `serve.Source.recording`. Another policy is to be tried on it: as long as it is made,
        the observer is silent of nobody by this one's rules, nor of whose packets arrive right, and
        births are observed."""
        self._recordings += 1
        self._ask()
        self._forget_unknown()
        if self._births is None:
            self._births_as(self.policy)
        try:
            async with aclosing(self.recorder.lines(seconds, most)) as lines:
                async for line in lines:
                    yield line
        finally:
            self._recordings -= 1
            self._ask()
            self._forget_unknown()

    def _is_only_recorded(self, event: SocketSeen) -> bool:
        """It would not have been told of, but that somebody records."""
        right = event.rx_cpu == event.app_cpu and not self.policy.elsewhere()
        return bool(self._recordings) and right and self.memory.table.get(event.key) is None

    def _ask(self) -> None:
        """What the policy wants to be told of."""
        wanted = asked(self.policy)
        if self._recordings:
            wanted = wanted._replace(clauses=(), elsewhere=True)
        self.observer.qualify(wanted)

    async def reload(self) -> Policy:
        """Read the policy again and take it into force. OperatorError: it is wrong, and nothing has
        changed."""
        async with self._reloads:
            self.notify.reloading()
            try:
                policy = await asyncio.to_thread(self._given.load)
                self.reload_refused = ""
            except OperatorError as mistake:
                self.log.add("reload-failed", "the running policy stays", mistake.message)
                self.reload_refused = " ".join(mistake.message.splitlines()[:2])
                raise
            else:
                self._take_into_force(policy)
            finally:
                self.tell_ready()
            return self.policy

    async def _hangups(self) -> None:
        while True:
            await self.hangup.wait()
            self.hangup.clear()
            with suppress(OperatorError):  # it is told of in the log
                await self.reload()

    def _take_into_force(self, policy: Policy) -> None:
        """Without a pause: nothing is decided by half of a policy."""
        if policy.observer != self.policy.observer:
            what = f"daemon.observer: {policy.observer} holds from the next start on"
            self.log.add("reload", what, "a running daemon keeps its observer")
            policy = replace(policy, observer=self.policy.observer)
        self.policy = policy
        self._matching.renew(policy)
        self._ask()
        plan = renew(policy, self._steers, self.memory, self._moves)
        for moving in self._moving.values():
            moving.settle(policy)
        self._take_interfaces(policy)
        self._carry_out(plan)
        self._each(self._know_homes)
        self._each(self._know)
        self._births_as(policy)
        self.page.want(policy.web_port)
        for watch in list(self.watches.values()):
            with self._while_there(watch):
                self._carry_out(steer.take_up(watch.view, self.memory, time.monotonic_ns()))
        self._forget_unknown()
        files = ", ".join(policy.files) or "built in"
        self.log.add("reloaded", f"{len(policy.flows)} flow rules in force", files)

    def _forget_unknown(self) -> None:
        """Sockets that were told of and have no entry: used again, they are told of again, if they
        are to be."""
        known = {flow.cookie for flow in self.flows() if flow is not None}
        if told := {use.cookie for use in self.observer.audit()} - known:
            self.observer.forget(told)

    @abstractmethod
    def left_by(self, key: FlowKey) -> str | None: ...

    def _steers(self, flow: Flow) -> str | None:
        """The rule that steers a flow of the table, by name. One taken over from an earlier run,
        whose user is not known yet, stays unless it is left alone whoever uses it."""
        if flow.thread is None:
            return flow.policy if self.left_by(flow.key) is None else None
        rule = self._matching.of_flow(flow, self.watches[flow.nic].view, time.monotonic_ns())
        return None if rule is None or rule.placement is Placement.LEAVE else rule.name

    def _moves(self, key: FlowKey) -> bool:
        return any(moving.concerns(key) for moving in self._moving.values())

    def _leave(self) -> None:
        """Flows that the policy leaves alone since it is another one, and still have a rule; and
        what saw births for one that wanted it."""
        before = dict(self.memory.left)
        self._carry_out(leave(self.memory, self._moves))
        ended = {cookie for key, cookie in before.items() if key not in self.memory.left}
        if ended:
            self.observer.forget(ended)
        self._carry_out(self._strays.due(self.memory, self._moves, self._lives))
        self._end_births()

    def _take_interfaces(self, policy: Policy) -> None:
        """Budgets and arming, of those that are here and of those to come."""
        self.interfaces.watch_by(lambda nic: self._given.watch(self.policy, nic))
        for name, watch in list(self.watches.items()):
            watch.allow(rule_budget(policy, name, watch.view.caps.rule_slots))
            if self.orders.armed(name) is not None:
                continue
            may_write = self._given.armed(policy, name)
            if watch.view.paused:
                watch.arm_on_resume(may_write)
            elif may_write and not watch.view.armed:
                with self._while_there(watch):
                    self._arm(watch, "the policy says so")
            elif watch.view.armed and not may_write:
                self._disarm([watch], "the policy says so")

    def _know_homes(self, watch: NicWatch) -> None:
        """The policy may have queues that followed somebody follow nobody any more."""
        if watch.view.armed:
            self.arming.know_homes(watch)

    def _arm(self, watch: NicWatch, why: str) -> None:
        name, old = watch.view.name, _standing(watch)
        watch.arm(True)
        self.log.add("arm", "armed", why, nic=name, old=old, new=_standing(watch))
        self._look_again(watch)
        self.arming.meet(watch)
        self._adopt(self.observer.inventory(), [watch])
        self._carry_out(steer.take_up(watch.view, self.memory, time.monotonic_ns()))

    def _disarm(self, watches: Sequence[NicWatch], why: str) -> None:
        """None of them is armed before anything else happens. OSError: moves that were under way
        could not be ended in order; those of every NIC have been ended as far as they could."""
        what, new = "disarmed: nothing is changed any more", "not armed"
        with ExitStack() as ending:  # what is named last is done first, and all whatever fails
            for watch in watches:
                name, old = watch.view.name, _standing(watch)
                ending.callback(self._still, watch)
                ending.callback(self.log.add, "disarm", what, why, nic=name, old=old, new=new)
            for watch in watches:
                ending.callback(watch.arm, False)


def _standing(watch: NicWatch) -> str:
    return "armed" if watch.view.armed else "not armed"
