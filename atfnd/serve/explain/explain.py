# SPDX-License-Identifier: GPL-2.0-or-later
"""Why a flow's packets arrive where they do: thread, policy, rule, queue, NAPI, CPU, in sentences.

Pure: reads only published values, so it can be wrong for as long as they are old.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from typing_extensions import TypedDict

from atfnd.model import (
    Filter,
    Flow,
    FlowKey,
    FlowState,
    Match,
    NicView,
    Queue,
    SocketFound,
    SocketState,
    SteeringMethod,
    Topology,
    cpu_list,
)
from atfnd.model.reason import Code
from atfnd.serve.api.moves import move_link
from atfnd.serve.api.nic_views import filter_text
from atfnd.serve.api.views import placed
from atfnd.serve.explain.chain import (
    catching_filter,
    nic_links,
    policy_link,
    queue_of,
    seen_link,
    socket_link,
    thread_link,
)
from atfnd.serve.explain.steering_method import by_entry, by_port, by_rfs, in_the_shade, method_link

__all__ = ["Explanation", "explain", "explain_absent", "explain_several", "explain_unsteered"]
__all__ += ["ExplanationShown", "explanation_view", "pin"]


OTHERWISE = "put a queue on such a CPU, or change its rule's placement"
# They say more than that the NIC is full.
OF_ITS_SHARE = {
    Code.RULE_SHARE, Code.PORTS_SHARE, Code.TENANT_SHARE, Code.NONE_HAS_MORE, Code.TABLE_SHARE,
}  # fmt: skip
_NO_SOCKET = "`ss -tunap` shows whether the socket exists, `atfnctl events` whether it had an entry"
WHILE_FULL = (
    "nothing: it is steered again when that CPU has time; if one core is too little for it, use "
    "more threads, or `near: llc` in its rule; since when: atfnctl events --kind full"
)


class Explanation(NamedTuple):
    """The chain from the application to its packets, the verdict, and what to do (None:
    nothing)."""

    chain: tuple[str, ...]
    verdict: str
    advice: str | None


class ExplanationShown(TypedDict):
    """The same for programs."""

    chain: list[str]
    verdict: str
    advice: str | None


def explanation_view(explanation: Explanation) -> ExplanationShown:
    chain, verdict, advice = explanation
    return {"chain": list(chain), "verdict": verdict, "advice": advice}


def explain(
    flow: Flow,
    nic: NicView | None,
    topology: Topology,
    rss_queue: int | None,
    remarks: Sequence[str] = (),
) -> Explanation:
    """A flow of the table; `nic` None: its interface is gone. `rss_queue`: where RSS sends it;
    `remarks`: as `Source.remarks`."""
    chain = [thread_link(flow), policy_link(flow), *remarks]
    if nic is None:
        verdict = f"{flow.nic} is gone, so nothing is delivered through it."
        return Explanation((*chain, seen_link(flow, topology)), verdict, None)
    held = catching_filter(nic.filters, flow.key)
    chain += method_link(nic)
    chain += nic_links(nic, flow.key, held, rss_queue)
    chain += move_link(flow)
    chain.append(seen_link(flow, topology))
    verdict, advice = _verdict(flow, nic, held)
    return Explanation(tuple(chain), verdict, advice)


def explain_absent(
    key: FlowKey,
    nics: Sequence[tuple[NicView, int | None]],
    left_by: str | None = None,
    remarks: Sequence[str] = (),
) -> Explanation:
    """A flow without an entry and without a socket that receives through one of these NICs; with
    each comes the queue RSS gives the flow there. `left_by` is the policy rule that leaves such
    flows alone, if one does; `remarks`: as `Source.port_remarks`."""
    chain = [
        f"{key} is not in the Flow-to-Core table.",
        "No socket of it receives through a watched interface.",
        *remarks,
    ]
    for nic, rss_queue in nics:
        if not nic.up:
            chain.append(f"{nic.name} is down: it delivers nothing.")
            continue
        chain += method_link(nic)
        chain += nic_links(nic, key, catching_filter(nic.filters, key), rss_queue)
    views = [nic for nic, _ in nics]
    return Explanation(tuple(chain), *_without_entry(views, left_by, _NO_SOCKET))


def explain_unsteered(
    found: SocketFound,
    nic: NicView | None,
    topology: Topology,
    rss_queue: int | None,
    left_by: str | None = None,
    remarks: Sequence[str] = (),
) -> Explanation:
    """A flow that has a socket here and no entry; the rest as for the others."""
    left = "." if left_by is None else f": policy {left_by} says leave."
    chain = [socket_link(found), f"It has no entry in the Flow-to-Core table{left}", *remarks]
    if nic is None:
        return Explanation((*chain, seen_link(found, topology)), f"{found.nic} is gone.", None)
    held = catching_filter(nic.filters, found.key)
    chain += [
        *method_link(nic),
        *nic_links(nic, found.key, held, rss_queue),
        seen_link(found, topology),
    ]
    if not nic.up:
        verdict, advice = f"{nic.name} is down: it delivers nothing.", f"bring {nic.name} up"
    elif found.state is SocketState.LOCAL:
        by = _by(found, nic) if held is None else f"filter {held.location}"
        where = f"on CPU {found.rx_cpu}, where its thread runs"
        verdict, advice = f"Delivered by {by} {where}: nothing to do.", None
    else:
        verdict, advice = _without_entry([nic], left_by)
    return Explanation(tuple(chain), verdict, advice)


def _without_entry(
    nics: Sequence[NicView], left_by: str | None, hint: str = ""
) -> tuple[str, str | None]:
    """Why a flow has none; `hint` is what to do where no rule and no RFS is the reason."""
    if left_by is not None:
        verdict = f"Left to RSS on purpose: policy {left_by} says leave."
        return verdict, "to have it steered, change that rule"
    by_rfs = [nic.name for nic in nics if nic.armed and nic.method is SteeringMethod.RFS]
    if by_rfs:
        verdict = (
            f"If it comes in through {by_rfs[0]}, the kernel hands its packets on to the CPU its "
            "thread last used it on (RFS). It does so for every flow, without an entry."
        )
        return verdict, None
    verdict = (
        "atfnd does not steer it: an entry begins when an application thread here has used the "
        "socket, past the policy's thresholds, for the dwell on a CPU its packets do not arrive "
        "on, and ends with the socket or after t_delete without use."
    )
    unarmed = [nic.name for nic in nics if not nic.armed]
    arm = f"to have flows steered: atfnctl arm {unarmed[0]}" if unarmed else ""
    return verdict, "; ".join(filter(None, (hint, arm))) or None


def explain_several(text: str, first: FlowKey, count: int, most: int) -> Explanation:
    """More than one flow has what was asked for; `first` is one of them."""
    which = f"the first {most} of those that have" if count == most else f"{count} flows have"
    named = str(first).replace(" <-", "")
    return Explanation((), f"{which.capitalize()} {text}.", f"name one: atfnctl explain {named}")


def _verdict(flow: Flow, nic: NicView, held: Filter | None) -> tuple[str, str | None]:
    if not nic.up:
        return f"{nic.name} is down: it delivers nothing.", f"bring {nic.name} up"
    match flow.state:
        case FlowState.STEERED:
            return _steered(flow, nic, held)
        case FlowState.OBSERVED if nic.paused:
            return (
                f"Not steered: {nic.name} is paused, and our filters are out of it.",
                f"atfnctl resume {nic.name}",
            )
        case FlowState.OBSERVED:
            return (
                f"Only observed: {nic.name} is not armed, so its delivery is left as it is.",
                f"atfnctl arm {nic.name}" if placed(flow) is not True else None,
            )
        case FlowState.WANTED:
            return _wanted(flow, nic)
        case FlowState.OVERFLOW:
            return _overflow(flow, nic)
        case FlowState.RSS:
            return by_entry(flow)
        case FlowState.SHARED:
            return in_the_shade(flow)
        case FlowState.PORT:
            return by_port(flow)
        case FlowState.RFS:
            return by_rfs(flow)
        case FlowState.MANUAL:
            return (
                f"Left alone: {flow.why}. atfnd keeps what another program decides.",
                f"to have it steered again: atfnctl resume {nic.name}",
            )


def _steered(flow: Flow, nic: NicView, held: Filter | None) -> tuple[str, str | None]:
    """A filter should be in the NIC. Names the first link of the chain that does not hold."""
    ours = next((r for r in nic.filters if r.location == flow.location), None)
    if ours is None:
        return (
            f"Our filter {flow.location} is not in {nic.name}: another program removed "
            "it, or it is being written.",
            f"atfnd will leave it alone; to take it back after that: atfnctl resume {nic.name}",
        )
    if held is not None and held.location != ours.location:
        return (
            f"Filter {held.location} ({filter_text(held)}) catches it before our filter "
            f"{ours.location}.",
            f"delete filter {held.location}, or let the policy leave what it catches",
        )
    queue = queue_of(nic, ours.queue)
    if queue is None or ours.queue != flow.target_queue:
        return (
            f"Filter {ours.location} sends it to queue {ours.queue}, not to queue "
            f"{flow.target_queue}.",
            f"atfnd corrects its filters itself; if it stays so: atfnctl filters --nic {nic.name}",
        )
    if flow.target_cpu is None:
        where = f"queue {queue.index}, delivered on CPU {queue.cpu}"
        return (
            f"Its filter stays and leads it to {where}: {flow.fell_back or flow.why}.",
            _otherwise(flow, nic),
        )
    if queue.cpu != flow.target_cpu:
        if (followed := _followed(flow, nic, queue)) is not None:
            return followed, None
        moved = "no one CPU" if queue.cpu is None else f"CPU {queue.cpu}"
        return (
            f"Queue {queue.index} is delivered on {moved}, no longer on CPU {flow.target_cpu}: "
            "another program moved it.",
            pin(queue, flow.target_cpu) or "find what else sets affinities, such as irqbalance",
        )
    return _steered_and(flow, nic, queue)


def _followed(flow: Flow, nic: NicView, queue: Queue) -> str | None:
    """A queue that is not where this flow's entry has it, because we moved it or are about to.
    None: another program moved it."""
    owner = nic.owners.get(queue.index)
    if owner is None or queue.cpu is None or f"queue-cpu:{queue.index}" in nic.manual:
        return None
    at = f"Queue {queue.index} is"
    thread = flow.thread
    mine = thread and {f"thread {thread.tid}", f"process {thread.pid}", f"cgroup {thread.cgroup}"}
    if mine and owner in mine:
        runs = f"it follows {owner}, which runs on CPU {flow.app_cpu} now"
        return f"{at} still delivered on CPU {queue.cpu}: {runs}."
    where = f"where it followed {owner}, not on CPU {flow.target_cpu}"
    return f"{at} delivered on CPU {queue.cpu}, {where}."


def _steered_and(flow: Flow, nic: NicView, queue: Queue) -> tuple[str, str | None]:
    """The whole chain holds on paper; the observation decides."""
    if flow.rx_cpu is None:
        return "Steered; no packet has been observed since, so this is not yet verified.", None
    if placed(flow):
        return f"Steered and verified: its packets arrive on CPU {flow.rx_cpu}.", None
    if flow.fell_back is not None and flow.rx_cpu == flow.target_cpu:
        verdict = f"Its packets arrive on CPU {flow.rx_cpu}, a fallback: {flow.fell_back}."
        return verdict, _otherwise(flow, nic)
    if flow.used_ns <= flow.moved_ns:
        return (
            f"Steered; it has not been used since its filter changed, and before that its packets "
            f"came on CPU {flow.rx_cpu}.",
            None,
        )
    if flow.rx_queue == queue.index:
        return (
            f"Steered to queue {queue.index}, yet its packets are still seen on CPU "
            f"{flow.rx_cpu}: something moves them on after the queue.",
            "look for RPS or RFS (queues/rx-*/rps_cpus, rps_flow_cnt), a tunnel or a cpumap",
        )
    return (
        f"Steered, but packets are still seen on CPU {flow.rx_cpu}: the NIC has not acted on the "
        "filter, or packets from before it were still on their way.",
        "run explain again; if it stays so, see whether the filter's hits grow: atfnctl filters",
    )


def _by(flow: Flow | SocketFound, nic: NicView) -> str:
    """What delivers a flow that has no filter."""
    tables = "rps-sock-flow-entries", f"rps-flow-cnt:{flow.rx_queue}"
    rfs = all(nic.settings.get(table, "0") != "0" for table in tables)
    return f"RFS on queue {flow.rx_queue}" if rfs else "RSS"


def _wanted(flow: Flow, nic: NicView) -> tuple[str, str | None]:
    if flow.left is not None:
        verdict = f"Left to {_by(flow, nic)}: {str(flow.left).removesuffix(': left to RSS')}."
        return verdict, WHILE_FULL if flow.left.code is Code.LEFT_FULL else None
    if placed(flow) and flow.target_queue is None:
        where = f"its packets arrive on CPU {flow.rx_cpu}, where its thread runs"
        return f"Not steered, and need not be: {where}.", None
    if flow.fell_back is not None and flow.target_cpu is None:
        return f"Not steered: {flow.fell_back}.", _otherwise(flow, nic)
    cpu = flow.app_cpu if flow.target_cpu is None else flow.target_cpu
    if flow.target_queue is not None or any(queue.cpu == cpu for queue in nic.queues):
        if not nic.caps.takes(Match.of(flow.key)):
            return f"Not steered: {flow.why}. RSS delivers it.", None
        return (
            f"Wanted, but no filter is in place: {flow.why}. RSS delivers it meanwhile.",
            f"atfnd tries again by itself; what was refused: atfnctl events --nic {nic.name}",
        )
    served = sorted({queue.cpu for queue in nic.queues if queue.cpu is not None})
    verdict = f"No queue of {nic.name} is delivered on CPU {cpu}, so no filter can bring it there."
    if (taken := nic.taken_from(cpu)) is not None:
        return verdict, _lent(taken, cpu, nic)
    ways = []
    if served and flow.thread is not None:
        taskset = f"taskset -pc {cpu_list(served)} {flow.thread.tid}"
        ways.append(f"run the application where queues are: {taskset}")
    loose = [queue for queue in nic.queues if queue.cpu is None] or list(nic.queues)
    if loose and (how := pin(loose[-1], cpu)):
        ways.append(f"give that CPU a queue: {how}")
    ways.append("add queues (ethtool -L)")
    return verdict, "; or ".join(ways)


def _otherwise(flow: Flow, nic: NicView) -> str:
    """What to do for a flow whose placement is not available."""
    taken = nic.taken_from(flow.app_cpu)
    return OTHERWISE if taken is None else _lent(taken, flow.app_cpu, nic)


def _lent(queue: Queue, cpu: int, nic: NicView) -> str:
    """A queue of this CPU is elsewhere because we moved it: an operator has nothing to do."""
    whose = nic.owners.get(queue.index)
    why = f"follows {whose}" if whose is not None else "followed its owner"
    return (
        f"nothing: queue {queue.index} of CPU {cpu} {why} to CPU {queue.cpu}, and goes back after"
    )


def pin(queue: Queue, cpu: int | None) -> str | None:
    """The command that confines a queue to a CPU."""
    if cpu is None:
        return None
    if queue.threaded and queue.pid is not None:
        return f"taskset -pc {cpu} {queue.pid} (queue {queue.index})"
    if queue.irq is not None:
        return f"echo {cpu} > /proc/irq/{queue.irq}/smp_affinity_list (queue {queue.index})"
    return None


def _overflow(flow: Flow, nic: NicView) -> tuple[str, str | None]:
    slots = nic.caps.filter_slots
    fill = f"{len(nic.filters)} filters" + ("" if slots is None else f" in {slots} slots")
    foreign = len(nic.filters) - len(nic.owned)
    if slots is not None and len(nic.filters) >= slots:
        why = f"{nic.name}'s filter table is full ({fill}, {foreign} not ours)"
        why += f": {flow.why}" if flow.why.code in OF_ITS_SHARE else ""
    else:
        why = f"there was no room for it ({nic.name} holds {fill}): {flow.why}"
    return (
        f"Not steered, delivered by RSS: {why}.",
        "it gets a filter when there is room, or when it is worth more than a flow that has one; "
        "raise the limit (table capacity, filters.max), or let the policy match fewer flows "
        "(min_rate, min_bytes)",
    )
