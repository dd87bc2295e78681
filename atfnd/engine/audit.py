# SPDX-License-Identifier: GPL-2.0-or-later
"""Compares the table with what is observed: outcomes, socket audits, filter lists. Pure."""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from atfnd.engine.filters import budget
from atfnd.engine.ownership.follow import owner_of
from atfnd.engine.placement.place import without_queue
from atfnd.engine.placement.steering_method import of_queue
from atfnd.engine.table.flow_table import t_delete_in_force_ns
from atfnd.engine.table.memory import Memory
from atfnd.engine.table.retire import gone, idle
from atfnd.model import (
    Action,
    ActionKind,
    Filter,
    Flow,
    FlowKey,
    FlowState,
    Match,
    Move,
    NicView,
    Outcome,
    Plan,
    SocketUse,
)
from atfnd.model.reason import Code, Why

__all__ = [
    "adopt",
    "check_filters",
    "check_sockets",
    "inherit",
    "moved",
    "outlived",
    "overtaken",
    "record",
    "threads_ended",
]

_OF_FILTERS = ActionKind.INSERT, ActionKind.REWRITE, ActionKind.DELETE


def record(outcome: Outcome, memory: Memory) -> Action | None:
    """Write the outcome of an action into the flow's entry. Returns a delete for a filter that was
    written after the flow's entry had ended."""
    action, table = outcome.action, memory.table
    made_room = budget.record(outcome, memory)
    if outcome.superseded:
        return None
    flow = table.get(action.key) if action.key else None
    if flow is None:
        if action.kind is not ActionKind.INSERT or (outcome.errno and not outcome.found):
            return None
        why = Code.GIVEN_UP()
        delete = replace(action, kind=ActionKind.DELETE, new=None, why=why, generation=0)
        old = action.new if outcome.queue is None else outcome.queue
        return replace(delete, old=old, location=outcome.location)
    if action.kind is ActionKind.DELETE and action.location != flow.location:
        return None  # it concerns another filter than this entry's
    if action.kind is ActionKind.DELETE:
        withdrawn = flow.state is FlowState.OBSERVED  # only its filter was to be deleted
        # ENOENT: another program deleted it first; either way it is gone.
        if outcome.errno not in (0, errno.ENOENT):
            state = FlowState.STEERED if withdrawn else flow.state
            table.put(flow._replace(state=state, why=Code.KERNEL(outcome.left)))
        elif withdrawn:
            state = flow.state if flow.left is None else FlowState.WANTED
            bare = flow._replace(state=state, location=None, target_queue=None)
            table.put(bare._replace(why=action.why))
        elif made_room:
            memory.overflow += 1
            table.put(_without_filter(flow, action.why, outcome.at_ns, table.covering(flow.key)))
        else:
            memory.unused(flow)
            table.remove(flow.key)
    elif outcome.errno == 0:
        memory.not_put_off(flow.key)
        table.put(
            flow._replace(
                state=FlowState.STEERED,
                location=outcome.location,
                target_queue=action.new,
                moved_ns=outcome.at_ns,
                why=action.why,
            )
        )
    elif outcome.found:
        at, queue = outcome.location, outcome.queue
        found = flow._replace(state=FlowState.STEERED, location=at, target_queue=queue)
        table.put(found._replace(moved_ns=outcome.at_ns, why=Code.KERNEL(outcome.left)))
        if queue != action.new:
            memory.table.defer(flow.key, outcome.at_ns + memory.in_force.hold_down_ns)
    elif action.kind is ActionKind.INSERT:
        full = outcome.errno == errno.ENOSPC
        state = FlowState.OVERFLOW if full else FlowState.WANTED
        memory.overflow += full and flow.state is not FlowState.OVERFLOW
        table.put(flow._replace(state=state, target_queue=None, why=Code.KERNEL(outcome.left)))
    elif outcome.location is None:  # refused, and the old filter is lost
        lost = flow._replace(state=FlowState.WANTED, location=None, target_queue=None)
        table.put(lost._replace(moved_ns=outcome.at_ns, why=Code.KERNEL(outcome.left)))
        memory.table.defer(flow.key, outcome.at_ns + memory.in_force.hold_down_ns)
    else:
        table.put(flow._replace(why=Code.KERNEL(outcome.left)))
    return None


def outlived(action: Action, memory: Memory, now_ns: int) -> Outcome | None:
    """The outcome of an action, at its turn, whose entry has ended, was decided anew or has no
    filter left to rewrite, or whose setting another program has changed since: nothing is written.
    None: carry it out.

    A NIC would take such a rewrite for a new filter, and would keep a filter that no entry knows
    of. The delete of a filter that no entry has is carried out, whichever flow it was for."""
    if _is_manual(action, memory):
        left = f"another program has changed it: left alone until `atfnctl resume {action.nic}`"
        return Outcome(action, now_ns, errno.ESTALE, None, left)
    key = action.key
    if key is None or action.kind not in _OF_FILTERS:
        return None
    flow = memory.table.get(key)
    if action.generation and action.generation != memory.table.generation(key):
        if action.kind is not ActionKind.DELETE or (flow and flow.location == action.location):
            left = "superseded: its entry has ended, or was decided anew"
            return Outcome(action, now_ns, errno.ESTALE, action.location, left)
        return None
    if action.kind is not ActionKind.REWRITE or (flow is not None and flow.location is not None):
        return None
    return Outcome(action, now_ns, errno.ENOENT, None, "its filter was deleted before its turn")


def _is_manual(action: Action, memory: Memory) -> bool:
    """It sets what another program has changed. A write waits for moves that are under way, and
    what is left alone is not ours by the undo journal any more, so no later check would see it."""
    setting, known = action.setting, memory.nics.get(action.nic)
    if action.kind is ActionKind.QUEUE_CPU and action.queue is not None:
        setting = of_queue("queue-cpu", action.queue)
    return known is not None and setting is not None and setting in known.view.manual


def overtaken(outcome: Outcome, nic: NicView, memory: Memory) -> None:
    """While a move waited its turn, its thread may have moved on, and the decision then may have
    been to leave the flow where it still was. If the flow has been led elsewhere since, look at it
    again."""
    action = outcome.action
    flow = memory.table.get(action.key) if action.key else None
    if flow is None or flow.key.listens or outcome.errno or action.kind is ActionKind.DELETE:
        return
    cpu = next((queue.cpu for queue in nic.queues if queue.index == flow.target_queue), None)
    if cpu != flow.target_cpu:
        memory.table.defer(flow.key, outcome.at_ns + memory.in_force.hold_down_ns)


def _without_filter(flow: Flow, why: Why, at_ns: int, port: Flow | None) -> Flow:
    """A flow whose filter made room: its port's filter may lead it where its own did."""
    there = port is not None and port.target_queue == flow.target_queue
    state = FlowState.PORT if there else FlowState.OVERFLOW
    target = flow.target_queue if there else None
    return flow._replace(state=state, location=None, target_queue=target, moved_ns=at_ns, why=why)


def moved(
    key: FlowKey, move: Move, memory: Memory, now_ns: int, *, deferred: bool, barred: bool = False
) -> bool:
    """Write how a move ended into the flow's entry; a move that was put off is decided again later,
    `barred` as `Ended` has it. False: that it was put off, and why, is already known."""
    flow = memory.table.get(key)
    if flow is None:
        return not deferred
    if not deferred:
        memory.table.put(flow._replace(move=move))
        return True
    memory.put_off(flow, move.why, now_ns, barred=barred)
    news = flow.move is None or (flow.move.verdict, flow.move.why) != (move.verdict, move.why)
    unsteered = flow.location is None
    target = None if unsteered else flow.target_queue
    why = Code.NOT_MOVED(move.why)
    if not unsteered:
        why = Code.STILL_LED(target, why)
    memory.table.put(flow._replace(move=move, why=why, target_queue=target))
    return news


def check_sockets(uses: Iterable[SocketUse], nics: Mapping[str, NicView], memory: Memory,
                  now_ns: int) -> Plan:  # fmt: skip
    """Audit: end flows whose socket is gone, note those in use, expire idle ones."""
    table, memory.audited_ns = memory.table, now_ns
    alive: dict[FlowKey, None] = {}  # in the order of `uses`
    plan: list[Action] = []
    turned_away = {flow.cookie for flow in table.overflowed.values()}
    for use in uses:
        if use.cookie in turned_away:
            turned_away.discard(use.cookie)
            _show_on(use, nics, memory, now_ns)
        flow = table.get(use.key)
        if flow is None or flow.cookie != use.cookie:
            continue
        alive[use.key] = None
        after = _refreshed(flow, use, nics.get(flow.nic), memory, now_ns)
        if after is not flow:
            table.put(after)
    for flow in [each for each in table.overflowed.values() if each.cookie in turned_away]:
        del table.overflowed[flow.key]  # its socket is gone
    for tid in [tid for tid in memory.threads if not table.of_thread(tid)]:
        del memory.threads[tid]
    for key in table.others(alive.keys()):
        flow = table.get(key)
        if flow is not None:
            plan += gone(flow.cookie, memory, Code.SOCKET_GONE())
    plan += _expired(alive, memory, now_ns)
    return tuple({(a.key, a.kind): a for a in plan}.values())


def _expired(alive: Iterable[FlowKey], memory: Memory, now_ns: int) -> Iterator[Action]:
    """The idle ones go, the sooner the fuller the table is: with each that goes it is less full.
    One that is MANUAL would be steered again at its next use, if it were forgotten."""
    table, idle_ns = memory.table, dict[str, int]()
    for flow in filter(None, map(table.get, alive)):
        if flow.state is FlowState.MANUAL or flow.used_ns == now_ns:
            continue
        if (table.due_ns(flow.key) or 0) > now_ns:
            continue  # it could not be deleted in order
        if flow.rule_name not in idle_ns:
            idle_ns[flow.rule_name] = memory.in_force.idle_ns(flow.rule_name)
        after_ns = t_delete_in_force_ns(idle_ns[flow.rule_name], len(table), table.capacity)
        if now_ns - flow.used_ns > after_ns:
            yield from idle(flow.cookie, memory, Code.IDLE(after_ns / 1e9))


def threads_ended(tids: Collection[int], memory: Memory) -> None:
    """These threads have ended: the user of their flows is unknown until another thread uses them.
    A process or a control group goes on owning its flows."""
    for tid in tids:
        for flow in memory.table.of_thread(tid):
            owner = owner_of(flow, memory)
            if owner is None or owner[0] == "thread":
                memory.table.put(flow._replace(thread=None))
        known = memory.threads.pop(tid, None)
        if known is not None and memory.table.of_thread(tid):
            memory.threads[tid] = known._replace(cpu=None, since_ns=-1)


def _show_on(use: SocketUse, nics: Mapping[str, NicView], memory: Memory, now_ns: int) -> None:
    """Update a flow that found the table full, for show."""
    flow = memory.table.overflowed.get(use.key)
    if flow is not None and flow.cookie == use.cookie:
        memory.table.overflowed[use.key] = _refreshed(flow, use, nics.get(flow.nic), memory, now_ns)


def _refreshed(
    flow: Flow, use: SocketUse, nic: NicView | None, memory: Memory, now_ns: int
) -> Flow:
    """The entry with what an audit saw of its socket."""
    unused = use.bytes == flow.bytes
    used_ns = flow.used_ns if unused else now_ns
    if use.used_ns is not None and use.used_ns > used_ns:
        used_ns = use.used_ns
    rx_cpu = flow.rx_cpu if use.rx_cpu is None else use.rx_cpu
    if unused and flow.rx_cpu is None and flow.target_cpu not in (None, rx_cpu):
        rx_cpu = None  # it last received before its queue followed its owner
    rx_queue = flow.rx_queue
    for queue in nic.queues if nic is not None and use.napi_id is not None else ():
        if queue.napi_id == use.napi_id:
            rx_queue = queue.index
            break
    if not unused or (rx_queue, rx_cpu, used_ns) != (flow.rx_queue, flow.rx_cpu, flow.used_ns):
        flow = flow._replace(rx_queue=rx_queue, rx_cpu=rx_cpu, bytes=use.bytes, used_ns=used_ns)
    return flow if nic is None else without_queue(flow, nic, memory)


def check_filters(
    nic: NicView, filters: Sequence[Filter], memory: Memory, now_ns: int
) -> list[Flow]:
    """Compare our entries with the NIC's list, read at `now_ns`. If another program deleted or
    rewrote a filter of ours, we leave the flow alone: it becomes MANUAL. One that the NIC accepted
    and never held (an asynchronous driver, a full table) is inserted again, after a longer wait
    each time. Returns those flows."""
    there = {each.location: each for each in filters}
    full = nic.caps.filter_slots is not None and len(filters) >= nic.caps.filter_slots
    changed = []
    for flow in memory.table.steered(nic.name):
        held = there.get(flow.location) if flow.location is not None else None
        if held is not None and held.match == Match.of(flow.key):
            if held.queue == flow.target_queue:
                if memory.would_be_listed(flow, now_ns):
                    memory.not_dropped(flow.key)
                continue
            state, why = FlowState.MANUAL, Code.REPOINTED(held.queue)
        elif not nic.caps.asynchronous or memory.was_there(flow):
            why = Code.REMOVED(flow.location)
            state = FlowState.MANUAL
        elif not memory.would_be_listed(flow, now_ns):
            continue
        else:
            why = memory.dropped_by_nic(flow.key, now_ns)
            state = FlowState.OVERFLOW if full else FlowState.WANTED
        after = flow._replace(state=state, location=None, target_queue=None, why=why)
        memory.table.put(after)
        changed.append(after)
    memory.nics[nic.name].listed_ns = now_ns
    return changed


def adopt(
    nic: NicView, ours: Sequence[Filter], sockets: Mapping[Match, SocketUse], memory: Memory,
    now_ns: int,
) -> tuple[list[Flow], Plan]:  # fmt: skip
    """Filters an earlier daemon left: those with a living socket become entries, the rest are
    deleted. A port's filter is needed as long as a connection lives, also when its listener is
    gone. A queue of several CPUs, as the kernel makes it when its own goes
    offline, keeps its flows. `sockets` is the inventory by exact match."""
    adopted: list[Flow] = []
    plan: list[Action] = []
    for left in ours:
        if left.match is None:
            raise ValueError(f"no filter of ours: {left}")
        use = sockets.get(left.match)
        queue = next((q for q in nic.queues if q.index == left.queue), None)
        key = left.match.key()
        if use is None and key.listens:
            inside = (each for each in sockets.values() if key.covers(each.key))
            use = next((each._replace(key=key, cookie=0) for each in inside), None)
        cpu = None if queue is None else queue.cpu
        app_cpu = min(memory.online(nic), default=None) if cpu is None else cpu
        if use is None or queue is None or app_cpu is None or memory.table.full():
            why = Code.LEFT_BY_EARLIER_RUN()
            plan.append(
                Action(
                    ActionKind.DELETE,
                    nic.name,
                    key,
                    left.location,
                    left.queue,
                    None,
                    why,
                    "",
                    live=False,
                )
            )
            continue
        flow = Flow(
            key=use.key, cookie=use.cookie, nic=nic.name, state=FlowState.STEERED,
            app_cpu=app_cpu, thread=None, target_queue=left.queue, target_cpu=cpu,
            location=left.location, rx_queue=None, rx_cpu=use.rx_cpu, bytes=use.bytes,
            used_ns=now_ns, moved_ns=0,
            rule_name="", why=Code.ADOPTED(),
        )  # fmt: skip
        memory.table.put(flow)
        adopted.append(flow)
    return adopted, tuple(plan)


def inherit(nic: NicView, action: Action, cookie: int, memory: Memory, now_ns: int) -> Flow | None:
    """The socket that now has a dead flow's 5-tuple takes over the filter that `action` was to
    delete. None: it cannot."""
    if action.key is None or action.location is None:
        raise ValueError(f"no filter: {action}")
    flow = memory.table.get(action.key)
    if flow is None:  # its filter is an earlier run's
        match, use = Match.of(action.key), SocketUse(cookie, action.key, None, None, None, 0)
        held = Filter(action.location, match, action.old)
        return next(iter(adopt(nic, [held], {match: use}, memory, now_ns)[0]), None)
    if flow.location != action.location:
        return None
    flow = flow._replace(cookie=cookie, bytes=0, used_ns=now_ns)
    memory.table.put(flow)
    return flow
