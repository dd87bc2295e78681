# SPDX-License-Identifier: GPL-2.0-or-later
"""What steering a NIC takes besides its rules: proof of what it can, other steering off, queues on
CPUs, and, without rules, its indirection table. Each change is journaled and can be undone.

Runs on the daemon's loop. OSError(ENODEV): the NIC is gone.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from functools import partial

from atfnd.balancing import Balancing
from atfnd.decide import buckets, queues, steer
from atfnd.decide.means import means_of
from atfnd.decide.owner import Lent
from atfnd.decide.prepare import homes, prepare
from atfnd.model import Means, Outcome, Plan, Queue, brief
from atfnd.nic.toeplitz import rss_entry
from atfnd.observe.nics import NicWatch
from atfnd.program import knob
from atfnd.program.balance import BALANCER
from atfnd.program.originals import Originals
from atfnd.published import Published

__all__ = ["Arming"]


class Arming:
    """`carry_out` moves flows, `write` writes at once what moves none. They are the daemon's only
    ways to the kernel: what is not armed stays as it is."""

    def __init__(
        self,
        shown: Published,
        originals: Originals,
        carry_out: Callable[[Plan], list[Outcome]],
        write: Callable[[Plan], list[Outcome]],
    ) -> None:
        self._shown = shown
        self.balancing = Balancing(shown, originals, self.put_back)
        self._originals = originals
        self._carry_out, self._write = carry_out, write
        self._prepared: dict[str, int] = {}  # by NIC: in which of its lives

    def meet(self, watch: NicWatch) -> None:
        """A NIC that is new here, or was armed just now."""
        if not watch.view.armed:
            self._inspect(watch)
            return
        watch.manual(self._originals.manual(watch.view.name))
        self._inspect(watch, prove=True)
        self._after_absence(watch)
        self._prepare(watch)
        self.know_homes(watch)

    def know_homes(self, watch: NicWatch) -> None:
        """Where its queues go when nobody owns them."""
        name, memory = watch.view.name, self._shown.memory
        originals = {each: held.original for each, held in self._originals.held(name).items()}
        dedicated = memory.settling.dedicated
        found = homes(watch.view, originals, self._shown.topology(), dedicated)
        memory.lent.setdefault(name, Lent()).homes = found
        memory.look_at_queues(name)

    def take_back(self, watch: NicWatch) -> None:
        """What somebody else moved is ours again, by the operator's word."""
        self._originals.take_back(watch.view.name)
        self._originals.take_back(BALANCER)
        watch.manual(frozenset())

    def confine(self, watch: NicWatch) -> None:
        """Put queues back on the CPUs that a link flap made them forget; and whatever else a NIC
        that comes up anew has lost by itself."""
        name = watch.view.name
        if not watch.view.armed:
            return
        self.put_queues(watch, watch.unpinned(), queues.LINK_FLAP)
        if self._prepared.get(name) != watch.lives:
            self._inspect(watch)
            self._forget_drifted(watch)
            self._prepare(watch)

    def put_queues(self, watch: NicWatch, where: Sequence[tuple[Queue, int]], why: str) -> None:
        """Put queues that the kernel moved by itself on the CPUs beside them, but those that are
        somebody else's."""
        name, where = watch.view.name, [each for each in where if _ours(watch, each[0])]
        for queue, _ in where:
            self._allow(watch, f"queue-cpu:{queue.index}")
        if self._write(queues.confine(name, where, why)):
            watch.refresh()

    def put_back(self, watch: NicWatch, irqs: frozenset[int]) -> None:
        """Queues of these interrupts, that irqbalance moved before it was told not to."""
        name, held = watch.view.name, self._originals.held(watch.view.name)
        watch.read_knobs()
        moved = knob.drifted(name, watch.view.knobs, self._originals)
        where = []
        for queue in watch.view.queues:
            each = f"queue-cpu:{queue.index}"
            if queue.irq in irqs and each in moved and (held[each].wrote or "").isdecimal():
                where.append((queue, int(held[each].wrote or "")))
        self.put_queues(watch, where, "irqbalance moved it before it was told not to")

    def _moved(self, watch: NicWatch) -> dict[str, str]:
        """What somebody else moved. Not what an irqbalance may have, which is about to be told."""
        moved = knob.drifted(watch.view.name, watch.view.knobs, self._originals)
        irqs = {f"queue-cpu:{q.index}": q.irq for q in watch.view.queues if q.irq is not None}
        doubted = self.balancing.may_have_moved
        return {k: v for k, v in moved.items() if k not in irqs or not doubted(irqs[k])}

    def _allow(self, watch: NicWatch, knob: str) -> None:
        """That a knob is not as we left it is nobody's wish."""
        try:
            now = watch.nic.knob(knob)
        except OSError as refusal:
            if refusal.errno != errno.ENETDOWN:
                raise
            return  # it is looked at again when the link is up
        if now is not None:
            self._originals.settled(watch.view.name, knob, now)

    def _prepare(self, watch: NicWatch) -> None:
        """What is missing for steering it."""
        self._prepared[watch.view.name] = watch.lives
        self._originals.lives(watch.view.name, watch.life())
        dedicated = self._shown.memory.settling.dedicated
        self.balancing.look_soon()
        if self._write(prepare(watch.view, self._shown.topology(), dedicated)):
            watch.refresh()
            self._inspect(watch)

    def waiting(self) -> bool:
        """Some flow waits for `turn`."""
        known = self._shown.memory.buckets
        return any(name in known and known[name].waiting for name in self._shown.watches)

    def inspect(self, watch: NicWatch) -> None:
        """Look at capabilities and conflicts again; they may ask for other means."""
        before = watch.view.means, watch.view.means_why
        self._inspect(watch)
        self._take_up_if_other(watch, before)

    def check(self, watch: NicWatch) -> None:
        """What somebody else moved is his from now on. Entries are looked at again, too."""
        if not watch.view.armed:
            return
        before = watch.view.means, watch.view.means_why
        watch.read_knobs()
        self._let_go(watch, self._moved(watch))
        if watch.view.means is Means.RSS:
            buckets.look(watch.view, self._entry_of(watch), self._shown.memory)
            self._carry_out(())  # what waits now is on the agenda
        self._take_up_if_other(watch, before)

    def _take_up_if_other(self, watch: NicWatch, before: tuple[Means, str]) -> None:
        if before != (watch.view.means, watch.view.means_why):
            plan = steer.take_up(watch.view, self._shown.memory, time.monotonic_ns())
            self._carry_out(plan)

    def turn(self, watch: NicWatch) -> None:
        """Point the entries of waiting flows to where these are used."""
        memory = self._shown.memory
        known = memory.buckets.get(watch.view.name)
        if known is None or not known.waiting:
            return
        watch.read_rss()
        before = watch.view
        if not before.armed or before.means is not Means.RSS or before.rss is None:
            known.waiting.clear()  # they are looked at again when it is
            return
        plan = buckets.plan(before, self._entry_of(watch), memory, time.monotonic_ns())
        outcomes = self._carry_out(plan)
        if outcomes:
            watch.read_rss()
        if any(outcome.errno == errno.ESTALE for outcome in outcomes):
            self.check(watch)
            return
        buckets.settle(before, watch.view, outcomes, memory, time.monotonic_ns())

    def undo(self, watch: NicWatch) -> list[knob.Undone]:
        """Put every knob of this NIC back that is still as we left it. Armed or not."""
        name, knobs = watch.view.name, watch.view.knobs
        held = {each: value.original for each, value in self._originals.held(name).items()}
        done = knob.undo(watch.nic, self._originals)
        for each, code, left in done:
            self._shown.log.add(
                "refused" if code else "undo", f"{each} {left}", "asked for", nic=name,
                old=knobs.get(each), new=held[each], errno=errno.errorcode.get(code),
            )  # fmt: skip
        self._shown.memory.buckets.pop(name, None)
        self._inspect(watch)
        return done

    def gone(self, watch: NicWatch) -> None:
        """A NIC is gone, and its knobs with it; what is the machine's is put back."""
        knob.undo(watch.nic, self._originals)

    def _after_absence(self, watch: NicWatch) -> None:
        """What moved while we did not look: by somebody, if this is the NIC's life that we wrote
        in; by itself, if it came up anew since."""
        name = watch.view.name
        if self._originals.life(name) == watch.life():
            self._let_go(watch, self._moved(watch))
        else:
            self._forget_drifted(watch)

    def _forget_drifted(self, watch: NicWatch) -> None:
        """What these knobs are now is their original value when they are written again."""
        name = watch.view.name
        for each in knob.drifted(name, watch.view.knobs, self._originals):
            self._originals.forget(name, each)

    def _inspect(self, watch: NicWatch, *, prove: bool = False) -> None:
        """Read the NIC again, and choose how its flows are steered."""
        watch.inspect(prove=prove)
        means, why = means_of(watch.view)
        if (means, why) != (watch.view.means, watch.view.means_why):
            watch.steered_by(means, why)
            self._shown.log.add("means", means.value, why, nic=watch.view.name)

    def _let_go(self, watch: NicWatch, moved: dict[str, str]) -> None:
        name = watch.view.name
        for each, value in moved.items():
            self._originals.let_go(name, each)
            why = f"somebody else moved it: left alone until `atfnctl resume {name}`"
            self._shown.log.add("manual", f"{each} is {brief(value)}", why, nic=name)
        if moved:
            watch.manual(watch.view.manual | moved.keys())
            watch.steered_by(*means_of(watch.view))
        if "rss" in moved:
            buckets.let_go(watch.view, self._shown.memory, watch.view.means_why)

    def _entry_of(self, watch: NicWatch) -> buckets.EntryOf:
        rss = watch.view.rss
        if rss is None:
            return lambda key: None
        return partial(rss_entry, rss)


def _ours(watch: NicWatch, queue: Queue) -> bool:
    """Nobody else has put this queue where it is."""
    return f"queue-cpu:{queue.index}" not in watch.view.manual
