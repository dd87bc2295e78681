# SPDX-License-Identifier: GPL-2.0-or-later
"""Channels of interfaces that forward to each other, as the policy's `forwarding` rules ask. Pure.

The rules:

1. Only a pair of interfaces that are served and that a rule names, once it forwards `LEAST_PPS`.
   The first rule that matches a pair decides about it; a channel that an earlier rule has placed is
   fixed for a later one.
2. Where its channels should be is `place.placed`, for what the last look counted and for what each
   CPU has room for. A CPU's work for a packet is taken from the CPU that needs least for one; what
   it does besides that is the work of others.
3. That is put in force when it was clearly better (`place.clearly_better`) at `LOOKS` looks in a
   row: than how it is, and than what is in force already, some of which may have to wait. A look
   during which a channel moved says nothing. If another place is better again before this one was
   good for as many looks, what was counted does not tell what moves along with a channel (packets
   for sockets of this machine): the next one must be better at four times as many. Not so if a
   channel that is not ours to place was taken elsewhere since: that is why another is better.
4. A channel moves by follow: its NAPI or interrupt gets another CPU, and its packets keep their
   queue. At most `MOVES` at a look, and none that moved less than the policy's hold-down ago.
   Never: one whose CPU another program changed (`manual`), that a thread owns, of an interface that
   is not armed.
5. Each CPU that forwards to an interface has a TX queue there (`xps_cpus`): with `core` that of
   the same number, else the nearest, which no other CPU has as long as there are enough.
6. Under `order: strict` no packet that is forwarded gets another TX queue: what waits in the old
   one would be overtaken. So `xps_cpus` is written only for a CPU that forwarded nothing there at
   the last look, or nothing by another queue, and that no channel has come to since. And a channel
   moves only to a CPU that has the same TX queue: the CPU gets it at an earlier look, if it
   forwards nothing there. Else the channel waits. One that several CPUs may serve also waits while
   those of them that forward there have different TX queues. Under `bounded` both are done at once.
7. What was refused is tried again at the next looks, and the reason is shown. A channel is tried
   later each time, as a queue that follows a thread is (`Lent.put_off`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from atfnd.engine.forwarding.look import RuleLook
from atfnd.engine.forwarding.matrix import Channel
from atfnd.engine.forwarding.place import clearly_better, cost, placed
from atfnd.engine.ownership.follow import TERMS
from atfnd.engine.placement.steering_method import of_queue
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    Action,
    NicView,
    Outcome,
    Pair,
    PairPlacement,
    Plan,
    SteeringMethod,
)
from atfnd.model.reason import Code, Why
from atfnd.policy.match.match import forwarding_rules

__all__ = ["Forwarding", "Steps"]

LEAST_PPS = 100.0
LOOKS, MOST_LOOKS, IN_VAIN, MOVES = 3, 1500, 4, 8


class Steps(NamedTuple):
    """What is to be written now: TX queues at once, and channels that follow."""

    settings: Plan
    follows: Plan


@dataclass(slots=True)
class _Placing:
    """What one rule has placed."""

    wanted: dict[Channel, int] = field(default_factory=dict)
    better: int = 0  # looks in a row at which another place was clearly better
    good: int = 0  # looks in a row at which none was
    looks: int = LOOKS  # for so many another one must be


@dataclass(slots=True)
class Forwarding:
    """What is remembered between looks."""

    placing: dict[tuple[str, PairPlacement], _Placing] = field(default_factory=dict)
    moved_ns: dict[Channel, int] = field(default_factory=dict)
    refused: dict[tuple[str, str], Why] = field(default_factory=dict)  # by NIC and setting
    said: dict[tuple[str, str], tuple[str, Why]] = field(default_factory=dict)  # rule, why
    # CPUs that a channel has left or has come to since the last look: it was counted before that
    moved: frozenset[int] = frozenset()
    waits: bool = False  # something is wanted and cannot be done yet
    settled: bool = False  # the last look wrote nothing, waits for nothing, saw nothing better

    def look(self, pairs: Sequence[Pair], memory: Memory, now_ns: int) -> Steps:
        """What was forwarded since the last look. Where no rule places, it remembers nothing."""
        rules = memory.in_force.forwarding
        nics = {name: known.view for name, known in memory.nics.items()}
        kept = {(rule.name, rule.placement) for rule in rules}
        self.placing = {key: each for key, each in self.placing.items() if key in kept}
        self.said, moved, self.moved, self.waits = {}, self.moved, frozenset(), False
        decided = forwarding_rules(rules, nics)
        claimed, settings, follows = dict[Channel, int](), list[Action](), list[Action]()
        for rule in rules:
            own = {pair for pair, each in decided.items() if each is rule}
            if not own or rule.placement is PairPlacement.LEAVE:
                self.said |= dict.fromkeys(own, (rule.name, Code.RULE_LEAVES()))
                continue
            look = RuleLook(rule, own, pairs, nics, dict(claimed), moved, memory)
            placing = self.placing.setdefault((rule.name, rule.placement), _Placing())
            if not moved:
                self._judge(placing, look)
            claimed |= placing.wanted
            steps, why = self._steps(placing, look, now_ns)
            settings += steps.settings
            follows += steps.follows
            self.said |= dict.fromkeys(own, (rule.name, why))
        self.settled = not (moved or settings or follows or self.waits) and all(
            each.better == 0 for each in self.placing.values()
        )
        return Steps(tuple(settings[:MOVES]), tuple(follows[:MOVES]))

    def reported(self, outcome: Outcome, memory: Memory, now_ns: int) -> None:
        """What a write has come to. The NIC's settings are read again later."""
        action = outcome.action
        if action.key is not None or action.nic not in memory.nics:
            return
        setting, value = action.setting, action.value
        if action.queue is not None:
            setting, value = of_queue("queue-cpu", action.queue), str(action.new)
        if setting is None or value is None or not self.places(action.nic):
            return
        if outcome.errno:
            self.refused[action.nic, setting] = Code.KERNEL(outcome.left)
            return
        self.refused.pop((action.nic, setting), None)
        known = memory.nics[action.nic]
        if setting in known.view.settings:
            known.view = replace(known.view, settings={**known.view.settings, setting: value})
        if action.queue is not None:
            channel = Channel(action.nic, action.queue)
            self.moved_ns[channel] = now_ns
            self.moved |= {cpu for cpu in (action.old, action.new) if cpu is not None}
            if self.wanted(channel) == action.new and action.new is not None:
                known.lent.homes[action.queue] = action.new

    def stayed(self, action: Action, why: Why) -> None:
        """A channel is not on its new CPU."""
        if action.queue is not None and self.places(action.nic):
            self.refused[action.nic, of_queue("queue-cpu", action.queue)] = why

    def places(self, nic: str) -> bool:
        """Some channel of this NIC was placed."""
        return any(each.nic == nic for one in self.placing.values() for each in one.wanted)

    def wanted(self, channel: Channel) -> int | None:
        """The CPU that it was given. None: none was."""
        every = (each.wanted.get(channel) for each in self.placing.values())
        return next((cpu for cpu in every if cpu is not None), None)

    def has_rule(self, nic: str, memory: Memory) -> bool:
        """Some rule may place channels of this NIC."""
        names = {*memory.nics, nic}
        decided = forwarding_rules(memory.in_force.forwarding, names)
        return any(
            nic in pair and rule.placement is not PairPlacement.LEAVE
            for pair, rule in decided.items()
        )

    def without_tx_queues(self, nic: str, plan: Plan, memory: Memory) -> Plan:
        """What arming writes, less the TX queues that are given to CPUs here."""
        if not self.has_rule(nic, memory):
            return plan
        return tuple(each for each in plan if not (each.setting or "").startswith("xps-cpus:"))

    def back(self, nic: NicView, originals: Mapping[str, str], homes: Mapping[int, int]) -> Plan:
        """No rule places channels of this NIC any more: its TX queues are as they were, or as
        arming has them. Its queues go home by themselves."""
        own = nic.method is not SteeringMethod.NONE
        if own and not self.places(nic.name):
            return ()
        for each in self.placing.values():
            each.wanted = {c: cpu for c, cpu in each.wanted.items() if c.nic != nic.name}
        plan = list[Action]()
        for queue in nic.queues:
            setting = of_queue("xps-cpus", queue.index)
            value = originals.get(setting)
            if value is None or setting in nic.manual or setting not in nic.settings:
                continue
            if own and queue.index in homes:
                value = str(homes[queue.index])
            if nic.settings[setting] != value:
                plan.append(Action.of_setting(nic.name, setting, value, Code.FORWARDS_UNASKED()))
        return tuple(plan)

    def why(self, ingress: str, egress: str) -> tuple[str, Why] | None:
        """The rule for what is forwarded from one interface to another, and why its channels are
        where they are, or wait. None: there is no rule for it."""
        return self.said.get((ingress, egress))

    def _judge(self, placing: _Placing, look: RuleLook) -> None:
        problem = look.problem
        if problem.total < LEAST_PPS or not problem.cpus:
            placing.better = 0
            return
        if any(placing.wanted.get(c, problem.now[c]) != problem.now[c] for c in problem.fixed):
            placing.looks = LOOKS
        found = placed(problem)
        better, kept = cost(found, problem), look.kept(placing.wanted)
        if not all(clearly_better(better, cost(each, problem)) for each in (problem.now, kept)):
            placing.better, placing.good = 0, placing.good + 1
            if placing.good >= placing.looks:
                placing.looks = LOOKS
            if not placing.wanted:
                placing.wanted = {each: cpu for each, cpu in problem.now.items() if cpu is not None}
            return
        placing.better, placing.good = placing.better + 1, 0
        if placing.better >= placing.looks:
            placing.wanted, placing.better = found, 0
            placing.looks = min(IN_VAIN * placing.looks, MOST_LOOKS)

    def _steps(self, placing: _Placing, look: RuleLook, now_ns: int) -> tuple[Steps, Why]:
        """What is written now, and why not more."""
        if not placing.wanted:
            return Steps((), ()), look.unplaced(placing.better)
        settings, follows = list[Action](), list[Action]()
        for channel, cpu in look.pending(placing.wanted):
            refused = self.refused.get((channel.nic, of_queue("queue-cpu", channel.queue)))
            if refused is not None:
                look.wait(Code.CHANNEL_REFUSED(channel.nic, channel.queue, refused))
            rests_ns = look.memory.in_force.hold_down_ns
            if now_ns - self.moved_ns.get(channel, now_ns - rests_ns) < rests_ns:
                continue
            if look.memory.nics[channel.nic].lent.rests(channel.queue, TERMS, now_ns):
                continue
            before = look.before(channel, cpu)
            if before == ():
                follows.append(look.follow(channel, cpu))
            else:
                settings += before or ()
        settings += look.tx_queues(placing.wanted)
        self.waits |= bool(look.waits)
        why = Code.WAITS(look.waits[0]) if look.waits else look.stands()
        return Steps(tuple(settings), tuple(follows)), why
