# SPDX-License-Identifier: GPL-2.0-or-later
"""Hold queue B while a filter changes from A to B and A delivers what it still has, in steps. For a
filter that matches many flows, A is several queues.

A queue polled by a thread of its own (threaded NAPI: napi_threaded_poll(), net/core/dev.c) is held
by keeping its CPU: the thread is confined to one CPU, and there a SCHED_FIFO thread of higher
priority spins (atfnd/bpf/extension/spinner.c). Nothing of the NAPI thread is changed, so nothing
has to be put back; the spinner ends by itself, and with this process: B is polled again whatever
happens.

Writes the scheduling of the calling thread, and puts it back (sched(7)); reads that of NAPI
threads. A filter that takes the NIC longer to write than the limit cannot be written under a hold.

What was considered:

- Preemption. A poll runs with softirqs disabled, so under every preemption model a spinner that
  runs has found the thread between two polls; with PREEMPT_RT it may interrupt a poll, which then
  stays where it is. There, priority inheritance can lift the thread above the spinner while a task
  of higher priority waits for softirqs on that CPU (softirq_ctrl, kernel/softirq.c): `leaky`.
- Throttling. SCHED_FIFO tasks may have 950 ms of a second together (kernel.sched_rt_runtime_us;
  since 6.12 a deadline server for starving ordinary tasks, kernel/sched/deadline.c). Where others
  used that up, a NAPI thread that is SCHED_OTHER can run beside a throttled spinner: `leaky`. One
  of SCHED_FIFO cannot, it is throttled too.
- RT groups. With CONFIG_RT_GROUP_SCHED a cgroup without real-time budget refuses SCHED_FIFO: EPERM
  (Documentation/scheduler/sched-rt-group.rst).
- SMT. The spinner takes issue slots from the sibling and delays it; that orders nothing.
- Neighbours. All that is on B's CPU waits as long as B does.
- Busy polling (napi_busy_loop()) polls B from another CPU, whatever holds its thread: `leaky`.

`leaky` is exact: the ends of polls of B during the hold are counted (napi:napi_poll).
"""

from __future__ import annotations

import errno
import gc
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from atfnd.model import Queue
from atfnd.observe.sockets.transit import HoldResult, Transit

__all__ = ["QueueHold"]

HIGHEST = 99
READY_NS = 500_000
HOME_NS = 2_000_000
LOOK_S = 20e-6


class QueueHold:
    """One queue that is quiesced, from its creation to `release`. In between, the calling thread is
    a real-time thread: it writes and waits, and does nothing else."""

    def __init__(
        self,
        transit: Transit,
        olds: Sequence[Queue],
        b: Queue,
        until_ns: int,
        beside: QueueHold | None = None,
    ) -> None:
        """Quiesce `b`, at most until `until_ns`, and see that each A (`olds`) delivers meanwhile: a
        ring that stands still for half a millisecond may do so for long. `transit` is started and
        watches all. `beside`: a hold in force, which must end after this one.

        OSError, and nothing is quiesced: EOPNOTSUPP (a queue without a NAPI thread), EINVAL (B's
        thread is not confined to one CPU, or its priority leaves no room above, or no CPU is left
        to write from), EDEADLK (an A is polled on a CPU that is held), ESRCH (the thread is gone),
        EAGAIN (B borrowed its thread, and another CPU may still poll it), and those of
        `Transit.quiesce`.
        """
        cpu, priority = _seat(b)
        for a in olds:
            if a.napi_id is None or not a.threaded:
                raise OSError(errno.EOPNOTSUPP, f"queue {a.index} has no NAPI thread")
        if b.napi_id is None:
            raise OSError(errno.EOPNOTSUPP, f"queue {b.index} has no NAPI thread")
        self._transit, self._napi_id = transit, b.napi_id
        self._cpus: frozenset[int] = frozenset({cpu}) | (beside._cpus if beside else frozenset())
        for a in olds:
            if a.cpu in self._cpus:
                what = f"queue {a.index} is polled on CPU {a.cpu}, which is held"
                raise OSError(errno.EDEADLK, what)
        busy = {a.cpu for a in olds}
        if b.borrowed:
            _comes_home(transit, b, cpu, until_ns)
        with ExitStack() as undo:
            if beside is None:
                undo.enter_context(_prompt(priority, cpu, busy))
            else:
                _leave(self._cpus, busy)
            self.effective_ns = _quiesce(transit, olds, b, cpu, priority, until_ns)
            self._undo = undo.pop_all()

    def in_force(self) -> bool:
        """It has been in force since it was made."""
        return self._transit.quiesced(self._napi_id)

    def settle(self, after_ns: int, *, hands_on: bool = False) -> None:
        """From now on it ends by itself, as soon as each A has delivered all that is in its ring at
        `after_ns`; with `hands_on`, also what A gave to the backlogs of CPUs."""
        self._transit.settle(self._napi_id, after_ns, hands_on=hands_on)

    def settled(self, until_ns: int) -> bool:
        """Wait for its end; False: not before `until_ns`."""
        return self._transit.settled(self._napi_id, until_ns)

    def release(self) -> HoldResult:
        """Let `b` be polled, if it is not already, and return how it was held."""
        with self._undo:
            return self._transit.resume(self._napi_id)


def _comes_home(transit: Transit, b: Queue, cpu: int, until_ns: int) -> None:
    """Wait until no softirq of another CPU polls a queue that has borrowed a thread. Polls that
    began there go on there as long as there are packets, and one could outlast the hold, unseen.
    Once the NAPI was idle, or a poll of it ended on `cpu`, every later one is on that CPU."""
    napi_id, began_ns = b.napi_id or 0, time.monotonic_ns()
    while not transit.idle(napi_id):
        ended_ns, on_cpu = transit.polled(napi_id) or (0, None)
        if ended_ns >= began_ns and on_cpu == cpu:
            return
        if time.monotonic_ns() >= min(began_ns + HOME_NS, until_ns):
            raise OSError(errno.EAGAIN, f"queue {b.index} is not seen to be polled on CPU {cpu}")
        time.sleep(LOOK_S)


def _quiesce(
    transit: Transit, olds: Sequence[Queue], b: Queue, cpu: int, priority: int, until_ns: int
) -> int:
    """`Transit.quiesce`, with a refusal that names the queues."""
    napis, ready_ns = tuple(a.napi_id or 0 for a in olds), time.monotonic_ns() + READY_NS
    ready_ns = min(ready_ns, until_ns)
    try:
        return transit.quiesce(napis, b.napi_id or 0, cpu, priority, ready_ns, until_ns)
    except OSError as refusal:
        match refusal.errno:
            case errno.EAGAIN:
                raise OSError(errno.EAGAIN, _still(olds)) from refusal
            case errno.ETIMEDOUT:
                raise OSError(errno.ETIMEDOUT, f"other threads keep CPU {cpu} busy") from refusal
            case _:
                raise


def _still(olds: Sequence[Queue]) -> str:
    names = ", ".join(str(a.index) for a in olds)
    one = f"queue {names}" if len(olds) == 1 else f"one of queues {names}"
    return f"{one} stands still"


def _seat(queue: Queue) -> tuple[int, int]:
    """The CPU of a queue's thread, and the priority that keeps it from there."""
    if not queue.threaded or queue.pid is None:
        raise OSError(errno.EOPNOTSUPP, f"queue {queue.index} has no NAPI thread")
    cpus = os.sched_getaffinity(queue.pid)
    if len(cpus) != 1:
        raise OSError(
            errno.EINVAL, f"the thread of queue {queue.index} may run on {len(cpus)} CPUs"
        )
    policy = os.sched_getscheduler(queue.pid)
    priority = os.sched_getparam(queue.pid).sched_priority + 1
    if policy not in (os.SCHED_OTHER, os.SCHED_FIFO, os.SCHED_RR) or priority > HIGHEST:
        raise OSError(
            errno.EINVAL, f"no priority is above that of the thread of queue {queue.index}"
        )
    return cpus.pop(), priority


@contextmanager
def _prompt(priority: int, held_cpu: int, busy: set[int | None]) -> Iterator[None]:
    """Run this thread at once and undisturbed, without garbage collection, which takes longer than
    a hold. Its former scheduling and CPUs are put back."""
    before = os.sched_getaffinity(0)
    policy, param, collects = os.sched_getscheduler(0), os.sched_getparam(0), gc.isenabled()
    _leave(frozenset({held_cpu}), busy)
    gc.disable()
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
        yield
    finally:
        os.sched_setscheduler(0, policy, param)
        os.sched_setaffinity(0, before)
        if collects:
            gc.enable()


def _leave(held: frozenset[int], busy: set[int | None]) -> None:
    """Leave the held CPUs, and if there are others, also those that have to drain."""
    free = os.sched_getaffinity(0) - held
    if not free:
        cpus = ", ".join(map(str, sorted(held)))
        raise OSError(errno.EINVAL, f"CPU {cpus} is held, and there is no other to write from")
    os.sched_setaffinity(0, free - busy or free)
