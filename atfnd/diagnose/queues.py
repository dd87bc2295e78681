# SPDX-License-Identifier: GPL-2.0-or-later
"""Compares a NIC's queues with the machine's CPUs: what is delivered where, and what is wrong.
Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from shlex import quote

from atfnd.model import Finding, Level, NicView, Queue, SteeringMethod, Topology, cpu_list
from atfnd.model.nic import RSS_KEY
from atfnd.model.reception import DEFER, TIMEOUT
from atfnd.model.rss_hash import flow_type_words, hashes_known, symmetric_transform

__all__ = ["queues_of"]

_LENT_MOST_NS = 12_500_000  # of a timeout that is borrowed (move/choose.py)
_FILE = {DEFER: "napi_defer_hard_irqs", TIMEOUT: "gro_flush_timeout"}


def queues_of(nic: NicView, topology: Topology) -> Iterator[Finding]:
    """Findings on RSS, the number of queues, the CPU of each queue, and what polls it."""
    if nic.rss is not None:
        spread, entries = len(set(nic.rss.table)), len(nic.rss.table)
        written = "can" if nic.caps.rss_table else "cannot"
        what = f"RSS spreads over {spread} queues; its table of {entries} {written} be written"
        yield Finding(nic.name, Level.OK, what)
        yield from _rss_hash(nic)
    if nic.queues:  # the NIC itself reports a single queue as a conflict
        yield from _cpus(nic, topology)
        yield from _threads(nic)
        yield from _receptions(nic)
        yield from _rfs(nic)
        yield from _hash(nic)
    else:
        what = "it names no receive queue: it is not known where its packets arrive"
        yield Finding(nic.name, Level.WARNING, what)


def _rss_hash(nic: NicView) -> Iterator[Finding]:
    """Of which flows the hash is known, and why not of the others."""
    found = hashes_known(nic)
    for known, why in dict.fromkeys((each.known, each.why) for each in found):
        flows = ", ".join(flow_type_words(each.flows) for each in found if each.why == why)
        if known:
            yield Finding(nic.name, Level.OK, f"RSS hash of {flows}: {why}")
            continue
        what = (
            f"RSS hash of {flows}: not known, {why}. A move of such a flow waits until every queue "
            "has drained, or is put off"
        )
        yield Finding(nic.name, Level.NOTE, what)


def _cpus(nic: NicView, topology: Topology) -> Iterator[Finding]:
    cpus = {cpu.index: cpu for cpu in topology.cpus}
    confined = [queue for queue in nic.queues if queue.cpu is not None]
    loose = [queue for queue in nic.queues if queue.cpu is None]
    taken = Counter(queue.cpu for queue in confined)
    served = cpu_list(cpu for cpu in taken if cpu is not None)
    on = f" on CPUs {served}" if served else ""
    count = "1 queue is" if len(nic.queues) == 1 else f"{len(nic.queues)} queues are"
    yield Finding(nic.name, Level.OK, f"{count} delivered{on}")
    for where in sorted({queue.loose for queue in loose} if nic.up else ()):
        those = [queue for queue in loose if queue.loose == where]
        what = f"{_names(those)} {where}: no flow can be steered there"
        yield Finding(nic.name, Level.WARNING, what, _place_by(nic, those))
    several = [q for q in confined if _allowed(nic, q) not in (None, str(q.cpu))]
    if several:
        what = f"{_names(several)} allowed on several CPUs: the kernel chose, and may choose again"
        yield Finding(nic.name, Level.NOTE, what, _place_by(nic, several))
    offline = [q for q in confined if q.cpu in cpus and not cpus[q.cpu].online]
    if offline:
        what = f"{_names(offline)} on an offline CPU"
        yield Finding(nic.name, Level.WARNING, what, _place_by(nic, offline))
    outside = [q for q in confined if q.cpu is not None and not nic.serve_on.allows(q.cpu)]
    if outside and nic.armed:
        what = (
            f"{_names(outside)} on CPUs where the policy serves no queue (serve_on {nic.serve_on})"
        )
        yield Finding(nic.name, Level.WARNING, what, _place_by(nic, outside))
    isolated = [
        q
        for q in confined
        if q.cpu in cpus and cpus[q.cpu].isolated and not nic.serve_on.names(q.cpu)
    ]
    if isolated:
        yield Finding(
            nic.name,
            Level.WARNING,
            f"{_names(isolated)} on isolated CPUs, which the packets disturb",
            f"unless the applications run there: {_place_by(nic, isolated)}",
        )
    bare = [
        cpu.index
        for cpu in topology.cpus
        if cpu.online
        and not cpu.isolated
        and cpu.index not in taken
        and nic.serve_on.allows(cpu.index)
    ]
    free = [cpu for cpu in bare if nic.taken_from(cpu) is None]
    if lent := [cpu for cpu in bare if cpu not in free]:
        what = f"queues of CPUs {cpu_list(lent)} follow their owners now, and go back afterwards"
        yield Finding(nic.name, Level.OK, what)
    crowded = [q for q in confined if taken[q.cpu] > 1 and q.index not in nic.owners]
    if crowded and free:
        what = f"{_names(crowded)} sharing CPUs, while CPUs {cpu_list(free)} have no queue"
        yield Finding(nic.name, Level.WARNING, what, _place_by(nic, crowded))
    elif free and not loose:
        yield Finding(
            nic.name,
            Level.NOTE,
            f"CPUs {cpu_list(free)} have no queue: flows of applications there stay where they are",
            _more_queues(nic),
        )
    node = nic.device.node
    far = [q for q in confined if q.cpu in cpus and cpus[q.cpu].node not in (None, node)]
    if node is not None and far:
        yield Finding(
            nic.name,
            Level.NOTE,
            f"it is on NUMA node {node}, {_names(far)} on another: right for applications there, "
            "a detour for others",
        )


def _threads(nic: NicView) -> Iterator[Finding]:
    """Only a queue with a NAPI thread can be quiesced. But such a thread keeps its CPU busy while
    it wakes the application, so the scheduler wakes an application that is not pinned on another
    CPU (select_idle_sibling(), kernel/sched/fair.c)."""
    if nic.method is not SteeringMethod.FILTERS:
        return
    threaded = [queue for queue in nic.queues if queue.threaded and not queue.borrowed]
    softirq = [queue for queue in nic.queues if queue.threaded is False or queue.borrowed]
    reasons = {queue: nic.lends_not(queue) for queue in softirq}
    by_loan = [queue for queue, why_not in reasons.items() if why_not is None]
    without = [queue for queue, why_not in reasons.items() if why_not is not None]
    if by_loan:
        what = (
            f"{_names(by_loan)} polled in softirq, and by NAPI threads that are borrowed for the "
            "moment while established flows are moved in order, or RFS is switched"
        )
        yield Finding(nic.name, Level.OK, what)
    if without:
        what = (
            f"{_names(without)} polled in softirq: strict order places flows during their "
            "handshake and lets queues follow their threads, but does not move flows that are "
            "established"
        )
        if nic.unowned_rfs and nic.refuses_rfs() is None:
            what += ", and RFS is not switched on for them"
        what += f" ({'; '.join(sorted({reasons[queue] or '' for queue in without}))})"
        advice = (
            f"if applications are pinned: {nic.echo('1', 'threaded')} "
            "(applications that are not pinned then leave the CPU of their packets)"
        )
        yield Finding(nic.name, Level.NOTE, what, advice)
    if threaded:
        what = (
            f"{_names(threaded)} polled by NAPI threads: at low load, applications that are not "
            "pinned leave the CPU of their packets"
        )
        advice = f"pin them, or: {nic.echo('0', 'threaded')}"
        yield Finding(nic.name, Level.NOTE, what, advice)


def _receptions(nic: NicView) -> Iterator[Finding]:
    """What defers interrupts: settings without effect, and what is lost by those that have one."""
    alone = {TIMEOUT: list[Queue](), DEFER: list[Queue]()}
    late = list[Queue]()
    for queue in nic.queues:
        polls, timeout_ns = (nic.deferral(kind, queue.index) for kind in (DEFER, TIMEOUT))
        if polls and timeout_ns:
            has_thread = queue.threaded and not queue.borrowed
            late += [queue] if timeout_ns > _LENT_MOST_NS and not has_thread else []
        elif polls and timeout_ns == 0:
            alone[DEFER].append(queue)
        elif timeout_ns and polls == 0:
            alone[TIMEOUT].append(queue)
    if queues := alone[DEFER]:
        what = f"{_names(queues)} without effect of napi_defer_hard_irqs: gro_flush_timeout is 0"
        yield Finding(nic.name, Level.NOTE, what, _off(nic, DEFER))
    if queues := alone[TIMEOUT]:
        what = (
            f"{_names(queues)} holding packets in GRO (gro_flush_timeout) without deferring "
            "interrupts (napi_defer_hard_irqs is 0): strict order moves no live flow out of there"
        )
        yield Finding(nic.name, Level.WARNING, what, _off(nic, TIMEOUT))
    if late and nic.method is SteeringMethod.FILTERS:
        what = (
            f"{_names(late)} deferring interrupts by more than 12.5 ms without a NAPI thread: a "
            "queue there does not follow its thread, because the timer that polls it stays there"
        )
        advice = f"if queues should follow: {nic.echo('1', 'threaded')}"
        yield Finding(nic.name, Level.NOTE, what, advice)
    for index, why_not in sorted(nic.not_received.items()):
        what = f"queue {index} is not received as the policy asks: {why_not}"
        yield Finding(nic.name, Level.WARNING, what, "docs/reception.md says what needs what")


def _off(nic: NicView, kind: str) -> str:
    return f"set both, or: {nic.echo('0', _FILE[kind])}"


def _rfs(nic: NicView) -> Iterator[Finding]:
    if not nic.armed and nic.has_rfs() and not nic.caps.arfs:  # aRFS is a conflict of its own
        what = f"RFS is set up here: when {nic.name} is armed, {_left_of_rfs(nic)}"
        advice = (
            "let a script that sets it run before atfnd, or in a pause: what it sets later counts "
            "as another program's, and is left alone"
        )
        yield Finding(nic.name, Level.NOTE, what, advice)
    if nic.unowned_rfs and (why := nic.refuses_rfs()) is not None:
        what = f"flows of threads that wander are left to RSS, because no queue can have RFS: {why}"
        yield Finding(nic.name, Level.NOTE, what)


def _hash(nic: NicView) -> Iterator[Finding]:
    if nic.symmetric_hash and RSS_KEY not in nic.settings:
        what = "rss_hash: symmetric is not in force: this NIC does not let anybody set a hash key"
        yield Finding(nic.name, Level.NOTE, what)
    elif nic.symmetric_hash and nic.poor_key:
        what = f"rss_hash: symmetric was taken back: {nic.poor_key}"
        yield Finding(
            nic.name, Level.NOTE, what, f"to try it again: atfnctl resume {quote(nic.name)}"
        )
    elif nic.symmetric_hash and (transform := symmetric_transform(nic)) is not None:
        what = f"its hash is symmetric without a key ({transform.value}): rss_hash writes none"
        advice = "give all interfaces of that rule one hash, and one key: ethtool -X"
        yield Finding(nic.name, Level.NOTE, what, advice)


def _left_of_rfs(nic: NicView) -> str:
    if nic.method in (SteeringMethod.RFS, SteeringMethod.NONE):
        return "it stays"
    if nic.wants_rfs() and nic.refuses_rfs() is None:
        return "it stays on queues that no thread owns"
    return "it is switched off, until restore"


def _names(queues: Iterable[Queue]) -> str:
    """`queue 3 is`, `queues 0-3,7 are`."""
    indices = [queue.index for queue in queues]
    if len(indices) == 1:
        return f"queue {indices[0]} is"
    return f"queues {cpu_list(indices)} are"


def _allowed(nic: NicView, queue: Queue) -> str | None:
    """The CPU list of its affinity, where it was read."""
    return nic.settings.get(f"queue-cpu:{queue.index}")


def _place_by(nic: NicView, queues: list[Queue]) -> str:
    """How to confine a queue, with the first as an example."""
    queue = queues[0]
    if queue.irq is None and queue.pid is None:
        return (
            "neither the kernel nor the names of the interrupts say which: if the driver counts "
            "packets by queue, atfnd run finds out while they come to some queues and not to others"
        )
    if not nic.caps.queue_cpu:
        return "its interrupts cannot be moved: give it another number of queues (ethtool -L)"
    if queue.threaded and queue.pid is not None:
        return f"taskset -pc CPU {queue.pid} (queue {queue.index})"
    return f"echo CPU > /proc/irq/{queue.irq}/smp_affinity_list (queue {queue.index})"


def _more_queues(nic: NicView) -> str | None:
    now, most = nic.device.channels or len(nic.queues), nic.device.channels_max
    if most is None or most <= now:
        return None
    return nic.device.set_channels(quote(nic.name), most)
