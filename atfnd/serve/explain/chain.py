# SPDX-License-Identifier: GPL-2.0-or-later
"""The chain of a flow, link by link, in sentences: thread, policy, rule, queue, NAPI, CPU. Pure.

Which filter of a NIC catches the flow is the NIC's own decision, repeated on its published table:
the lowest location wins (ethtool(8), --config-ntuple).
"""

from __future__ import annotations

from collections.abc import Iterable

from atfnd.model import (
    Filter,
    Flow,
    FlowKey,
    Match,
    NicView,
    Queue,
    Reception,
    ReceptionMode,
    SocketFound,
    SteeringMethod,
    Thread,
    Topology,
    network_of,
)
from atfnd.model.rss_hash import hash_known, type_of
from atfnd.serve.api.nic_views import filter_text

__all__ = [
    "catching_filter",
    "covers",
    "nic_links",
    "policy_link",
    "queue_link",
    "queue_of",
    "seen_link",
    "socket_link",
    "thread_link",
    "unread",
]


_USUAL = ReceptionMode.INTERRUPT, ReceptionMode.LEAVE
_RECEIVED = {
    ReceptionMode.INTERRUPT: "interrupt",
    ReceptionMode.DEFERRED: "a timer that polls while there is traffic (deferred interrupts)",
    ReceptionMode.SUSPENDED: "the application's epoll while it is busy, else by a timer",
    ReceptionMode.BUSY: "a NAPI thread that polls without end",
}


def thread_link(flow: Flow) -> str:
    """Which thread uses it, and where."""
    thread = flow.thread
    if thread is None:
        return f"{flow.key} is used on CPU {flow.app_cpu}; its thread is not known."
    return f"{flow.key} is used on CPU {flow.app_cpu} by {_named(thread)}."


def _named(thread: Thread) -> str:
    who = f"thread {thread.tid} ({thread.comm})"
    return who if thread.tid == thread.pid else f"{who} of process {thread.pid}"


def socket_link(found: SocketFound) -> str:
    """As `thread_link`, of a flow without an entry."""
    if found.thread is not None:
        by = f"{_named(found.thread)}, which ran last on CPU {found.app_cpu}"
        return f"{found.key} exists: it is used by {by}."
    where = "" if found.app_cpu is None else f"is used on CPU {found.app_cpu}; "
    return f"{found.key} exists; {where}its thread is not known."


def policy_link(flow: Flow) -> str:
    """What its policy wants for it, and why."""
    if flow.target_cpu is None:
        wish = "asks for no CPU"
    elif flow.target_queue is None:
        wish = f"wants its packets on CPU {flow.target_cpu}"
    else:
        wish = f"wants its packets on CPU {flow.target_cpu}, through queue {flow.target_queue}"
    return f"Policy `{flow.rule_name}` {wish}: {flow.why}."


def nic_links(nic: NicView, key: FlowKey, held: Filter | None, rss_queue: int | None) -> list[str]:
    """What the NIC does with the flow's packets now, and which thread polls the queue it puts them
    in."""
    if held is not None:
        whose = "ours" if held.location in nic.owned else "not ours"
        hits = "" if held.hits is None else f", {held.hits} hits"
        link = f"{nic.name}: filter {held.location} ({whose}{hits}) sends it to queue {held.queue}."
        queue = queue_of(nic, held.queue)
    elif rss_queue is not None:
        link = f"{nic.name}: no filter catches it; RSS sends it to queue {rss_queue}."
        queue = queue_of(nic, rss_queue)
    elif key.remote_port and (hashed := hash_known(nic, type_of(key))) and not hashed.known:
        why = f"which queue RSS sends it to is not known: {hashed.why}"
        return [f"{nic.name}: no filter catches it; {why}."]
    else:
        return [f"{nic.name}: no filter catches it; RSS chooses a queue for each remote."]
    shown = f"{nic.name} shows no such queue." if queue is None else queue_link(nic, queue)
    links = [link, shown]
    if queue is not None:
        links += _reception_link(nic, queue)
    if queue is not None and nic.method is SteeringMethod.FILTERS:
        links += _held_link(nic, queue)
    if others := unread(nic.filters, held):
        first = f"{others[0].location} ({filter_text(others[0])})"
        links.append(
            f"Unless a filter catches it first that atfnd cannot compare, such as {first}."
        )
    return links


def queue_of(nic: NicView, index: int | None) -> Queue | None:
    """The queue of this number, None when the NIC shows none."""
    return next((queue for queue in nic.queues if queue.index == index), None)


def queue_link(nic: NicView, queue: Queue) -> str:
    """Queue, NAPI, interrupt and CPU; and the interrupt's affinity, if it allows other CPUs."""
    napi = "its NAPI" if queue.napi_id is None else f"NAPI {queue.napi_id}"
    if queue.irq is not None:
        napi += f" after interrupt {queue.irq}"
    if queue.threaded and queue.pid is not None:
        borrowed = ", borrowed for moves" if queue.borrowed else ""
        napi += f" in kernel thread {queue.pid}{borrowed}"
    where = queue.loose if queue.cpu is None else f"on CPU {queue.cpu}"
    allowed = nic.settings.get(f"queue-cpu:{queue.index}")
    if allowed and allowed != str(queue.cpu):
        where += f" (it may go to CPUs {allowed})"
    return f"Queue {queue.index} is polled by {napi}, {where}."


def _reception_link(nic: NicView, queue: Queue) -> list[str]:
    """What begins a poll, if it is no interrupt or the policy has a say in it."""
    found, (wanted, rule_name) = (
        Reception.found(nic.settings, queue.index),
        nic.reception_of(queue.index),
    )
    if (why_not := nic.not_received.get(queue.index)) is not None:
        return [f"Queue {queue.index} is not received as its policy asks: {why_not}."]
    if found is None or (found.mode, wanted.mode) == _USUAL:
        return []
    whose = "as it was found" if wanted.mode is ReceptionMode.LEAVE else "as its policy asks"
    rule = f" (rule `{rule_name}`)" if rule_name else ""
    if (auto := nic.piloted.get(queue.index)) is not None:
        return [f"Queue {queue.index} is received by {_RECEIVED[found.mode]}{rule}: {auto}."]
    return [f"Queue {queue.index} is received by {_RECEIVED[found.mode]}, {whose}{rule}."]


def _held_link(nic: NicView, queue: Queue) -> list[str]:
    """Of a queue that no thread polls for good."""
    if queue.threaded is None or (queue.threaded and not queue.borrowed):
        return []
    return [f"What holds it while flows move in order: {nic.held_by(queue)}."]


def seen_link(flow: Flow | SocketFound, topology: Topology) -> str:
    """Where its packets came in, as the socket shows it."""
    if flow.rx_cpu is None:
        return "None of its packets has been observed yet."
    queue = "" if flow.rx_queue is None else f"from queue {flow.rx_queue} "
    seen = f"Its packets were last seen {queue}on CPU {flow.rx_cpu}"
    kin = "" if flow.app_cpu is None else f": {_kinship(flow.rx_cpu, flow.app_cpu, topology)}"
    return f"{seen}{kin}."


def _kinship(rx_cpu: int, app_cpu: int, topology: Topology) -> str:
    """What the receiving CPU shares with that of the application."""
    cpus = {cpu.index: cpu for cpu in topology.cpus}
    rx, app = cpus.get(rx_cpu), cpus.get(app_cpu)
    if rx_cpu == app_cpu:
        return "the application's own"
    if rx is None or app is None:
        return f"not the application's CPU {app_cpu}"
    if app_cpu in rx.smt:
        return f"the SMT sibling of the application's CPU {app_cpu}"
    if app_cpu in rx.llc:
        return f"under the same last-level cache as the application's CPU {app_cpu}"
    if rx.node is not None and rx.node == app.node:
        return f"on the NUMA node of the application's CPU {app_cpu}, behind another cache"
    if rx.node is not None and app.node is not None:
        return f"on NUMA node {rx.node}, the application's CPU {app_cpu} is on node {app.node}"
    return f"not the application's CPU {app_cpu}"


def covers(match: Match, key: FlowKey) -> bool:
    """Every packet of the flow satisfies `match`. The flow of an unconnected socket leaves the
    remote open: a filter that names a remote catches only a part of it, and does not cover it."""
    return (
        match.family == key.family
        and match.protocol in (None, key.protocol)
        and match.src_port in (None, key.remote_port)
        and match.dst_port in (None, key.local_port)
        and _inside(key.remote, match.src, match.src_prefix)
        and _inside(key.local, match.dst, match.dst_prefix)
    )


def _inside(address: bytes, network: bytes | None, prefix: int) -> bool:
    return network is None or (any(address) and network_of(address, prefix) == network)


def catching_filter(filters: Iterable[Filter], key: FlowKey) -> Filter | None:
    """The filter that decides for this flow; None: RSS does. Filters of other shapes are not judged
    here: see `unread`."""
    matching = (each for each in filters if each.match is not None and covers(each.match, key))
    return min(matching, key=lambda each: each.location, default=None)


def unread(filters: Iterable[Filter], before: Filter | None) -> list[Filter]:
    """Filters of shapes that `Match` cannot express, which may catch the flow first."""
    return [
        each
        for each in filters
        if each.match is None and (before is None or each.location < before.location)
    ]
