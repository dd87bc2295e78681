# SPDX-License-Identifier: GPL-2.0-or-later
"""Another policy in a running daemon: read from the same files, and put in force wholly or not at
all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from atfnd.daemon.chores import Shortage
from atfnd.daemon.in_force import InForce
from atfnd.errors import OperatorError
from atfnd.model import Policy
from atfnd.serve.log.event_log import EventLog
from atfnd.serve.notify import Notify

__all__ = ["PolicyReload", "Step"]

_AGAIN_S = 1.0  # after a shortage

Step = Callable[[Policy], object]


class PolicyReload:
    """`load` reads the policy: OperatorError if it is wrong. `steps` bring it into force, in this
    order; each may be done twice. `tell_ready` is called when another policy is in force, or has
    been refused."""

    def __init__(
        self,
        load: Callable[[], Policy],
        in_force: InForce,
        steps: Sequence[Step],
        log: EventLog,
        shortage: Shortage,
    ) -> None:
        self._load, self._in_force, self._steps = load, in_force, steps
        self._log, self._shortage = log, shortage
        self._one = asyncio.Lock()
        self._again: asyncio.TimerHandle | None = None  # the steps, after a shortage
        self.hangup = asyncio.Event()  # SIGHUP
        self.notify = Notify()
        self.tell_ready: Callable[[], None] = lambda: None

    async def reload(self) -> Policy:
        """As `serve.Source.reload`. One at a time. OperatorError: the policy is wrong, and nothing
        has changed."""
        async with self._one:
            self.notify.reloading()
            try:
                policy = await asyncio.to_thread(self._load)
                self._in_force.refused = ""
            except OperatorError as mistake:
                self._log.add("reload-failed", "the running policy stays", mistake.message)
                self._in_force.refused = " ".join(mistake.message.splitlines()[:2])
                raise
            else:
                self._take_into_force(self._with_observer(policy))
                self._say(policy)
            finally:
                self.tell_ready()
            return self._in_force.policy

    async def hangups(self) -> None:
        """A reload after each SIGHUP, without end."""
        while True:
            await self.hangup.wait()
            self.hangup.clear()
            with suppress(OperatorError):  # it is in the log
                await self.reload()

    def put(self, policy: Policy) -> None:
        """Put another policy in force that no file says, for a while. It has the observer of the
        one in force. OperatorError: the kernel ran short of a resource on the way."""
        self._take_into_force(policy)

    async def end(self) -> None:
        """What was asked for until now is in force, or refused; nothing is reloaded any more."""
        if self.hangup.is_set():
            with suppress(OperatorError):  # it is in the log
                await self.reload()
        await self._one.acquire()  # for good
        self._not_again()

    def _not_again(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def _with_observer(self, policy: Policy) -> Policy:
        if policy.observer == self._in_force.policy.observer:
            return policy
        what = f"daemon.observer: {policy.observer} holds from the next start on"
        self._log.add("reload", what, "a running daemon keeps its observer")
        return replace(policy, observer=self._in_force.policy.observer)

    def _take_into_force(self, policy: Policy) -> None:
        """Without a pause: no decision uses half of a policy. OperatorError: the kernel ran short
        of a resource on the way. Then this policy, whatever its files say by then, is taken into
        force again in a second."""
        self._not_again()
        self._in_force.policy = policy
        try:
            for step in self._steps:
                step(policy)
        except OSError as refusal:
            if not self._shortage.take(refusal):
                raise
            self._again = asyncio.get_running_loop().call_later(_AGAIN_S, self._try_again, policy)
            what = f"the new policy is in force only in part: {refusal.strerror}"
            raise OperatorError(what, f"atfnd tries again in {_AGAIN_S:g} s") from None

    def _say(self, policy: Policy) -> None:
        files = ", ".join(policy.files) or "built in"
        self._log.add("reloaded", f"{len(policy.flows)} flow rules in force", files)

    def _try_again(self, policy: Policy) -> None:
        with suppress(OperatorError):  # once more in a second
            self._take_into_force(policy)
            self._say(policy)
        self.tell_ready()
