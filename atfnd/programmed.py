# SPDX-License-Identifier: GPL-2.0-or-later
"""From a decision to the kernel: through the moves of the NIC, or at once; and what became of it.

Every change goes through here, and only where the operator lets us write.
"""

from __future__ import annotations

import errno
import time
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from atfnd.agenda import Agenda
from atfnd.decide import audit, budget, spans, steer
from atfnd.decide.follow import followed
from atfnd.decide.place import belongs
from atfnd.decide.strays import Strays
from atfnd.model import (
    Action,
    ActionKind,
    FlowKey,
    FlowRule,
    Means,
    Mode,
    Move,
    NicView,
    Outcome,
    Placement,
    Plan,
    SocketSeen,
    Thread,
)
from atfnd.move.command import Ended
from atfnd.move.event import Wanted
from atfnd.move.plan import in_order, origins
from atfnd.move.verdict import Verdict
from atfnd.moving import Moving, Said
from atfnd.observe.cpuset import cpuset_of
from atfnd.observe.living import Living
from atfnd.observe.nics import NicWatch
from atfnd.program.apply import apply
from atfnd.program.journal import Journal
from atfnd.program.originals import Originals
from atfnd.published import Published
from atfnd.telling import tell_end

__all__ = ["Programmed"]

TOLD = {
    Verdict.UNPROVEN,
    Verdict.VIOLATED,
    Verdict.NO_EFFECT,
    Verdict.DEFERRED,
    Verdict.RESYNC,
}  # other ends are only counted: what was written is told of already


class Programmed(Published):
    """The part of the daemon that changes NICs."""

    journal: Journal
    originals: Originals
    _agenda: Agenda
    _last_end: dict[tuple[str, int | None], tuple[str, str]]  # of each queue: verdict, why
    _strays: Strays
    _moving: dict[str, Moving]  # by NIC: of those that are armed, from their first move on
    _living: dict[str, Living]  # by NIC, from its first dead flow on
    _heirs: dict[int, int]  # sockets that took a dead one's rule over, to be adopted: their CPU

    def _carry_out(self, plan: Plan) -> list[Outcome]:
        """Begin what was decided, as its policy's `order` asks, and return what is done already.
        Only armed NICs are changed, whatever was decided: disarming is the kill switch."""
        outcomes: list[Outcome] = []
        allowed = in_order(tuple(a for a in plan if self.watches[a.nic].view.armed))
        for name in dict.fromkeys(action.nic for action in allowed):
            wanted = [self._wanted(action) for action in allowed if action.nic == name]
            outcomes += self._begin(self.watches[name], wanted)
        self._agenda.schedule()
        return outcomes

    def _decide(
        self, event: SocketSeen, nic: NicView, rule: FlowRule | None, now_ns: int,
        rss_cpu: int | None,
    ) -> None:  # fmt: skip
        """Place a socket's flow, and tell the observer where its packets are right if that may be
        on another CPU than the one it is used on."""
        memory = self.memory
        self._know_cpuset(event.thread, rule)
        self.keeping_off.seen(event.thread, rule, nic.name)
        self._carry_out(steer.seen(event, nic, rule, memory, now_ns, rss_cpu))
        if memory.settling.elsewhere:
            self.observer.expect(event.cookie, belongs(event, rule, memory))

    def _know_cpuset(self, thread: Thread | None, rule: FlowRule | None) -> None:
        """Where a thread may run, if its flow's place depends on that."""
        if thread is None or rule is None or not self.memory.settling.elsewhere:
            return
        if rule.placement not in (Placement.LEAVE, Placement.CORE):
            self.memory.cpusets[thread.tid] = cpuset_of(thread.tid)

    def _begin(self, watch: NicWatch, wanted: Sequence[Wanted]) -> list[Outcome]:
        """Tell an armed NIC's moves; what is done already is returned. Nothing is, of a NIC that is
        gone: the loop is about to be told."""
        try:
            said = self._moves_of(watch).want(wanted)
        except OSError as error:
            if error.errno not in (errno.ENODEV, errno.ENOENT):
                raise
            return []
        return self._settle(said)

    @abstractmethod
    def _not_born(self, key: FlowKey | None) -> None: ...

    @abstractmethod
    def _was_born(self, key: FlowKey, *, failed: bool) -> bool: ...

    def _wanted(self, action: Action) -> Wanted:
        """An action with what its move depends on."""
        mode = self.memory.settling.order(action.policy)
        if action.key is None:
            return Wanted(action, mode, origins(action, None, None))
        rss = self.watches[action.nic].rss_queues(action.key)
        port = self.memory.table.covering(action.key)
        if port is not None and port.target_queue is not None:
            rss = frozenset({port.target_queue})  # its port's rule has it whenever none else has
        flow = self.memory.table.get(action.key)
        seen = None if flow is None else flow.rx_queue
        return Wanted(action, mode, origins(action, rss, seen), rss, action.live)

    def _write(self, plan: Plan) -> list[Outcome]:
        """Carry out at once what moves no flow, or what an operator wants whatever it moves."""
        outcomes = []
        for action in in_order(plan):
            if self.watches[action.nic].view.armed:
                outcomes.append(self._apply(self.watches[action.nic], action))
        self._agenda.schedule()
        return self._settle(outcomes)

    def _settle(self, said: Said) -> list[Outcome]:
        """Take into account what became of actions and moves; returns the actions'."""
        outcomes = [each for each in said if isinstance(each, Outcome)]
        for each in said:
            if isinstance(each, Outcome):
                self._strays.settle(each)
                if (stray := audit.settle(each, self.memory)) is not None:
                    self._strays.note(stray)
                self._queue_moved(each)
                if (watch := self.watches.get(each.action.nic)) is not None:
                    audit.overtaken(each, watch.view, self.memory)
                self._tell_of(each)
            else:
                self._ended(each)
        return outcomes

    def _tell_of(self, outcome: Outcome) -> None:
        """What was dropped is only counted, with the end of its move."""
        action = outcome.action
        if outcome.errno == errno.ECANCELED:
            self.log.add("kept", "its rule stays", outcome.left, nic=action.nic, flow=action.key)
        elif outcome.found:
            self.log.add(
                "adopt", "its rule is found", outcome.left, nic=action.nic, flow=action.key
            )
        elif not outcome.superseded:
            self.record(outcome)

    def _ended(self, ended: Ended) -> None:
        budget.ended(ended.action, self.memory)
        key, verdict = ended.action.key, ended.verdict
        how, late, took_ns = ended.mechanism.value, ended.violations, ended.took_ns
        move = Move(how, verdict.value, ended.why, late, took_ns)
        if key is not None and not ended.action.live:
            return  # of a flow that is gone
        if verdict is Verdict.SUPERSEDED:
            self._not_born(key)
            self.count(move)
            return
        if key is None:
            queue = ended.action.nic, ended.action.queue
            news = self._last_end.get(queue) != (verdict.value, ended.why)
            self._last_end[queue] = verdict.value, ended.why
        elif self._was_born(key, failed=verdict in (Verdict.DEFERRED, Verdict.REFUSED)):
            news = True
        else:
            deferred = verdict in (Verdict.DEFERRED, Verdict.RESYNC)
            now_ns = time.monotonic_ns()
            news = audit.moved(key, move, self.memory, now_ns, deferred=deferred)
        self.count(move)
        if news and verdict in TOLD:
            tell_end(self.log, ended, self.policy)

    def _queue_moved(self, outcome: Outcome) -> None:
        action = outcome.action
        if action.queue is not None and action.new is not None and not outcome.errno:
            self.watches[action.nic].queue_moved(action.queue, action.new)
            followed(action.nic, action.queue, action.new, self.memory)

    def _said(self, said: Said) -> None:
        """What became of moves that took their time."""
        self._settle(said)
        self._agenda.schedule()

    def _moves_of(self, watch: NicWatch) -> Moving:
        """The moves of an armed NIC, from its first one on."""
        name = watch.view.name
        if name not in self._moving:
            carry_out = partial(self._apply, watch)
            blind = partial(self._cannot_prove, name)
            moving = Moving(watch, carry_out, self._cookie, self._said, self.policy, blind)
            self._moving[name] = moving
            self._know(watch)
        return self._moving[name]

    def _cannot_prove(self, nic: str, why: str) -> None:
        what = "packets are not seen on their way: no move is proven"
        self.log.add("not-followed", what, why, nic=nic)

    def _know(self, watch: NicWatch) -> None:
        """What moves depend on may be otherwise than it was."""
        moving = self._moving.get(watch.view.name)
        if moving is not None:
            orders = self.memory.settling.order_by_policy.values()
            by_rules = watch.view.armed and watch.view.means is Means.RULES
            moving.know(measure=by_rules and any(o is not Mode.IMMEDIATE for o in orders))

    def _still(self, watch: NicWatch) -> None:
        """No move goes on: what is parked is released, what waits is forgotten."""
        moving = self._moving.pop(watch.view.name, None)
        for key in moving.flows() if moving is not None else ():
            self._was_born(key, failed=True)
        self.memory.spending.pop(watch.view.name, None)
        living = self._living.pop(watch.view.name, None)
        with ExitStack() as ending:
            if living is not None:
                ending.callback(living.close)
            if moving is not None:
                ending.callback(moving.close)

    def _cookie(self, key: FlowKey) -> int | None:
        flow = self.memory.table.get(key)
        return None if flow is None else flow.cookie

    def _apply(self, watch: NicWatch, action: Action) -> Outcome:
        if (late := audit.outlived(action, self.memory, time.monotonic_ns())) is not None:
            return late
        if action.kind is ActionKind.DELETE and not action.live:
            now_ns, at = time.monotonic_ns(), action.location
            try:
                if self._inherited(watch, action, now_ns):
                    why = "another socket comes by its rule"
                    return Outcome(action, now_ns, errno.ECANCELED, at, why)
            except OSError as refusal:
                why = "whether its 5-tuple is used again is not known"
                return Outcome(action, now_ns, refusal.errno or errno.EIO, at, why)
        return apply(watch.nic, self.journal, self.originals, action)

    def _lives(self, nic: str, key: FlowKey) -> bool:
        """A socket has this 5-tuple; or many may, or the kernel does not say."""
        if key.listens or key.wide:
            return True
        try:
            return self._socket_of(self.watches[nic], key) is not None
        except OSError:
            return True

    def _socket_of(self, watch: NicWatch, key: FlowKey) -> int | None:
        """The cookie of a flow's socket, None without one. OSError: the kernel does not say."""
        name = watch.view.name
        if name not in self._living:
            self._living[name] = Living(watch.nic.netns)
        return self._living[name].cookie(key)

    def _inherited(self, watch: NicWatch, action: Action, now_ns: int) -> bool:
        """The last look before a dead flow's rule goes, which would move whoever came after it."""
        key = action.key
        if key is None or key.listens:
            return False
        if key.wide:
            return spans.anyone_at(key, self.observer.inventory(), self.memory)
        cookie = self._socket_of(watch, key)
        if cookie is None:
            return False
        flow = audit.inherit(watch.view, action, cookie, self.memory, now_ns)
        if flow is not None:
            self._heirs[cookie] = flow.app_cpu
        return flow is not None
