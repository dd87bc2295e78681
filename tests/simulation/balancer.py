# SPDX-License-Identifier: GPL-2.0-or-later
"""irqbalance in the world: processes that move interrupts until they are asked to leave them alone.

As `kernel.interrupts.irqbalance` finds the real one: it moves nothing at its first look; it follows
a new list from its next look on, and answers nobody while it sleeps after that. It may hang. It may
take a list, and not be heard to. With its end its list is forgotten.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterable

from atfnd.program.balance import bans, journaled, left_alone
from atfnd.program.journals.undo_journal import UndoJournal
from tests.simulation.driver import refused
from tests.simulation.nic import WorldNic
from tests.simulation.world import World

__all__ = ["Balancer", "Balancers"]

INTERVALS_NS = 1_000_000_000, 2_000_000_000, 10_000_000_000
ANSWER_NS = 500_000
NOTED_NS = 100_000_000  # after so long it is in the journal what atfnd heard, also on a slow disk


class Balancer:
    """One process. `spares` is what its options told it to leave alone."""

    def __init__(
        self,
        world: World,
        pid: int,
        nics: Callable[[], Iterable[WorldNic]],
        spares: Collection[int],
    ) -> None:
        self.pid, self.alive = pid, True
        self.listed, self.theirs = {*spares}, {*spares}  # `theirs`: not by atfnd
        self.silent_until_ns = 0  # it sleeps, or hangs
        self.deaf = 0  # so many lists to come are taken without a sign of that
        self.content = False  # the load is even: it moves nothing
        self.read: frozenset[int] | None = None  # what atfnd last read of its list
        self.looked: frozenset[int] | None = None  # and the time before: a ban reads it once more
        self._world, self._nics = world, nics
        self._interval_ns = world.random.choice(INTERVALS_NS)
        self._followed, self._asked = {*spares}, False
        self._may_move()
        world.after(self._interval_ns, self.look, True)

    def look(self, first: bool = False) -> None:
        """At the interrupts, and again after its interval."""
        world = self._world
        if not self.alive:
            return
        if world.now_ns < self.silent_until_ns and not self._asked:  # it hangs
            world.at(self.silent_until_ns, self.look)
            return
        self._followed = {*self.listed}
        if self._asked:
            self.silent_until_ns, self._asked = world.now_ns + self._interval_ns, False
        for nic in () if first or self.content else self._nics():
            for irq, name in nic.interrupts().items():
                if irq not in self._followed and world.random.random() < 0.5:
                    nic.balancer_sets(name, str(world.random.randrange(nic.cpus)))
        world.after(self._interval_ns, self.look)

    def takes(self, irqs: set[int]) -> None:
        """A new list."""
        self.listed, self._asked = irqs, True
        self._may_move()

    def _may_move(self) -> None:
        for nic in self._nics():
            nic.balancer_may_move(self.listed)


class Balancers:
    """Those that run. It stands for the module `kernel.interrupts.irqbalance`, too."""

    def __init__(self, world: World, nics: Callable[[], Iterable[WorldNic]]) -> None:
        self._world, self._nics = world, nics
        self.here: dict[int, Balancer] = {}
        self.left_alone: dict[int, int] = {}  # interrupts that an admin had moved again: which pid
        self._found: dict[int, int] = {}  # those of which atfnd has heard that: when
        self._freed: set[int] = set()  # those that an admin ever had moved again
        self._pids = 50_000
        self.journal: Callable[[], UndoJournal | None] = lambda: None

    # ---- what happens

    def begin(self, spares: Collection[int], deaf: int) -> None:
        self._pids += 1
        self.here[self._pids] = Balancer(self._world, self._pids, self._nics, spares)
        self.here[self._pids].deaf = deaf

    def end(self, pid: int) -> None:
        self.here.pop(pid).alive = False
        for irq in [
            irq for irq, of in self.left_alone.items() if of == pid and irq not in self._found
        ]:
            del self.left_alone[irq]

    def admin_bans(self, pid: int, irq: int) -> None:
        """Another program has it leave this alone. Not while atfnd, too, may have asked for that:
        then nobody could tell whose ban it is."""
        there = self.here[pid]
        if irq not in there.listed and irq not in self.named(pid):
            there.theirs.add(irq)
            there.takes(there.listed | {irq})

    def admin_frees(self, pid: int, irq: int) -> None:
        """Another program has it move this again."""
        there = self.here[pid]
        if irq in there.listed:
            there.theirs.discard(irq)
            there.takes(there.listed - {irq})
            if irq in self.named(pid):
                self.left_alone[irq] = pid
                self._freed.add(irq)

    def restarted(self) -> None:
        """A daemon starts whose disk failed it: it may not know what the last one saw, and take
        another's ban for one of its own."""
        self._found.clear()
        for there in self.here.values():
            there.theirs -= self.named(there.pid)

    def died(self) -> None:
        """The daemon: what it had asked and not heard, or not noted yet, the next one cannot
        know."""
        noted_ns = self._world.now_ns - NOTED_NS
        self._found = {irq: at_ns for irq, at_ns in self._found.items() if at_ns <= noted_ns}

    def taken_back(self) -> None:
        """An operator said so, or bans were lifted: atfnd may ask again."""
        self.left_alone.clear()
        self._found.clear()

    # ---- what atfnd asks

    def running(self) -> frozenset[int]:
        return frozenset(self.here)

    def spared(self, pid: int, patience_s: float = 2.0) -> frozenset[int] | None:
        world = self._world
        world.operation("ask irqbalance")
        there = self.here.get(pid)
        if there is None:
            return None
        wait_ns = there.silent_until_ns - world.clock_ns()
        if wait_ns > (patience_ns := round(patience_s * 1e9)):
            world.pass_ns(patience_ns)
            world.seen["irqbalance does not answer"] += 1
            return None
        world.pass_ns(max(0, wait_ns) + ANSWER_NS)
        if not there.alive:
            return None
        there.looked, there.read = there.read, frozenset(there.listed)
        self._forget_unseen(pid, there.read)
        freed = self.freed_in(pid)
        new = (freed & self.named(pid)) - there.read - self._found.keys()
        self._found |= dict.fromkeys(new, world.clock_ns())
        return there.read

    def _forget_unseen(self, pid: int, listed: frozenset[int]) -> None:
        """It took a list without an answer, and none of that is in it any more: nobody can tell
        that it took it."""
        journal = self.journal()
        new = () if journal is None else journaled(journal).new
        irqs = {ban.irq for ban in new if ban.pid == pid}
        if irqs.isdisjoint(listed):
            for irq in irqs & self.freed_in(pid):
                self._world.seen["excused: nobody saw irqbalance take the list"] += 1
                del self.left_alone[irq]

    def spare(self, pid: int, irqs: Iterable[int]) -> None:
        world, wanted = self._world, {*irqs}
        world.operation("tell irqbalance")
        there = self.here.get(pid)
        if there is None:
            raise refused(errno.ECONNREFUSED)
        self._check(there, wanted)
        there.takes(wanted)
        world.note("ban", f"irqbalance {pid} is asked to leave {sorted(wanted)} alone")
        world.operation("irqbalance is asked")
        if there.deaf:
            there.deaf -= 1
            there.silent_until_ns = max(there.silent_until_ns, world.clock_ns() + 3_000_000_000)
            world.note("irqbalance is slow", "irqbalance takes the list, and hangs")
            raise TimeoutError("timed out")

    def _check(self, there: Balancer, wanted: set[int]) -> None:
        if (read := there.read) is None:
            self._world.broken("foreign ban", f"irqbalance {there.pid} is not asked what it knows")
        world, held = self._world, self.named(there.pid)
        looked = read if there.looked is None else there.looked
        since = (there.theirs & held) - looked  # banned by both: nobody can tell
        world.seen["excused: somebody was quicker than a look and a ban"] += bool(since)
        there.theirs -= since
        if (lost := there.theirs - wanted) & read:
            world.broken("foreign ban", f"irqbalance is asked to move {lost}, which others banned")
        world.seen["excused: somebody was quicker than a look and a ban"] += bool(lost)
        there.theirs -= lost
        more = wanted - there.listed
        if again := more & self._found.keys():
            world.broken("foreign ban", f"irqbalance is asked again to leave {again} alone")
        if unnamed := more - held:
            quick = unnamed <= read  # an admin freed it since
            world.seen["excused: somebody was quicker than a look and a ban"] += quick
            if not quick:
                world.broken(
                    "journal", f"irqbalance is asked for {unnamed}, and no journal names it"
                )

    def named(self, pid: int) -> set[int]:
        """Bans of this irqbalance that the journal names."""
        journal = self.journal()
        return set() if journal is None else {ban.irq for ban in bans(journal) if ban.pid == pid}

    def freed_in(self, pid: int) -> set[int]:
        """Interrupts that an admin had this irqbalance move again."""
        return {irq for irq, of in self.left_alone.items() if of == pid}

    def left_to_others(self) -> set[int]:
        """Interrupts that an admin had moved again, and that atfnd leaves alone since. An order to
        take them back may have reached no daemon."""
        journal = self.journal()
        return set() if journal is None else self._freed & left_alone(journal)

    def left(self, irqs: Collection[int]) -> set[int]:
        """Those of these interrupts that an irqbalance leaves alone because atfnd asked it to."""
        ours = (there.listed - there.theirs for there in self.here.values())
        return set().union(*ours) & {*irqs}
