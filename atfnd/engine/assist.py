# SPDX-License-Identifier: GPL-2.0-or-later
"""Applications that do not know IRQ suspension: whose epolls are to prefer busy polling, as rules
with `assist: epoll` ask for it. Pure.

1. It is for the processes of owners, by flows that are received as such a rule asks: `suspended`.
   All packets of such a queue are theirs, so an epoll of theirs has one NAPI to poll. Not before
   all their flows come by it: an epoll that turns to another NAPI leaves the one before suspended
   (napi_suspend_irqs(), net/core/dev.c), and its packets wait for as long as the policy allows.
2. Nothing is written for a NIC that is not armed; what was written before stays until one is, or
   until an operator asks for an undo.
3. Where the kernel does not have the mode, it is not wanted either.
4. With `auto` they prefer it all the time: what is tried is the mode, not the application.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set

from atfnd.engine import reception
from atfnd.engine.command import AssistEpolls, PutBackEpolls
from atfnd.engine.table.memory import Memory
from atfnd.model import EpollId, EpollUser, FlowKey, FlowState, NicView, ReceptionMode

__all__ = ["due", "ended"]

_MOST_KEYS = 64  # of one process; one flow is enough to know its epoll


def due(held: Set[str], memory: Memory) -> Iterator[AssistEpolls | PutBackEpolls]:
    """What to do now. `held`: settings of epolls that are ours."""
    views = [nic.view for nic in memory.nics.values()]
    users = [(view.armed, *each) for view in views for each in _users(view, memory)]
    if not views or any(view.armed for view in views):
        used = {user.pid for _, user, _ in users}
        yield from _unused(held, used, "no queue of its owner asks for it")
    if writable := tuple(user for armed, user, at_home in users if armed and at_home):
        yield AssistEpolls(writable)


def ended(held: Set[str], memory: Memory) -> Iterator[PutBackEpolls]:
    """Put back what no armed NIC needs."""
    armed = [nic.view for nic in memory.nics.values() if nic.view.armed]
    users = {user.pid for view in armed for user, _ in _users(view, memory)}
    yield from _unused(held, users, "asked for")


def _unused(held: Set[str], used: Set[int], why: str) -> Iterator[PutBackEpolls]:
    if unused := tuple(sorted(name for name in held if EpollId.of(name).pid not in used)):
        yield PutBackEpolls(unused, why)


def _users(nic: NicView, memory: Memory) -> Iterator[tuple[EpollUser, bool]]:
    """One for each process and rule, and whether all its flows come by the queue."""
    rules = memory.in_force.by_name
    if not any(rule.assist == "epoll" for rule in rules.values()):
        return
    known = memory.nics[nic.name]
    asked = {
        queue: rule_name
        for queue, (wanted, rule_name) in reception.of_rules(nic, memory).items()
        if rules[rule_name].assist == "epoll"
        and wanted.mode in (ReceptionMode.SUSPENDED, ReceptionMode.AUTO)
        and queue not in known.reception.why_not
    }
    keys: dict[tuple[int, str], list[FlowKey]] = defaultdict(list)
    astray = set[int]()
    for queue, flow in reception.of_owners(nic, memory):
        if flow.key.wide or flow.thread is None:
            continue
        if asked.get(queue) == flow.rule_name:
            keys[flow.thread.pid, flow.rule_name].append(flow.key)
        led = flow.target_queue if flow.state is FlowState.STEERED else flow.rx_queue
        if led not in (None, queue):
            astray.add(flow.thread.pid)
    for (pid, rule_name), of_process in sorted(keys.items()):
        user = EpollUser(pid, nic.name, rule_name, tuple(of_process[:_MOST_KEYS]))
        yield user, pid not in astray
