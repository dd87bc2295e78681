# SPDX-License-Identifier: GPL-2.0-or-later
"""Packets of flows with numbers, rings that hold them, polls that deliver them.

A flow's packets are counted, not made: number n is sent at `began_ns + n * interval_ns`. A ring is
first in, first out, so packets can overtake each other only around a change of the flow's ring.
Only there they are made, one by one, and only then their rings are polled: from the change until
the old rings have none of this flow any more and the new one has delivered one.

A packet reaches its ring at most PIPE_NS after it was classified. A poll takes what is there when
it begins and delivers it when it ends; at times it is made to move and takes one (work 63 of 64).
With a gro_flush_timeout the last packets of a poll may wait in GRO for as long: such a poll proves
no more than one that goes on elsewhere (transit.bpf.c looks into the GRO lists). Where interrupts
are deferred, too, the next poll comes with the timer, on the CPU that set it: a queue without a
thread that has traffic does not go to another CPU (docs/reception.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from atfnd.model import FlowKey, Match
from tests.simulation.world import World

__all__ = ["PIPE_NS", "Change", "Flow", "Ring", "Witness"]

PIPE_NS = 20_000
BUDGET = 64
MADE = 8  # packets of one flow under way in a ring: what comes behind them overtakes nothing
STALLED = 0.02  # of the rings that are looked at, their CPU does something else
STALL_NS = 3_000_000
KEPT = 0.3  # of the polls that find something leave the last in GRO, where it has a timer
LONG_NS = 200_000  # of a poll of many packets, or of what runs before it


class Witness(Protocol):
    """The listener that hears what rings do: the telemetry of the daemon."""

    def polled(self, ring: Ring, work: int) -> None: ...
    def slept(self, ring: Ring) -> None: ...
    def delivered(self, flow: Flow, ring: Ring, late: bool) -> None: ...


class Change:
    """A flow's packets come to another ring from now on."""

    __slots__ = ("at_ns", "by", "late", "new", "old")

    def __init__(self, at_ns: int, by: object, old: int, new: int) -> None:
        self.at_ns, self.by, self.old, self.new = at_ns, by, old, new
        self.late = 0  # packets from before it that were delivered after one from behind it

    def __str__(self) -> str:
        return f"from queue {self.old} to {self.new}, for {self.by}"


class Flow:
    """One flow of the wire, and all that its delivery showed."""

    __slots__ = (
        "_arriving", "_made", "began_ns", "changes", "cookie", "delivered_ns", "first",
        "interval_ns", "key", "last", "last_sent_ns", "late", "match", "rerouted", "ring", "talks",
        "waits", "world",
    )  # fmt: skip

    def __init__(self, world: World, key: FlowKey, interval_ns: int, cookie: int) -> None:
        self.world, self.key, self.match = world, key, Match.of(key)
        self.interval_ns, self.cookie = interval_ns, cookie
        self.began_ns = world.now_ns + world.random.randrange(interval_ns)
        self.first = 0  # number of the packet that is sent at `began_ns`
        self.talks = True
        self.ring: Ring | None = None
        self.changes: deque[Change] = deque(maxlen=8)
        self.last, self.last_sent_ns = -1, 0  # of what was delivered
        self.delivered_ns: int | None = None
        self.late = 0
        self.waits = False  # its packets are made: a change is not over
        self.rerouted: Callable[[], None] | None = None  # called when it comes elsewhere
        self._made = 0
        self._arriving = False

    def next_ns(self, after_ns: int) -> int:
        """When its first packet after this instant is sent."""
        if after_ns < self.began_ns:
            return self.began_ns
        return (
            self.began_ns + ((after_ns - self.began_ns) // self.interval_ns + 1) * self.interval_ns
        )

    def number_at(self, sent_ns: int) -> int:
        return self.first + (sent_ns - self.began_ns) // self.interval_ns

    def last_delivered_ns(self) -> int | None:
        """When its last packet was delivered, made or only counted."""
        made_ns = self.delivered_ns
        if self.waits or self.ring is None:
            return made_ns
        sent_ns = self.next_ns(self.world.now_ns - PIPE_NS) - self.interval_ns
        if not self.talks or sent_ns < self.began_ns:
            return made_ns
        return max(sent_ns + PIPE_NS, made_ns or 0)

    def talk(self, on: bool) -> None:
        """Begin or end to send."""
        now_ns = self.world.now_ns
        if on == self.talks:
            return
        if on:
            self.began_ns = now_ns + self.world.random.randrange(1, self.interval_ns + 1)
        else:
            sent_ns = self.next_ns(now_ns) - self.interval_ns
            if sent_ns >= self.began_ns:
                self.first = self.number_at(sent_ns) + 1
                if not self.waits:
                    self.delivered_ns = sent_ns + PIPE_NS
        self.talks = on
        if self.waits and on:
            self._arrive_next()

    def comes_to(self, ring: Ring, by: object) -> None:
        """From now on its packets are classified to this ring. `by` is who did it."""
        old, self.ring = self.ring, ring
        if old is None or old is ring:
            return
        if self.rerouted is not None:
            self.rerouted()
        now_ns = self.world.now_ns
        self.changes.append(Change(now_ns, by, old.index, ring.index))
        self.world.mark(ring.index)
        if not self.waits:
            self._make_what_is_under_way(old)
        self.waits, self._made = True, 0
        if self.talks:
            self._arrive_next()

    def lost(self) -> None:
        """Its NIC is gone, with what was under way."""
        self.ring, self.waits = None, False

    def _make_what_is_under_way(self, ring: Ring) -> None:
        """What was classified to its ring and is not delivered yet."""
        now_ns = self.world.now_ns
        if not self.talks:
            return
        since_ns = now_ns - ring.behind_ns()
        sent_ns = self.next_ns(max(since_ns, now_ns - MADE * self.interval_ns))
        before_ns = sent_ns - self.interval_ns
        if before_ns >= self.began_ns:
            self.last, self.last_sent_ns = self.number_at(before_ns), before_ns
            self.delivered_ns = min(before_ns + PIPE_NS, now_ns)
        while sent_ns <= now_ns:
            ring.take(self, self.number_at(sent_ns), sent_ns)
            sent_ns += self.interval_ns

    def _arrive_next(self) -> None:
        if not self._arriving and self._made < MADE:
            self._arriving = True
            self.world.at(self.next_ns(self.world.now_ns), self._arrive)

    def _arrive(self) -> None:
        self._arriving = False
        if self.ring is None or not self.waits or not self.talks:
            return
        now_ns = self.world.now_ns
        if now_ns < self.began_ns or (now_ns - self.began_ns) % self.interval_ns:
            self._arrive_next()  # it was silent meanwhile, and began anew
            return
        self._made += 1
        self.ring.take(self, self.number_at(now_ns), now_ns)
        self._arrive_next()

    def dropped(self, ring: Ring) -> None:
        """A packet of it was lost: with its ring, or for want of room."""
        if ring is self.ring:
            self._made = max(0, self._made - 1)

    def deliver(self, number: int, sent_ns: int, ring: Ring) -> bool:
        """A packet reaches the socket. True: after a later one."""
        world, late = self.world, number < self.last
        if ring is self.ring:
            self._made = max(0, self._made - 1)
        if late:
            self.late += 1
            between = [each for each in self.changes if sent_ns <= each.at_ns <= self.last_sent_ns]
            if len({id(each.by) for each in between}) == 1:  # else it is nobody's alone
                for change in between:
                    change.late += 1
                    world.late[id(change.by)] = change
        else:
            self.last, self.last_sent_ns = number, sent_ns
        self.delivered_ns = world.now_ns
        world.mark(number)
        changed_ns = self.changes[-1].at_ns if self.changes else 0
        if ring is self.ring and sent_ns > changed_ns and not self._elsewhere(ring):
            self.waits = False
        elif self.waits and self.talks:
            self._arrive_next()
        return late

    def _elsewhere(self, ring: Ring) -> bool:
        """A packet of it is in another ring."""
        return any(
            each is not ring
            and any(entry[1] is self for entry in (*each.packets, *each.taken, *each.kept))
            for each in ring.all
        )


Packet = tuple[int, Flow, int, int]  # visible from, its flow, number, sent


class Ring:
    """One receive queue with its NAPI, polled by a thread of its own or from an interrupt."""

    __slots__ = (
        "_lag_ns",
        "_polls",
        "_timers",
        "all",
        "busy",
        "cpu",
        "dropped",
        "heard_from_ns",
        "index",
        "kept",
        "napi_id",
        "packets",
        "pid",
        "polls",
        "quiesced_until_ns",
        "received",
        "rx_cpu",
        "size",
        "stalled_until_ns",
        "taken",
        "threaded",
        "timeout_ns",
        "witnesses",
        "world",
    )  # fmt: skip

    def __init__(
        self, world: World, index: int, size: int, threaded: bool, family: list[Ring]
    ) -> None:
        self.world, self.index, self.size, self.threaded = world, index, size, threaded
        self.all = family  # the rings of its NIC, this one among them
        self.cpu: int | None = index  # its interrupt or thread is confined to it
        self.rx_cpu: int | None = index  # on which it is polled
        self.timeout_ns = self.polls = self._timers = 0  # of its NAPI (`leaves`)
        self.received = 0  # packets, as far as they were counted
        self.napi_id = self.pid = 0
        self.packets: deque[Packet] = deque()
        self.taken: tuple[Packet, ...] = ()  # by the poll that is under way
        self.kept: tuple[Packet, ...] = ()  # in GRO, by the poll before
        self.busy = self._polls = False
        self.quiesced_until_ns: int | None = None
        self.stalled_until_ns = 0
        self.heard_from_ns: int | None = None  # from then on ends of polls are reported
        self.dropped = self._lag_ns = 0
        self.witnesses: list[Witness] = []

    @property
    def defers(self) -> bool:
        """After a poll that found packets a timer polls, and no interrupt comes."""
        return self.timeout_ns > 0 < self.polls

    def leaves(self, timeout_ns: int, polls: int, elsewhere: Callable[[], None]) -> None:
        """What its polls leave for later: gro_flush_timeout and napi_defer_hard_irqs. `elsewhere`:
        it is polled on another CPU after that."""
        before_ns, self.timeout_ns, self.polls = self.timeout_ns, timeout_ns, polls
        if not self.defers and self.rx_cpu != self.cpu:  # once the timer that is set has come
            self.world.after(before_ns, self._is_interrupted, elsewhere)

    def confine(self, cpu: int | None, traffic: bool) -> None:
        """Its interrupt or thread may run on this CPU only; None: on several."""
        self.cpu = cpu
        if self.threaded or not (self.defers and traffic):
            self.rx_cpu = cpu

    def _is_interrupted(self, elsewhere: Callable[[], None]) -> None:
        if self.rx_cpu != self.cpu and (self.threaded or not self.defers):
            self.rx_cpu = self.cpu
            elsewhere()

    def behind_ns(self) -> int:
        """So long ago was classified what it delivers now; drawn when somebody looks."""
        world = self.world
        if self.quiesced_until_ns is not None or self.packets or self.taken or self.kept:
            return self._lag_ns
        if self.stalled_until_ns <= world.now_ns and world.random.random() < STALLED:
            self.stalled_until_ns = world.now_ns + world.random.randrange(STALL_NS)
        self._lag_ns = world.random.randrange(PIPE_NS, 5 * PIPE_NS)
        if self.stalled_until_ns > world.now_ns:
            self._lag_ns += world.random.randrange(STALL_NS)
        if self.timeout_ns:
            self._lag_ns += world.random.randrange(2 * self.timeout_ns)
        return self._lag_ns

    def take(self, flow: Flow, number: int, sent_ns: int) -> None:
        """A packet is classified to it."""
        world = self.world
        if len(self.packets) >= self.size:
            self.dropped += 1
            flow.dropped(self)
            return
        chance = world.random.random()
        visible_ns = sent_ns + (PIPE_NS - 1 if chance < 0.3 else int(chance * PIPE_NS))
        if self.packets:
            visible_ns = max(visible_ns, self.packets[-1][0])
        self.packets.append((visible_ns, flow, number, sent_ns))
        self.wake()

    def wake(self) -> None:
        """Have it polled soon."""
        if not self._polls and self.quiesced_until_ns is None:
            self._polls = True
            self.world.after(self._pause_ns(), self._begin)

    def listen(self, from_ns: int | None) -> None:
        """Tell the ends of its polls from then on; None: no longer."""
        self.heard_from_ns = from_ns
        if from_ns is not None:
            self.wake()

    def quiesce(self, until_ns: int) -> None:
        self.quiesced_until_ns = until_ns

    def release(self) -> None:
        self.quiesced_until_ns = None
        if self.packets or self.kept or self.heard_from_ns is not None:
            self.wake()

    def stall(self, until_ns: int) -> None:
        """Its CPU does something else until then."""
        self.stalled_until_ns = max(self.stalled_until_ns, until_ns)

    def reset(self) -> None:
        """What was in it is lost."""
        for _, flow, _, _ in (*self.packets, *self.taken, *self.kept):
            flow.dropped(self)
        self.dropped += len(self.packets) + len(self.taken) + len(self.kept)
        self.packets.clear()
        self.taken = self.kept = ()

    def _pause_ns(self) -> int:
        """Until its thread runs."""
        random = self.world.random
        pause_ns = random.randrange(500, LONG_NS if random.random() < 0.2 else 30_000)
        return pause_ns + (random.randrange(self.timeout_ns) if self.defers else 0)

    def _begin(self) -> None:
        world = self.world
        if self.quiesced_until_ns is not None:
            self._polls = False
            return
        if self.stalled_until_ns > world.now_ns:
            world.at(self.stalled_until_ns, self._begin)
            return
        packets, now_ns = self.packets, world.now_ns
        taken: list[Packet] = []
        most = BUDGET if len(packets) < 2 or world.random.random() > 0.1 else 1
        while packets and packets[0][0] <= now_ns and len(taken) < most:
            taken.append(packets.popleft())
        self.taken, self.busy = tuple(taken), True
        short = most == 1 and bool(packets)
        long = world.random.random() < 0.2
        world.after(world.random.randrange(200, LONG_NS if long else 15_000), self._end, short)

    def _end(self, short: bool) -> None:
        world, taken = self.world, (*self.kept, *self.taken)
        self.taken, self.kept, self.busy = (), (), False
        if self.timeout_ns and not short and world.random.random() < KEPT:
            taken = self._keep(taken)
        for at, (_, flow, number, sent_ns) in enumerate(taken):
            self.taken = taken[at + 1 :]
            late = flow.deliver(number, sent_ns, self)
            for witness in self.witnesses:
                witness.delivered(flow, self, late)
        self._lag_ns = world.now_ns - taken[-1][3] if taken else self._lag_ns
        heard = self.heard_from_ns is not None and world.now_ns >= self.heard_from_ns
        if heard:
            others = world.random.randrange(20)
            work = BUDGET - 1 if short or self.kept else min(len(taken) + others, BUDGET)
            sleeps = not (short or self.kept or self.packets or others)
            for witness in self.witnesses:
                if sleeps:
                    witness.slept(self)
                else:
                    witness.polled(self, work)
        if self.quiesced_until_ns is None and (self.packets or self.heard_from_ns is not None):
            pause_ns = max(0, self.packets[0][0] - world.now_ns) if self.packets else 0
            world.after(pause_ns + self._pause_ns(), self._begin)
        else:
            self._polls = False

    def _keep(self, taken: tuple[Packet, ...]) -> tuple[Packet, ...]:
        """GRO keeps the last packets for a timer. Returns the others."""
        least = max(0, len(taken) - self.world.random.randrange(1, 4))
        self._timers += 1
        self.kept = taken[least:]
        self.world.after(self.timeout_ns, self._flush, self._timers)
        return taken[:least]

    def _flush(self, timer: int) -> None:
        if self.kept and timer == self._timers:
            self.wake()
