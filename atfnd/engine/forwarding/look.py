# SPDX-License-Identifier: GPL-2.0-or-later
"""What one forwarding rule has before it at a look, and what may be written for it. Pure.

Which TX queue a CPU has is in `xps_cpus` of the queues (get_xps_queue(), net/core/dev.c). A CPU
that none of them names sends by the queue whose number is that of the receive queue, modulo their
number (skb_tx_hash()): that does not depend on the CPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set

from atfnd.engine.forwarding.matrix import Channel, Sent, sent, streams
from atfnd.engine.forwarding.place import Places, ToPlace, distance
from atfnd.engine.placement.steering_method import of_queue
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    Action,
    ActionKind,
    Cpu,
    ForwardingRule,
    Mode,
    NicView,
    Pair,
    PairPlacement,
    cpu_list,
)
from atfnd.model.reason import Code, Why

__all__ = ["RuleLook"]

FULL = 90  # percent of a CPU's time that may be used
_CORE = PairPlacement.CORE, PairPlacement.MODE_0
_NOTHING = Sent(0.0, frozenset())
_STANDS = {
    PairPlacement.CORE: Code.CHANNELS_CORE(),
    PairPlacement.MODE_0: Code.CHANNELS_MODE_0(),
    PairPlacement.LLC: Code.CHANNELS_LLC(),
    PairPlacement.NODE: Code.CHANNELS_NODE(),
    PairPlacement.MODE_I: Code.CHANNELS_MODE_I(),
    PairPlacement.MODE_II: Code.CHANNELS_MODE_II(),
}


class RuleLook:
    """`own` are the pairs of interfaces that the rule decides about, `pairs` all that was counted,
    `claimed` the channels that earlier rules have placed, `moved` the CPUs of channels that have
    moved, perhaps after the count."""

    def __init__(
        self,
        rule: ForwardingRule,
        own: set[tuple[str, str]],
        pairs: Sequence[Pair],
        nics: Mapping[str, NicView],
        claimed: Mapping[Channel, int],
        moved: Set[int],
        memory: Memory,
    ) -> None:
        self.rule, self.memory, self._nics, self._claimed = rule, memory, nics, claimed
        self._moved = moved
        self.waits = list[Why]()
        self._sent = sent(pairs)
        self._streams = streams(
            (p for p in pairs if own.issuperset((nic, p.egress) for nic in p.came_by)), nics
        )
        self._receives = defaultdict[str, set[str]](set)  # by egress
        for ingress, egress in own:
            self._receives[egress].add(ingress)
        self._masks = {name: _xps(nics[name]) for pair in own for name in pair}
        self._given: dict[tuple[str, int], frozenset[int]] = {}
        self._prepared: set[tuple[str, int]] = set()
        self._flux: set[int] = set()
        self.problem = self._problem(pairs)

    # ---- what is to be placed

    def _problem(self, pairs: Sequence[Pair]) -> ToPlace:
        comes, goes = defaultdict[str, float](float), defaultdict[str, float](float)
        for ingress, egress, pps in self._streams:
            comes[ingress.nic] += pps
            goes[egress] += pps
        names = sorted(comes.keys() | goes.keys())
        taken, most = self._taken(pairs)
        channels = {name: len(self._nics[name].queues) for name in names}
        every = [Channel(name, queue.index) for name in names for queue in self._nics[name].queues]
        return ToPlace(
            placement=self.rule.placement,
            channels=channels,
            streams=self._streams,
            receives=frozenset(name for name in names if comes[name] > goes[name]),
            now={each: self._claimed.get(each, self.confined(each)) for each in every},
            fixed=frozenset(c for c in every if c in self._claimed or not self.movable(c)),
            cpus=self._cpus(),
            node={name: self._nics[name].device.node for name in names},
            taken=taken,
            most=most,
        )

    def _cpus(self) -> dict[int, Cpu]:
        asked = [self._nics[name].serve_on for name in self._masks]
        online = {
            cpu.index: cpu
            for cpu in self.memory.cpus.values()
            if cpu.online and all(each.allows(cpu.index) for each in asked)
        }
        kept, named = self.memory.in_force.dedicated, [each.names for each in asked]
        usual = {
            i: cpu
            for i, cpu in online.items()
            if i not in kept and (not cpu.isolated or any(names(i) for names in named))
        }
        return usual or online

    def _taken(self, pairs: Sequence[Pair]) -> tuple[dict[int, float], float | None]:
        """What each CPU does besides, and what an idle one can do, in packets/s."""
        every, own = defaultdict[int, float](float), defaultdict[int, float](float)
        for pair in pairs:
            every[pair.cpu] += pair.packets_pps
        for ingress, _, pps in self._streams:
            if (cpu := self.confined(ingress)) is not None:
                own[cpu] += pps
        busy, least = self.memory.busy, max(every.values(), default=0.0) / 10
        each = [busy[cpu] / pps for cpu, pps in every.items() if pps > least and busy.get(cpu)]
        if not each:
            return {}, None
        percent = min(each)  # of a CPU, for one packet a second
        taken = {cpu: max(0.0, share / percent - own[cpu]) for cpu, share in busy.items()}
        return taken, FULL / percent

    def movable(self, channel: Channel) -> bool:
        """We may set its CPU."""
        known = self.memory.nics.get(channel.nic)
        if known is None or not known.view.armed or not known.view.up:
            return False
        setting = of_queue("queue-cpu", channel.queue)
        ours = known.view.caps.queue_cpu and setting in known.view.settings
        return ours and setting not in known.view.manual and channel.queue not in known.owned

    def confined(self, channel: Channel) -> int | None:
        """The one CPU that it may be served on."""
        nic = self._nics.get(channel.nic)
        queues = () if nic is None else nic.queues
        queue = next((each for each in queues if each.index == channel.queue), None)
        if nic is None or queue is None:
            return None
        several = nic.settings.get(of_queue("queue-cpu", channel.queue), "0")
        return queue.cpu if several.isdecimal() else None

    def kept(self, wanted: Mapping[Channel, int]) -> Places:
        """Where channels are once all that is wanted is done."""
        there = {c: cpu for c, cpu in wanted.items() if cpu in self.problem.cpus}
        fixed = self.problem.fixed
        return {c: now if c in fixed else there.get(c, now) for c, now in self.problem.now.items()}

    # ---- channels

    def pending(self, wanted: Mapping[Channel, int]) -> list[tuple[Channel, int]]:
        """The channels that are not where they should be, and may go there."""
        found = []
        for channel, cpu in sorted(wanted.items()):
            known = self.memory.cpus.get(cpu)
            if known is None or not known.online or channel in self._claimed:
                continue
            if not self.movable(channel) or not self._nics[channel.nic].serve_on.allows(cpu):
                continue
            if (here := self.confined(channel)) != cpu:
                found.append((channel, cpu))
                self._flux |= {cpu} if here is None else {cpu, here}
        return found

    def before(self, channel: Channel, cpu: int) -> tuple[Action, ...] | None:
        """What has to be written, at an earlier look, before a channel may go to a CPU without
        another TX queue for its packets. None: it has to wait."""
        needed = list[Action]()
        if self.rule.order is Mode.BOUNDED:
            return ()
        given = dict[tuple[str, int], frozenset[int]]()
        for egress, cpus in self._sends(channel).items():
            ways, then = {self._queues(egress, each) for each in cpus}, self._queues(egress, cpu)
            if len(ways) > 1:
                self.wait(Code.SEVERAL_TX(channel.nic, channel.queue, cpu_list(cpus), egress))
                return None
            (is_now,) = ways
            used = {t for each in cpus for t in self._sent.get((egress, each), _NOTHING).tx_queues}
            if is_now != then and (is_now or then != used or len(used) > 1):
                forwards = self._sent.get((egress, cpu), _NOTHING).pps > 0 or cpu in self._moved
                if forwards or (egress, cpu) in self._given:
                    self.wait(Code.OTHER_TX(channel.nic, channel.queue, egress, cpu))
                    return None
                masks = self._with(egress, cpu, is_now)
                if any(of_queue("xps-cpus", t) in self._nics[egress].manual for t in masks):
                    self.wait(Code.XPS_MANUAL(egress))
                    return None
                if any((egress, queue) in self._prepared for queue in masks):
                    return None  # at a later look
                if not self._nics[egress].armed:
                    self.wait(Code.EGRESS_NOT_ARMED(egress, cpu))
                    return None
                self._prepared |= {(egress, queue) for queue in masks}
                why = Code.TX_FIRST(cpu, channel.nic, channel.queue)
                needed += (self._xps(egress, t, m, why) for t, m in masks.items())
            elif self._given.get((egress, cpu), is_now) != is_now:
                self.wait(Code.TX_TAKEN(egress, cpu))
                return None
            given[egress, cpu] = is_now
        self._given |= given
        return tuple(needed)

    def _sends(self, channel: Channel) -> Mapping[str, Set[int]]:
        """The CPUs that may forward its packets, by egress. If it may be served on several: those
        of them that forwarded anything there at the last look."""
        if (here := self.confined(channel)) is not None:
            return {each.egress: {here} for each in self._streams if each.ingress == channel}
        setting = of_queue("queue-cpu", channel.queue)
        any_of = {*_cpus(self._nics[channel.nic].settings[setting])}
        found = defaultdict[str, set[int]](set)
        for egress, cpu in self._sent:
            if cpu in any_of and channel.nic in self._receives.get(egress, ()):
                found[egress].add(cpu)
        return found

    def follow(self, channel: Channel, cpu: int) -> Action:
        why = Code.FORWARDING(self.rule.name, _STANDS[self.rule.placement])
        here = self.confined(channel)
        kind, name = ActionKind.QUEUE_CPU, self.rule.name
        return Action(kind, channel.nic, None, None, here, cpu, why, name, channel.queue)

    # ---- TX queues

    def tx_queues(self, wanted: Mapping[Channel, int]) -> list[Action]:
        """The TX queues that may get other CPUs now."""
        found = list[Action]()
        for egress in sorted(self._receives):
            nic, before = self._nics[egress], self._masks[egress]
            if not nic.armed or not before:
                continue
            after = self._fit(egress, wanted)
            for queue, mask in after.items():
                if mask == before[queue] or of_queue("xps-cpus", queue) in nic.manual:
                    continue
                if (egress, queue) in self._prepared:
                    continue
                if self.rule.order is Mode.BOUNDED or self._keeps_order(egress, queue, after):
                    why = Code.TX_OF_CPUS(cpu_list(mask))
                    found.append(self._xps(egress, queue, mask, why))
        return found

    def _fit(self, egress: str, wanted: Mapping[Channel, int]) -> dict[int, frozenset[int]]:
        """The CPUs of each TX queue of an interface, as they should be."""
        before = self._masks[egress]
        there = {i: wanted.get(Channel(egress, i)) for i in before}
        if self.rule.placement in _CORE:
            return {i: before[i] if cpu is None else frozenset({cpu}) for i, cpu in there.items()}
        work = defaultdict[int, float](float)
        for ingress, out, pps in self._streams:
            if out == egress and (cpu := wanted.get(ingress)) is not None:
                work[cpu] += pps
        if not work:
            return before
        of_cpu, free = dict[int, int](), set(before)
        for cpu in sorted(work, key=lambda each: (-work[each], each)):

            def far(queue: int, cpu: int = cpu) -> int:
                return distance(cpu, there[queue], self.problem.cpus)

            has = self._queues(egress, cpu)
            among = free or set(before)
            shared = [*of_cpu.values()]
            of_cpu[cpu] = min(
                among, key=lambda each: (far(each), each not in has, shared.count(each), each)
            )
            free.discard(of_cpu[cpu])
        return {
            queue: frozenset(cpu for cpu, each in of_cpu.items() if each == queue)
            or before[queue] - of_cpu.keys()
            for queue in before
        }

    def _keeps_order(self, egress: str, queue: int, after: Mapping[int, frozenset[int]]) -> bool:
        """No packet that is forwarded gets another TX queue by this write."""
        for cpu in sorted(self._masks[egress][queue] ^ after[queue]):
            pps, used = self._sent.get((egress, cpu), _NOTHING)
            new = frozenset(each for each, mask in after.items() if cpu in mask)
            if cpu in self._flux or cpu in self._moved:
                return False
            if pps > 0 and not (len(new) == 1 and used <= new):
                self.wait(Code.TX_BUSY(cpu, egress, cpu_list(used)))
                return False
        return True

    def _queues(self, egress: str, cpu: int) -> frozenset[int]:
        """The TX queues that a CPU has there. Empty: it does not matter which CPU sends."""
        masks = self._masks.get(egress, {})
        return frozenset(queue for queue, mask in masks.items() if cpu in mask)

    def _with(self, egress: str, cpu: int, queues: frozenset[int]) -> dict[int, frozenset[int]]:
        """The masks that change when a CPU gets just these queues."""
        after = {
            queue: mask | {cpu} if queue in queues else mask - {cpu}
            for queue, mask in self._masks[egress].items()
        }
        return {q: mask for q, mask in after.items() if mask != self._masks[egress][q]}

    def _xps(self, egress: str, queue: int, cpus: frozenset[int], why: Why) -> Action:
        setting, why = of_queue("xps-cpus", queue), Code.FORWARDING(self.rule.name, why)
        return Action.of_setting(egress, setting, cpu_list(cpus), why, self.rule.name)

    # ---- in words

    def wait(self, why: Why) -> None:
        self.waits.append(why)

    def stands(self) -> Why:
        return _STANDS[self.rule.placement]

    def unplaced(self, looks: int) -> Why:
        if not self.problem.cpus:
            return Code.NO_CPU_SERVES()
        if looks:
            return Code.NOT_PLACED_YET(looks)
        return Code.FEW_FORWARDED() if self._streams else Code.NONE_FORWARDED()


def _xps(nic: NicView) -> dict[int, frozenset[int]]:
    """The CPUs of each TX queue that is part of a channel."""
    named = ((queue.index, of_queue("xps-cpus", queue.index)) for queue in nic.queues)
    return {i: frozenset(_cpus(nic.settings[n])) for i, n in named if n in nic.settings}


def _cpus(text: str) -> Iterator[int]:
    """`0-2,5` (`cpu_list`)."""
    for run in filter(None, text.split(",")):
        first, _, last = run.partition("-")
        yield from range(int(first), int(last or first) + 1)
