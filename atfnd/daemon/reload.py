# SPDX-License-Identifier: GPL-2.0-or-later
"""Another policy in a running daemon: read from the same files, and put in force wholly or not at
all.

An operator's `atfnctl arm` and `disarm`, and --arm, hold whatever the policy says.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import NamedTuple

from atfnd.daemon.arming import Arming
from atfnd.daemon.chores import Shortage
from atfnd.daemon.executor import Executor
from atfnd.daemon.handshakes import BirthReader
from atfnd.daemon.in_force import InForce
from atfnd.daemon.matching import sources
from atfnd.daemon.nics import ServedNics
from atfnd.daemon.operator import OperatorCommands
from atfnd.daemon.recording import Recorder
from atfnd.daemon.session import NicSession, moving
from atfnd.daemon.sockets import SocketReader
from atfnd.engine.engine import Engine
from atfnd.engine.event import PolicyLoaded, TakenUp
from atfnd.errors import OperatorError
from atfnd.model import Flow, Placement, Policy
from atfnd.nic import Nic
from atfnd.observe import Observer, Qualify
from atfnd.observe.nics.watch import NicWatch
from atfnd.policy.match.compile import compiled
from atfnd.policy.match.match import armed, asks_direction, filter_budget, qualify
from atfnd.policy.match.matching import Matching
from atfnd.program.journals.operator_journal import OperatorJournal
from atfnd.serve.log.event_log import EventLog
from atfnd.serve.notify import Notify

__all__ = ["Given", "PolicyReload", "asked"]


# A thread that is not pinned may leave again at once. What is moved when its stay has brought what
# the move costs is moved at no more than twice the cost of the best decision, whatever the thread
# does then (Karlin et al., "Competitive snoopy caching", Algorithmica 3, 1988).
MOVE_NS = 1_500_000  # of CPU: our decision, its journal and its write (bench `migrating`)
REMOTE_PACKET_NS = 750  # what a packet costs more that is not delivered on its reader's CPU
WORTH_PACKETS = MOVE_NS // REMOTE_PACKET_NS
_AGAIN_S = 1.0  # after a shortage


class Given(NamedTuple):
    """What the operator gave at the start. `load` reads the policy again: OperatorError."""

    load: Callable[[], Policy]
    arm: tuple[str, ...]  # shell patterns

    def armed(self, policy: Policy, name: str) -> bool:
        """We may write to this interface."""
        return any(fnmatchcase(name, each) for each in self.arm) or armed(policy, name)

    def watch(self, policy: Policy, nic: Nic) -> NicWatch:
        """A NIC that comes, as the policy wants it watched."""
        budget = filter_budget(policy, nic.name, nic.caps().filter_slots)
        return NicWatch(nic, self.armed(policy, nic.name), budget)


def asked(policy: Policy) -> Qualify:
    """What a policy has the observer report."""
    direction, elsewhere = asks_direction(policy), policy.elsewhere()
    clauses = compiled(policy).clauses
    return Qualify(*qualify(policy), direction, elsewhere, clauses, WORTH_PACKETS)


class PolicyReload:
    """`tell_ready` is called when another policy is in force, or has been refused."""

    def __init__(
        self,
        given: Given,
        in_force: InForce,
        engine: Engine,
        executor: Executor,
        nics: ServedNics,
        arming: Arming,
        sockets: SocketReader,
        births: BirthReader,
        observer: Observer,
        matching: Matching,
        recorder: Recorder,
        operator: OperatorCommands,
        operator_journal: OperatorJournal,
        show_page: Callable[[int | None], None],
        log: EventLog,
        shortage: Shortage,
    ) -> None:
        self._given, self._in_force, self._shortage = given, in_force, shortage
        self._engine, self._executor = engine, executor
        self._nics, self._arming, self._operator = nics, arming, operator
        self._sockets, self._births, self._observer = sockets, births, observer
        self._matching, self._recorder, self._operator_journal = (
            matching,
            recorder,
            operator_journal,
        )
        self._show_page, self._log = show_page, log
        self._one = asyncio.Lock()
        self.hangup = asyncio.Event()  # SIGHUP
        self.notify = Notify()
        self.tell_ready: Callable[[], None] = lambda: None

    async def recording(self, seconds: float, most: int) -> AsyncGenerator[str, None]:
        """As `serve.Source.recording`. The recording is for trying another policy. So while it is
        made, the observer reports every socket, even those that the rules of this policy leave out
        and those whose packets arrive right, and births are observed."""
        with self._recorder.asking():
            self._ask()
            self._sockets.forget_unknown()
            if not self._births.attached:
                self._births.renew()
            async with aclosing(self._recorder.lines(seconds, most)) as lines:
                async for line in lines:
                    yield line
        self._ask()
        self._sockets.forget_unknown()

    def _ask(self) -> None:
        """Tell the observer what the policy wants reported."""
        wanted = asked(self._in_force.policy)
        if self._recorder.asked():
            wanted = wanted._replace(clauses=(), elsewhere=True)
        self._observer.qualify(wanted)

    async def reload(self) -> Policy:
        """As `serve.Source.reload`. One at a time. OperatorError: the policy is wrong, and nothing
        has changed."""
        async with self._one:
            self.notify.reloading()
            try:
                policy = await asyncio.to_thread(self._given.load)
                self._in_force.refused = ""
            except OperatorError as mistake:
                self._log.add("reload-failed", "the running policy stays", mistake.message)
                self._in_force.refused = " ".join(mistake.message.splitlines()[:2])
                raise
            else:
                self._take_or_retry(policy)
            finally:
                self.tell_ready()
            return self._in_force.policy

    def _take_or_retry(self, policy: Policy) -> None:
        """OperatorError: the kernel ran short of a resource on the way. It is done again in a
        second: each part of it may be done twice."""
        try:
            self._take_into_force(policy)
        except OSError as refusal:
            if not self._shortage.take(refusal):
                raise
            asyncio.get_running_loop().call_later(_AGAIN_S, self.hangup.set)
            what = f"the new policy is in force only in part: {refusal.strerror}"
            raise OperatorError(what, f"atfnd tries again in {_AGAIN_S:g} s") from None

    async def hangups(self) -> None:
        """A reload after each SIGHUP, without end."""
        while True:
            await self.hangup.wait()
            self.hangup.clear()
            with suppress(OperatorError):  # it is in the log
                await self.reload()

    def _take_into_force(self, policy: Policy) -> None:
        """Without a pause: no decision uses half of a policy."""
        if policy.observer != self._in_force.policy.observer:
            what = f"daemon.observer: {policy.observer} holds from the next start on"
            self._log.add("reload", what, "a running daemon keeps its observer")
            policy = replace(policy, observer=self._in_force.policy.observer)
        self._in_force.policy = policy
        self._matching.renew(policy, sources(policy))
        self._ask()
        flows = self._engine.flows_to_match()
        rules = {(flow.cookie, flow.key): self._steers(flow) for flow in flows}
        loaded = PolicyLoaded(policy, rules, moving(self._nics.sessions))
        commands = self._executor.decide(loaded)
        for session in self._nics.sessions.values():
            if session.moves is not None:
                session.moves.use(policy)
        self._take_interfaces(policy)
        self._executor.carry_out(commands)
        self._nics.each(self._know_homes)
        self._nics.each(self._executor.know)
        self._births.renew()
        self._show_page(policy.web_port)
        for session in list(self._nics.sessions.values()):
            with self._nics.while_there(session):
                self._executor.take(TakenUp(session.name))
        self._sockets.forget_unknown()
        files = ", ".join(policy.files) or "built in"
        self._log.add("reloaded", f"{len(policy.flows)} flow rules in force", files)

    def _steers(self, flow: Flow) -> str | None:
        """The rule that steers a flow of the table, by name. A flow taken over from an earlier run,
        whose thread is not known yet, stays, unless its rule leaves it alone for every user."""
        if flow.thread is None:
            return flow.rule_name if self._matching.left_by(flow.key) is None else None
        view = self._nics.sessions[flow.nic].view
        rule = self._matching.of_flow(flow, view, time.monotonic_ns())
        return None if rule is None or rule.placement is Placement.LEAVE else rule.name

    def _take_interfaces(self, policy: Policy) -> None:
        """Budgets and arming, for the interfaces that are here and for those to come."""
        self._nics.interfaces.watch_by(lambda nic: self._given.watch(self._in_force.policy, nic))
        for name, session in list(self._nics.sessions.items()):
            watch = session.watch
            watch.allow(filter_budget(policy, name, watch.view.caps.filter_slots))
            if self._operator_journal.armed(name) is not None:
                continue
            may_write = self._given.armed(policy, name)
            if watch.view.paused:
                watch.arm_on_resume(may_write)
            elif may_write and not watch.view.armed:
                with self._nics.while_there(session):
                    self._operator.arm_now(session, "the policy says so")
            elif watch.view.armed and not may_write:
                self._operator.disarm_now([session], "the policy says so")

    def _know_homes(self, session: NicSession) -> None:
        """The policy may take the owner from queues that followed one."""
        if session.view.armed:
            self._arming.know_homes(session)
