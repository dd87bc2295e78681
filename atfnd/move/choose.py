# SPDX-License-Identifier: GPL-2.0-or-later
"""Which mechanism moves a flow, by mode and by what is known of the NIC. Pure.

PLAN of ordering.md. Each mechanism has its conditions; the first that fails is the reason that
`atfnctl explain` shows. A value that the kernel did not give meets no condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from atfnd.model import Action, ActionKind, Actuator
from atfnd.model.reason import Code, Why
from atfnd.move.event import Wanted
from atfnd.move.frozenmap import FrozenMap
from atfnd.move.loan import GIVEN_BACK
from atfnd.move.port import Port, Ring, lent, rfs_queue
from atfnd.move.timer import Times, in_ms, pipe_ns
from atfnd.move.verdict import Mechanism, Mode

__all__ = ["Choice", "choose", "handing_on", "passing", "still_there", "switch_loan"]
__all__ += ["why_no_hold"]

NONE: frozenset[Mechanism] = frozenset()


class Choice(NamedTuple):
    """`mechanism` None: deferred. `why` names the mechanism's reason or the failed conditions.
    `loan`: with what these settings lend it could be held, which is better; with the value that
    each has before."""

    mechanism: Mechanism | None
    why: Why
    loan: Mapping[str, str] = FrozenMap()


def still_there(wanted: Wanted, port: Port) -> Wanted:
    """The move, after rings that it was decided with have gone (an admin took channels away, and
    the table does not know yet): then it is not known through which rings its packets come."""
    named = (wanted.origins or frozenset()) | (wanted.rss or frozenset())
    if all(queue < len(port.rings) for queue in named):
        return wanted
    return wanted._replace(origins=None, rss=None)


def choose(
    wanted: Wanted, port: Port, times: Times, now_ns: int, demoted: frozenset[Mechanism] = NONE
) -> Choice:
    """The mechanism for a wanted move. `demoted`: those that failed this flow before."""
    if not wanted.live:
        return Choice(Mechanism.NONE, Code.SOCKET_GONE())
    if not _changes_ring(wanted, port):
        return Choice(Mechanism.NONE, Code.KEEPS_QUEUE())
    follows = wanted.action.kind is ActionKind.QUEUE_CPU
    why_gone = _why_gone(wanted, port)
    if follows and why_gone is None and (why_not := _why_stays(wanted, port)):
        return Choice(None, Code.NO_FOLLOW(why_not), _loan_to_follow(wanted, port, times))
    if wanted.mode is Mode.IMMEDIATE:
        return Choice(Mechanism.NONE, Code.IMMEDIATE())
    if why_gone:
        return Choice(None, why_gone)
    if follows:
        why_not = _why_not_inline(port) or _why_handed_on(wanted, port)
        if why_not is None:
            return Choice(Mechanism.FOLLOW, Code.RING_KEPT())
        return Choice(None, Code.NO_FOLLOW(why_not))
    refusals, loan = [], FrozenMap[str, str]()
    for mechanism, why_not in (
        (Mechanism.BIRTH, _why_no_birth(wanted, port, now_ns)),
        (Mechanism.HOLD, why_no_hold(wanted, port, times)),
        (Mechanism.GAP, _why_no_gap(wanted)),
    ):
        if mechanism in demoted:
            why_not = Code.FAILED_BEFORE()
        if why_not is None:
            return Choice(mechanism, _REASON[mechanism], loan)
        if mechanism is Mechanism.HOLD and mechanism not in demoted:
            loan, why_even_so = _loan(wanted, port, times)
            why_not = why_even_so or why_not
        refusals.append(why_not)
    return Choice(None, Code.REFUSED_BY_ALL(*refusals), loan)


_REASON = {
    Mechanism.BIRTH: Code.NO_DATA_YET(),
    Mechanism.HOLD: Code.DRAINS(),
    Mechanism.GAP: Code.CHECKED(),
}


def passing(wanted: Wanted, port: Port) -> frozenset[int]:
    """The queues its packets may come through while a rule is deleted and added again: RSS's."""
    if wanted.action.kind is not ActionKind.REWRITE or port.actuator is Actuator.IN_PLACE:
        return frozenset()
    return (wanted.rss or frozenset()) - (wanted.origins or frozenset()) - _targets(wanted)


def handing_on(queues: frozenset[int], port: Port) -> frozenset[int]:
    """Those of these queues whose packets RFS hands on to the backlogs of CPUs."""
    there = (queue for queue in queues if queue < len(port.rings))
    return frozenset(queue for queue in there if port.rings[queue].hands_on)


def switch_loan(action: Action, port: Port) -> str | None:
    """The setting that lends a thread to the queue whose RFS this switches, so that it can be
    quiesced for the write. None: it needs none, or there is none to borrow."""
    queue = rfs_queue(action)
    if queue is None or queue >= len(port.rings) or port.rings[queue].thread:
        return None
    return port.rings[queue].loan


def _why_handed_on(wanted: Wanted, port: Port) -> Why | None:
    """A queue that follows was shown to keep the order where its packets are delivered inline."""
    for queue in sorted(handing_on(_targets(wanted), port)):
        return Code.HANDED_ON(queue)
    return None


def _why_stays(wanted: Wanted, port: Port) -> Why | None:
    """A queue whose interrupt is deferred is polled by a timer, which stays on the CPU that set it
    (napi_complete_done(), net/core/dev.c): a new CPU of the interrupt takes no effect while there
    is traffic. A NAPI thread is woken by that timer, and polls on its own CPU."""
    for queue in sorted(_targets(wanted)):
        ring = port.rings[queue]
        if ring.thread or ring.defers is False:
            continue
        if ring.defers is None:
            return Code.DEFERS_UNKNOWN(queue)
        return Code.DEFERS(queue)
    return None


def _loan_to_follow(wanted: Wanted, port: Port, times: Times) -> FrozenMap[str, str]:
    """The timeouts without which a queue that defers its interrupt follows: the last timer polls on
    the old CPU, and the interrupts after it come on the new one."""
    loan = FrozenMap[str, str]()
    for queue in sorted(_targets(wanted)):
        loan = _with_timeout(loan, port.rings[queue], times)
    return loan if _why_stays(wanted, lent(port, loan)) is None else FrozenMap()


def _with_timeout(loan: FrozenMap[str, str], ring: Ring, times: Times) -> FrozenMap[str, str]:
    timeout_ns = ring.gro_flush_timeout_ns or 0
    if ring.timeout is None or not 0 < timeout_ns <= times.hold_max_ns // 4:
        return loan
    return loan.put(ring.timeout, str(timeout_ns))


def _changes_ring(wanted: Wanted, port: Port) -> bool:
    """A change of a queue's CPU counts: its packets are then delivered elsewhere. So does rewriting
    a rule with the queue it has, where the write passes through RSS."""
    if wanted.action.kind is ActionKind.QUEUE_CPU or None in (wanted.origins, wanted.targets):
        return True
    return wanted.origins != wanted.targets or bool(passing(wanted, port))


def _why_gone(wanted: Wanted, port: Port) -> Why | None:
    gone = [queue for queue in _targets(wanted) if queue >= len(port.rings)]
    return Code.QUEUE_GONE(gone[0]) if gone else None


def _targets(wanted: Wanted) -> frozenset[int]:
    return wanted.targets or frozenset()


def _why_no_birth(wanted: Wanted, port: Port, now_ns: int) -> Why | None:
    if wanted.first_data_ns is None:
        return Code.DATA_IN_FLIGHT()
    if port.asynchronous:
        return Code.ASYNCHRONOUS()
    if port.write_ns is None:
        return Code.WRITE_UNKNOWN()
    if now_ns + port.write_ns > wanted.first_data_ns:
        return Code.DATA_SOONER(in_ms(wanted.first_data_ns - now_ns))
    return None


def why_no_hold(wanted: Wanted, port: Port, times: Times) -> Why | None:
    """The first condition of HOLD that fails. None: HOLD is strict here."""
    if wanted.origins is None or wanted.targets is None:
        return Code.ORIGIN_UNKNOWN()
    if why := _why_gone(wanted, port):
        return why
    through = passing(wanted, port)
    if wanted.rss is None and wanted.action.kind is ActionKind.REWRITE and _gap(port):
        return Code.RSS_UNKNOWN()
    if port.asynchronous:
        return Code.ASYNCHRONOUS()
    if why := _why_not_inline(port):
        return why
    if len(wanted.targets) > 1:
        return _unsure(wanted, Code.SEVERAL_TARGETS())
    if through and wanted.targets & wanted.origins:
        return Code.COMES_BACK()
    held = through | wanted.targets
    if len(held) > port.holds_max:
        names = ", ".join(str(queue) for queue in sorted(held))
        return _unsure(wanted, Code.TOO_MANY_HOLDS(names, port.holds_max))
    for queue in sorted(held):
        if no_hold := port.rings[queue].no_hold:
            return Code.NOT_QUIESCED(queue, no_hold)
    if why := _why_no_cpu(wanted.origins - wanted.targets, through, wanted.targets, port):
        return _unsure(wanted, why)
    drains = (wanted.origins - wanted.targets) | through
    return _why_no_drain(drains, port) or _why_too_long(drains, port, times)


def _unsure(wanted: Wanted, why: Why) -> Why:
    """RSS may deliver one flow by several queues, because the NIC's hash is not known."""
    key, rss = wanted.action.key, wanted.rss or frozenset()
    if key is None or not key.remote_port or len(rss) < 2:
        return why
    return Code.UNSURE(len(rss), why)


def _loan(wanted: Wanted, port: Port, times: Times) -> tuple[FrozenMap[str, str], Why | None]:
    """The settings that a hold takes: threads of its queues, and no timeout where it has to drain.
    Empty: it would not be possible with them either, for this reason."""
    loan = FrozenMap[str, str]()
    if wanted.origins is None or wanted.targets is None:
        return loan, None
    through = passing(wanted, port)
    for queue in sorted(wanted.origins | wanted.targets | through):
        ring = port.rings[queue]
        if ring.loan is not None and not ring.thread:
            loan = loan.put(ring.loan, GIVEN_BACK)
        if queue in through or queue not in wanted.targets:  # it has to drain
            loan = _with_timeout(loan, ring, times)
    why = why_no_hold(wanted, lent(port, loan), times)
    return (loan, None) if why is None else (FrozenMap(), why)


def _why_no_cpu(
    origins: frozenset[int], through: frozenset[int], targets: frozenset[int], port: Port
) -> Why | None:
    """A quiesced queue keeps its CPU from every other queue that is polled there, so none of them
    can drain: in the order in which `holding.quiesce` asks."""
    held: set[int | None] = set()
    for quiesced, drains in ((targets, through or origins), (through, origins)):
        held |= {port.rings[queue].cpu for queue in quiesced}
        for queue in sorted(drains):
            if (cpu := port.rings[queue].cpu) is not None and cpu in held:
                return Code.CPU_HELD(queue, cpu)
    return None


def _gap(port: Port) -> bool:
    return port.actuator is not Actuator.IN_PLACE


def _why_not_inline(port: Port) -> Why | None:
    if port.stages is None:
        return Code.STAGES_UNKNOWN()
    for stage in sorted(port.stages, key=lambda stage: stage.value):
        return Code.STAGE(stage.value)
    return None


def _why_no_drain(queues: Iterable[int], port: Port) -> Why | None:
    """Why the end of a poll does not prove that its packets were delivered (F1, F5)."""
    for queue in sorted(queues):
        ring = port.rings[queue]
        if ring.gro_flush_timeout_ns is None or ring.busy_poll is None:
            return Code.GRO_UNKNOWN(queue)
        if ring.gro_flush_timeout_ns:
            return Code.GRO(queue)
        if ring.busy_poll:
            return Code.BUSY_POLLED(queue)
        if ring.rx_usecs is None:
            return Code.MODERATION_UNKNOWN(queue)
    return None


def _why_too_long(queues: frozenset[int], port: Port, times: Times) -> Why | None:
    """Why T_hold_max would end before the proof. The hold takes a write and T_pipe, and then either
    two polls of the ring, or an empty ring whose thread sleeps."""
    if port.write_ns is None:
        return Code.WRITE_UNKNOWN()
    for queue in sorted(queues):
        ring = port.rings[queue]
        if not ring.thread:
            return Code.NO_THREAD(queue)
        least_ns = port.write_ns + pipe_ns(ring, times)
        if least_ns >= times.hold_max_ns:
            return Code.TOO_LONG(in_ms(times.hold_max_ns), in_ms(least_ns))
    return None


def _why_no_gap(wanted: Wanted) -> Why | None:
    if wanted.mode is Mode.STRICT:
        return Code.STRICT()
    if wanted.origins is None or wanted.targets is None:
        return Code.ORIGIN_UNKNOWN()
    key = wanted.action.key
    if key is None or not key.remote_port:
        return Code.OPEN()
    return None
