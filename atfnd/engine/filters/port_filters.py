# SPDX-License-Identifier: GPL-2.0-or-later
"""One filter for a listening port, so that its connections are born on their owner's queue. Pure.

A port's filter is an entry of the Flow-to-Core table whose key is open to any remote, and `steer`
leaves it alone. It is written only when that moves no live connection: each has an exact filter of
its own, which wins, or comes through that queue already. It stays as long as the listener does, and
then until no connection is left that it delivers. To lead it to another owner's queue is a rewrite,
which the machine of the moves may be able to prove.

A connection that is being established while the filter is written may have data in both queues:
`exposed` finds it, by the queue that its ACK came through. The same holds for deleting the rule of
a port that still listens, because another policy does not want it, because several threads read
its connections (`readers`), or because a user with fewer filters needs one (`budget`).

A port has a filter only where one thread serves it. Until somebody has read a connection, that is
known only of a process that is alone: it has one thread, and has not forked since it listens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from atfnd.engine.filters import aggregate, budget
from atfnd.engine.filters.connections import (
    accepted,
    by_place,
    going,
    moves,
    queue_of,
    rivalled,
    unsettled,
    waits_for,
)
from atfnd.engine.filters.listeners import Asked, Listeners, ServedPort, place_of
from atfnd.engine.handshake.birth import spot_for
from atfnd.engine.ownership import follow
from atfnd.engine.ownership.shares import whose
from atfnd.engine.placement.place import too_full
from atfnd.engine.placement.steering_method import no_filter
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    Accepted,
    Action,
    ActionKind,
    Distance,
    Flow,
    FlowKey,
    FlowRule,
    FlowState,
    Listening,
    Mode,
    NicView,
    Placement,
    SocketUse,
    Thread,
)
from atfnd.model.reason import UNSAID, Code, Why
from atfnd.move.event import Wanted

__all__ = ["RuleOf", "asks", "exposed", "forget_closed", "look", "wanted_again"]

_LINGER_NS = 10_000_000_000  # a server that restarts listens again
_FAR_NS = 1_000_000_000  # until then a write is over
_PINNED = 16  # connections that one look gives a filter of their own, so that their port's may go
_ASKED_NS = 5_000_000_000  # a delete takes a second, if it is not deferred

# The one policy rule for all connections of a port that this thread serves.
RuleOf = Callable[[FlowKey, Thread | None], FlowRule | None]


class _Server(NamedTuple):
    """A thread that serves a port, and where."""

    thread: Thread
    cpu: int


class _No(Exception):
    """Why a port has no filter, or not the one it should have."""

    def __init__(self, why: Why) -> None:
        super().__init__(str(why))
        self.why = why


class _NoRoom(_No):
    """It has none because no filter is left."""


def asks(nic: NicView, listeners: Listeners, memory: Memory) -> frozenset[ServedPort]:
    """What `look` asks the policy, with the table as it is."""
    flows, asked = accepted(nic, memory), set()
    for key in listeners.sockets:
        here = flows[place_of(key)]
        if key in listeners.unwanted or _why_nobodys(key, here, listeners) is not None:
            continue
        users, server = _users(key, here), _server(key, listeners)
        asked |= {ServedPort(key, user.thread) for user in users}
        if not users and not _stays(key, users, memory) and server is not None:
            asked.add(ServedPort(key, server.thread))
    return frozenset(asked)


def look(
    nic: NicView,
    rule_of: RuleOf,
    listeners: Listeners,
    uses: Sequence[SocketUse],
    memory: Memory,
    now_ns: int,
) -> tuple[Wanted, ...]:
    """What the ports of a NIC need now. `uses` is every connected socket as it is now."""
    flows, live = accepted(nic, memory), by_place(uses)
    births: list[Wanted] = []
    short, spending = budget.short(nic, memory), memory.nics[nic.name].spending
    spending.covers = set()
    filtered = [each for each in memory.table.ports(nic.name) if each.location is not None]
    taken = {*memory.nics[nic.name].owned, *(each.target_queue for each in filtered)}
    listeners.carrying = {
        each.key
        for each in filtered
        if any(moves(each.key, None, use, nic, memory) for use in live[place_of(each.key)])
    }
    for key in [key for key in memory.table.swaps(nic.name) if key.listens]:
        place = place_of(key)
        births += _given_up(key, nic, listeners, flows[place], live[place], memory, now_ns)
    for key in listeners.sockets:
        place = place_of(key)
        if key in listeners.unwanted or key in memory.table.swaps(nic.name):
            continue
        why = _why_nobodys(key, flows[place], listeners)
        if why is None and (entry := memory.table.get(key)) is not None:
            rule = memory.in_force.by_name.get(entry.rule_name)
            why = _too_full(rule, _users(key, flows[place]), memory)
        if why is not None:
            births += _ended(key, nic, listeners, flows[place], live[place], memory, now_ns, why)
            listeners.why_not[key] = why
            continue
        try:
            wanted = _wanted(
                key, nic, rule_of, listeners, flows[place], taken, short, memory, now_ns
            )
            if wanted is not None:
                born = _placed(*wanted, nic, flows[place], live[place], short, memory, now_ns)
                births += born
                taken |= {each.action.new for each in born}
        except _No as refusal:
            listeners.why_not[key] = refusal.why
            no_room = short and isinstance(refusal, _NoRoom)
            if no_room and aggregate.saves(key, flows[place], nic, memory):
                spending.covers.add(key)
        else:
            listeners.why_not.pop(key, None)
        if short and not rivalled(key, listeners, memory):
            births += aggregate.joined(key, flows[place], nic, memory, now_ns)
    spending.promised &= spending.covers
    for key, closed_ns in [*listeners.closed_ns.items()]:
        if now_ns - closed_ns >= _LINGER_NS and not listeners.rivals(key):
            place = place_of(key)
            why = Code.NO_LISTENER()
            births += _ended(key, nic, listeners, flows[place], live[place], memory, now_ns, why)
    for key in sorted(listeners.unwanted):
        place = place_of(key)
        births += _ended(
            key, nic, listeners, flows[place], live[place], memory, now_ns, Code.UNWANTED()
        )
    return tuple(births)


def forget_closed(nic: str, listeners: Listeners, memory: Memory) -> None:
    """On a NIC that is not armed, a port is forgotten with its last listener, unless a filter of it
    is still in the NIC."""
    for key in list(listeners.closed_ns):
        entry = memory.table.get(key)
        if entry is None or entry.location is None:
            if entry is not None and entry.nic == nic:
                memory.table.remove(key)
            listeners.forget(key)


def wanted_again(event: Listening, listeners: Listeners, memory: Memory) -> tuple[Wanted, ...]:
    """A port listens again whose filter is about to be deleted: the delete is revoked. The same
    goes for a filter for another address that serves the port as well."""
    births = []
    for key in [each for each in listeners.asked if each.overlaps(event.key)]:
        del listeners.asked[key]
        entry = memory.table.get(key)
        if entry is not None and entry.location is not None:
            queues = None if entry.target_queue is None else frozenset({entry.target_queue})
            again = Code.LISTENS_AGAIN()
            action = _action(ActionKind.REWRITE, entry, entry.target_queue, again, memory)
            budget.ask(action, memory)
            births.append(Wanted(action, Mode.STRICT, queues, queues))
    return tuple(births)


def exposed(
    event: Accepted, nic: NicView, listeners: Listeners | None, memory: Memory
) -> list[FlowKey]:
    """The ports whose filter this connection may have crossed on its way. Either their filter was
    written meanwhile: its ACK came through another queue. Or their filter is still to be written,
    and that would move it, whichever queue its ACK came through. Or their filter is deleted, or
    about to be, and its ACK came through the filter's queue."""
    own, through = memory.table.get(event.key), queue_of(event.napi_id, nic)
    if own is not None and own.location is not None:
        return []
    asked = {} if listeners is None else listeners.asked
    going = [
        key
        for key, each in asked.items()
        if key.covers(event.key) and through in (None, each.queue)
    ]
    entries = [each for each in memory.table.ports_of(event.key) if each.key not in asked]
    late = [e.key for e in entries if e.location is None or e.target_queue != through]
    return late + going


def _why_nobodys(key: FlowKey, flows: Iterable[Flow], listeners: Listeners) -> Why | None:
    """Why a port is not served by one thread, or not known to be: the kernel spreads its
    connections over several sockets; several threads read them; or several may come to."""
    rivals = len(listeners.rivals(key))
    if rivals > 1:
        return Code.RIVALS(rivals)
    if (why := listeners.several(key)) is not None:
        return why
    return None if _users(key, flows) else listeners.unserved(key)


def _too_full(rule: FlowRule | None, users: Iterable[Flow], memory: Memory) -> Why | None:
    """Why a port's connections are not brought to the CPUs of their threads now: all these are
    full."""
    found = [too_full(rule, user.app_cpu, memory) for user in users]
    return found[0] if found and all(found) else None


def _wanted(
    key: FlowKey, nic: NicView, rule_of: RuleOf, listeners: Listeners, flows: Iterable[Flow],
    taken: set[int | None], short: bool, memory: Memory, now_ns: int,
) -> tuple[Flow, int, Mode] | None:  # fmt: skip
    """A port's entry as it should be, the queue that its connections belong to, and how it may be
    moved. These follow the thread that uses the known connections (where filters are `short`, the
    one that uses most), else the one that serves it. None: leave it as it is. _No: there is no such
    queue, or several, or the policy does not want it."""
    [listener] = listeners.rivals(key)
    entry = memory.table.get(key)
    users = _users(key, flows)
    if _stays(key, users, memory):
        return None
    server = _server(key, listeners)
    plain = Flow(
        key=key, cookie=listener.cookie, nic=nic.name, state=FlowState.WANTED,
        app_cpu=0 if server is None else server.cpu,
        thread=None if server is None else server.thread, target_queue=None, target_cpu=None,
        location=None, rx_queue=None, rx_cpu=None, bytes=0, used_ns=now_ns, moved_ns=0,
        rule_name="", why=UNSAID,
    )  # fmt: skip
    alone = not users and server is not None
    if alone:
        users = [plain._replace(home=Distance.MACHINE)]
    if not users:
        raise _No(Code.SERVER_UNKNOWN())
    rules = {rule_of(key, user.thread) for user in users}
    rule = next(iter(rules))
    if len(rules) > 1 or rule is None or rule.placement is Placement.LEAVE:
        raise _No(Code.NO_SINGLE_RULE())
    if (full := _too_full(rule, users, memory)) is not None and entry is None:
        raise _No(full)
    now = None if entry is None else entry.target_queue
    again = (user._replace(target_queue=now, rule_name=rule.name) for user in users)
    spots = [spot_for(user, rule.placement, nic, memory).queue for user in again]
    queues = {None if queue is None else queue.index for queue in spots}
    queue = next(iter(queues))
    if alone and rule.placement is Placement.CORE and not listener.pinned:
        queue = _own_queue(plain, queue, taken, nic, memory)
    if len(queues) > 1 and short and now is None:
        queue = aggregate.queue_of_most(users, nic, memory)
        queues = {queue}
    if len(queues) > 1 or queue is None:
        raise _No(Code.SEVERAL_QUEUES())
    why = Code.SERVED(queue)
    known = (entry or plain)._replace(rule_name=rule.name, why=why)
    return known._replace(listener=listener.thread or users[0].thread), queue, rule.order


def _users(key: FlowKey, flows: Iterable[Flow]) -> list[Flow]:
    """The connections of a port whose threads are known."""
    return [flow for flow in flows if flow.thread is not None and key.covers(flow.key)]


def _stays(key: FlowKey, users: Iterable[Flow], memory: Memory) -> bool:
    """Its filter stays where it is as long as no thread that stays on a CPU is known to use a
    connection: the place of the listener when it was written is the best that is known."""
    entry = memory.table.get(key)
    placed = entry is not None and entry.location is not None
    return placed and all(user.home is not Distance.CPU for user in users)


def _server(key: FlowKey, listeners: Listeners) -> _Server | None:
    """Who serves a port while no thread is known to use a connection: who last read one, else who
    listens, if it is alone. None: that, or the CPU, is not known."""
    [listener] = listeners.rivals(key)
    thread, cpu = listeners.reader(key) or (None, None)
    if cpu is None and listener.alone:
        thread, cpu = listener.thread, listener.cpu
    return None if thread is None or cpu is None else _Server(thread, cpu)


def _own_queue(
    port: Flow, queue: int | None, taken: set[int | None], nic: NicView, memory: Memory
) -> int | None:
    """A queue for a listener that is not pinned: `queue`; or, if that is taken, or another owner or
    port has it, a free one. The queue follows as soon as the thread is seen to use connections."""
    if queue not in taken or follow.home(port, nic, memory) is not None:
        return queue
    free = [each for each in nic.queues if each.cpu not in memory.in_force.dedicated]
    spare = [each.index for each in free if each.index not in taken]
    return spare[0] if spare and nic.caps.queue_cpu else queue


def _placed(
    port: Flow, queue: int, order: Mode, nic: NicView, flows: Iterable[Flow],
    live: Iterable[SocketUse], short: bool, memory: Memory, now_ns: int,
) -> list[Wanted]:  # fmt: skip
    """Lead a port's filter to this queue, if it does not go there. _No: not to be written now."""
    every = None if nic.rss is None else frozenset(nic.rss.table)
    old = port.target_queue
    if port.nic != nic.name or port.state is FlowState.MANUAL:
        raise _No(Code.NOT_OURS())
    if going(port.key, flows, nic, memory) or unsettled(port.key, flows, nic, memory):
        raise _No(Code.CONNECTION_CHANGES())
    if port.location is not None:
        if old is not None and old != queue:
            if memory.table.due_ns(port.key) is not None:
                raise _No(Code.NOT_MOVED_YET(old, queue))
            action = _action(ActionKind.REWRITE, port, queue, port.why, memory)
            budget.ask(action, memory)
            return [Wanted(action, order, frozenset({old}), every)]
        return []
    if refusal := _why_none(port.key, nic, memory):
        raise _No(refusal)
    moved = [use for use in live if moves(port.key, queue, use, nic, memory)]
    carried = sum(waits_for(use.key, queue, nic, memory) for use in moved) if short else 0
    if carried < len(moved):
        raise _No(Code.WOULD_MOVE(len(moved) - carried))
    if moved and aggregate.rests(port.key, nic, memory, now_ns):
        raise _No(Code.WOULD_MOVE_WAITING(len(moved)))
    its = next(each for each in nic.queues if each.index == queue)
    if (cpu := its.cpu) is None:
        raise _No(Code.QUEUE_LOOSE(queue, its.loose))
    if over := budget.full_share(nic, memory, port.key, whose(port), port.rule_name):
        raise _No(over)
    if full := budget.no_room(nic, memory, port.key, whose(port), port.rule_name):
        raise _NoRoom(full)
    # No thread: a thread that moves takes its flows along, and this entry stands for many.
    port = port._replace(thread=None, app_cpu=cpu, target_queue=None, target_cpu=cpu)
    memory.table.put(port)
    action = _action(ActionKind.INSERT, port, queue, port.why, memory)
    budget.ask(action, memory)
    # Flows that wait have data in other queues: only a hold proves that these have drained.
    return [Wanted(action, order, every, every, first_data_ns=None if moved else now_ns + _FAR_NS)]


def _given_up(
    key: FlowKey, nic: NicView, listeners: Listeners, flows: Iterable[Flow],
    live: Iterable[SocketUse], memory: Memory, now_ns: int,
) -> Iterator[Wanted]:  # fmt: skip
    """Its filter goes for a flow whose user or control group has fewer filters, unless a connection
    comes by it now, or that flow has ended."""
    who = memory.table.swaps(nic.name)[key]
    newcomer = None if who is None else memory.table.get(who)
    if key in listeners.carrying or newcomer is None or not budget.waits(newcomer):
        memory.table.gives(key, None)
        return
    why = Code.PORT_TAKEN(who)
    listeners.why_not[key] = why
    yield from _ended(key, nic, listeners, flows, live, memory, now_ns, why)


def _ended(
    key: FlowKey, nic: NicView, listeners: Listeners, flows: Iterable[Flow],
    live: Iterable[SocketUse], memory: Memory, now_ns: int,
    why: Why,
) -> Iterator[Wanted]:  # fmt: skip
    """Its filter is not wanted any more, and goes with the last connection that it delivers. While
    a socket listens there may be no last one. So each connection gets a filter of its own for the
    queue that it has, and a connection that arrives before the delete is written puts the delete
    off: that is a birth, too."""
    entry = memory.table.get(key)
    if entry is None or entry.location is None:
        if entry is not None:
            memory.table.remove(key)
        listeners.forget(key)
        return
    asked = listeners.asked.get(key)
    if asked is not None and now_ns - asked.at_ns < _ASKED_NS:
        return
    listeners.asked.pop(key, None)  # the delete was put off
    if going(key, flows, nic, memory) or unsettled(key, flows, nic, memory):
        return
    left = [use for use in live if moves(key, None, use, nic, memory)]
    if not listeners.rivals(key):
        if not left:
            listeners.asked[key] = Asked(now_ns, entry.target_queue)
            action = replace(_action(ActionKind.DELETE, entry, None, why, memory), live=False)
            yield Wanted(action, Mode.STRICT, None, None, live=False)
        return
    if entry.target_queue is None:
        return
    at = frozenset({entry.target_queue})
    every = None if nic.rss is None else frozenset(nic.rss.table)
    here = [use for use in left if queue_of(use.napi_id, nic) == entry.target_queue]
    for use in here[:_PINNED]:
        flow = _pinned(use, entry, memory, now_ns)
        room = budget.no_room(nic, memory, use.key, rule=flow.rule_name) is None
        if not room or memory.table.full():
            return
        memory.table.put(flow)
        action = _action(ActionKind.INSERT, flow, entry.target_queue, flow.why, memory)
        action = replace(action, rule_name=entry.rule_name)
        budget.ask(action, memory)
        yield Wanted(action, Mode.STRICT, at, at)
    if len(left) == len(here) <= _PINNED:
        listeners.asked[key] = Asked(now_ns, entry.target_queue)
        action = _action(ActionKind.DELETE, entry, None, why, memory)
        yield Wanted(action, Mode.STRICT, at, every, first_data_ns=now_ns + _FAR_NS)


def _pinned(use: SocketUse, port: Flow, memory: Memory, now_ns: int) -> Flow:
    """A connection that must keep the queue of its port's filter when that is gone."""
    why = Code.KEEPS_PORTS_QUEUE(port.target_queue)
    known = memory.table.get(use.key)
    if known is not None:
        return known._replace(why=why)
    return port._replace(key=use.key, cookie=use.cookie, state=FlowState.WANTED, target_queue=None,
        location=None, rx_queue=port.target_queue, used_ns=now_ns, moved_ns=0, why=why,
        move=None, listener=None,
    )  # fmt: skip


def _why_none(key: FlowKey, nic: NicView, memory: Memory) -> Why | None:
    if not nic.armed:
        return Code.NOT_ARMED()
    if why := no_filter(nic, key):
        return why
    if not nic.caps.exact_wins:
        return Code.WINNER_UNKNOWN()
    if memory.table.full() and memory.table.get(key) is None:
        return Code.TABLE_FULL()
    return None


def _action(kind: ActionKind, flow: Flow, queue: int | None, why: Why, memory: Memory) -> Action:
    return Action(
        kind, flow.nic, flow.key, flow.location, flow.target_queue, queue, why, flow.rule_name,
        generation=memory.table.generation(flow.key),
    )  # fmt: skip
