# SPDX-License-Identifier: GPL-2.0-or-later
"""What happens in a run, as data: drawn from a seed, and shrunk by leaving steps out.

Numbers in steps are taken modulo what there is, so a step means something in any world.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import NamedTuple

from tests.simulation.world import BEGIN_NS

__all__ = ["DRIVERS", "FAULTS", "USE", "VERBS", "Plan", "Step", "plan"]

DRIVERS = (
    "ixgbe",
    "i40e",
    "ice",
    "iavf",
    "mlx5_core",
    "mlx4_en",
    "bnxt_en",
    "sfc",
    "cxgb4",
    "qede",
    "gve",
    "hns3",
    "rvu-nicpf",
    "fbnic",
    "idpf",
)
NO_FILTERS = "igc", "virtio_net"  # RSS alone steers there
MS = 1_000_000


class Step(NamedTuple):
    """At this time, this. Orders to the daemon wait until it has done what it does."""

    at_ns: int
    verb: str
    arguments: tuple[int, ...] = ()

    def __str__(self) -> str:
        words = " ".join(map(str, self.arguments))
        return f"{(self.at_ns - BEGIN_NS) / MS:10.3f} ms  {self.verb} {words}".rstrip()


class Plan(NamedTuple):
    """A whole run."""

    seed: int
    drivers: tuple[str, ...]
    slots: int
    threaded: bool
    flows: int
    busy: bool  # its flows send all the time
    steps: tuple[Step, ...]
    receives: bool = False  # its policies say who polls
    forwards: bool = False  # the machine forwards, and its policies place that
    wanders: bool = True  # some threads of a whole run wake on another CPU by themselves

    @property
    def lends(self) -> bool:
        """A queue that is polled from its interrupt may borrow a thread."""
        return not self.threaded and (self.seed // 20 % 4 != 3 or self.each)

    @property
    def each(self) -> bool:
        """A NAPI may have a thread of its own, also for good."""
        return self.receives and not self.threaded and self.seed // 20 % 3 != 2

    def __str__(self) -> str:
        how = "polled by threads" if self.threaded else "polled from interrupts"
        how += ", and may borrow threads" if self.lends else ""
        nics = ", ".join(self.drivers)
        head = f"seed {self.seed}: {nics}, {self.slots} slots, {self.flows} flows, {how}"
        return "\n".join([head, *map(str, self.steps)])


USE = {
    "open": 4, "close": 2, "migrate": 8, "silence": 1, "talk": 2, "listen": 2, "unlisten": 1,
    "accept": 5, "connect": 3,
}  # fmt: skip
SERVED = {"listen": 3, "accept": 10, "close": 10, "reload": 8, "stall": 6, "migrate": 1}
STOPPED = {"open": 5, "migrate": 9, "close": 3, "listen": 2, "accept": 4, "connect": 4, "talk": 1}
STOPS = (("pause", "resume"), ("disarm", "arm"), ("restore", "arm"), ("stop", "begin"))
FAULTS = {
    "kill": 3, "end": 1, "disk full": 1, "disk has room": 2, "disk fails": 1, "disk slow": 1,
    "refuse": 3, "refuse setting": 1, "drop": 1, "slow": 1, "foreign insert": 3,
    "foreign delete": 1, "takes ours": 1, "moves ours": 1, "foreign set": 2, "flap": 1,
    "reset": 1, "ntuple": 1, "unplug": 1, "rename": 1, "stall": 2, "lose": 1, "break holds": 1,
    "silence": 1, "talk": 2, "migrate": 1, "offline": 1,
    "arm": 2, "disarm": 1, "pause": 1, "resume": 2, "restore": 1, "reload": 2, "stop": 1,
    "begin": 3, "unread": 2, "unreadable": 2, "lose births": 1, "lose records": 2,
}  # fmt: skip


BALANCED = {
    "irqbalance begins": 2, "irqbalance ends": 1, "irqbalance hangs": 2, "irqbalance is slow": 1,
    "admin bans": 1, "admin frees": 1, "foreign set": 1, "open": 3, "close": 1, "migrate": 5,
}  # fmt: skip
STOPS_OF_BALANCED = (
    "kill", "end", "begin", "arm", "disarm", "pause", "resume", "restore", "stop", "reload",
    "disk full", "disk has room", "disk fails", "flap", "unplug", "rename", "offline",
    "refuse setting", "unreadable",
)  # fmt: skip
SHARED = {"join": 6, "open": 2, "migrate": 10, "close": 3, "silence": 1, "talk": 2, "flap": 1}
RIVALS = {
    "foreign set": 6,
    "open": 2,
    "migrate": 4,
    "close": 1,
    "flap": 1,
    "reload": 1,
    "resume": 1,
}
RECEIVED = {
    "admin sets reception": 4, "open": 3, "close": 1, "migrate": 8, "silence": 1, "talk": 2,
    "stall": 1, "reload": 1, "refuse after all": 1, "refuse setting": 1,
}  # fmt: skip
STOPS_OF_RECEIVED = (
    "kill", "end", "begin", "arm", "disarm", "pause", "resume", "restore", "stop", "reload",
    "disk full", "disk has room", "disk fails", "disk slow", "flap", "reset", "unplug", "rename",
    "offline", "unreadable", "admin sets budget",
    "refuse budget", "break holds", "lose",
)  # fmt: skip
FORWARDED = {"shift": 6, "foreign set": 1, "admin places": 1, "open": 1, "migrate": 1}
STOPS_OF_FORWARDED = (
    "kill", "end", "begin", "arm", "disarm", "pause", "resume", "restore", "stop", "reload",
    "disk full", "disk has room", "disk fails", "flap", "unplug", "rename", "offline",
    "refuse setting", "refuse after all", "unreadable", "refuse count", "close",
)  # fmt: skip
CROWDED = {"open": 3, "close": 4, "migrate": 2, "silence": 1, "talk": 1}
VERBS = frozenset(
    {
        *USE,
        *FAULTS,
        *BALANCED,
        *SHARED,
        *RECEIVED,
        *STOPS_OF_RECEIVED,
        *FORWARDED,
        *STOPS_OF_FORWARDED,
        "batch begins",
        "batch ends",
    }
)  # what may happen


def plan(seed: int, count: int = 40) -> Plan:
    """A run of so many steps (`_plan`). In every third one other work fills a CPU for a while; in
    every eleventh an admin gives queues other CPUs."""
    drawn, more = _plan(seed, count), list[Step]()
    first_ns, last_ns = drawn.steps[0].at_ns, drawn.steps[-1].at_ns

    def at_ns(percent: int) -> int:
        return first_ns + (last_ns - first_ns) * percent // 100

    if seed % 3 == 0:
        cpu = Random(f"batch {seed}").randrange(1000)
        more += [Step(at_ns(20), "batch begins", (cpu,)), Step(at_ns(70), "batch ends")]
    if seed % 11 == 10 and not (drawn.receives or drawn.forwards):
        random = Random(f"places {seed}")
        for _ in range(4):
            arguments = tuple(random.randrange(1000) for _ in range(4))
            more.append(Step(at_ns(random.randrange(10, 100)), "admin places", arguments))
    return drawn._replace(steps=tuple(sorted((*drawn.steps, *more), key=lambda each: each.at_ns)))


def _plan(seed: int, count: int) -> Plan:
    """A run of the whole daemon. Of twenty, three have no fault; every fifth is about filters of
    ports; every tenth about what is under way when an operator says stop; two of twenty about who
    polls; every twentieth about what is forwarded, about interrupts that irqbalance moves, about
    threads with sockets on two NICs, about daemons that are killed while they start among programs
    that write the same settings, and about more flows than filters, for minutes."""
    kinds_of = {
        7: _balanced, 9: _restarted, 12: _piloted, 14: _received, 15: _forwarded, 17: _shared,
        19: _crowded,
    }  # fmt: skip
    if (kind := kinds_of.get(seed % 20)) is not None:
        return kind(seed, count)
    if seed % 5 == 1:
        return _ports(seed, count)
    if seed % 10 == 3:
        return _stopped(seed, count)
    random = Random(f"whole {seed}")
    kinds = random.sample(sorted(FAULTS), 0 if seed % 4 == 0 else random.randrange(2, 10))
    verbs = USE | {kind: FAULTS[kind] for kind in kinds}
    some = (*DRIVERS, *NO_FILTERS)
    drivers = tuple(random.choice(some) for _ in range(random.choice((1, 2, 2))))
    at_ns, steps = BEGIN_NS + 500 * MS, [Step(BEGIN_NS + MS, "begin")]
    for _ in range(count):
        near = random.random() < 0.4
        at_ns += random.randrange(1_000, 3 * MS) if near else random.randrange(MS, 800 * MS)
        [verb] = random.choices(list(verbs), list(verbs.values()))
        steps.append(Step(at_ns, verb, tuple(random.randrange(1000) for _ in range(4))))
    return Plan(
        seed, drivers, random.choice((4, 16, 64)), random.random() < 0.8, random.randrange(2, 9),
        False, tuple(steps),
    )  # fmt: skip


def _ports(seed: int, count: int) -> Plan:
    """Servers whose connections come and go while the policy changes its mind about their ports."""
    random = Random(f"ports {seed}")
    at_ns, steps = BEGIN_NS + 500 * MS, [Step(BEGIN_NS + MS, "begin")]
    for _ in range(count):
        near = random.random() < 0.7 and steps[-1].verb != "listen"
        at_ns += random.randrange(1_000, 3 * MS) if near else random.randrange(MS, 800 * MS)
        [verb] = random.choices(list(SERVED), list(SERVED.values()))
        steps.append(Step(at_ns, verb, tuple(random.randrange(1000) for _ in range(4))))
    driver = random.choice(("hns3", "cxgb4", "mlx5_core", "sfc"))  # the narrower filter wins
    return Plan(seed, (driver,), 64, True, 1, True, tuple(steps))


def _stopped(seed: int, count: int) -> Plan:
    """Moves and births, and within milliseconds an operator who ends them, and begins again."""
    random = Random(f"stopped {seed}")
    at_ns, steps, again = BEGIN_NS + 500 * MS, [Step(BEGIN_NS + MS, "begin")], ""
    for _ in range(count):
        used = steps[-1].verb in STOPPED
        at_ns += random.randrange(1_000, 3 * MS) if used else random.randrange(MS, 800 * MS)
        if again:
            verb, again = again, ""
        elif used and random.random() < 0.4:
            verb, again = random.choice(STOPS)
        else:
            [verb] = random.choices(list(STOPPED), list(STOPPED.values()))
        steps.append(Step(at_ns, verb, tuple(random.randrange(1000) for _ in range(4))))
    drivers = tuple(random.choice(DRIVERS) for _ in range(random.choice((1, 2))))
    return Plan(seed, drivers, 64, random.random() < 0.8, random.randrange(2, 9), False,
                tuple(steps))  # fmt: skip


def _balanced(seed: int, count: int) -> Plan:
    """Queues that deliver from interrupts, and an irqbalance that moves them."""
    random = Random(f"balanced {seed}")
    kinds = random.sample(STOPS_OF_BALANCED, random.randrange(0, 8))
    verbs = BALANCED | dict.fromkeys(kinds, 1) | ({"begin": 3} if kinds else {})
    began = BEGIN_NS + MS
    at_ns, steps = began + 500 * MS, [Step(began, "irqbalance begins", (1,)), Step(began, "begin")]
    for _ in range(count):
        near = random.random() < 0.3
        at_ns += random.randrange(1_000, 3 * MS) if near else random.randrange(MS, 1500 * MS)
        [verb] = random.choices(list(verbs), list(verbs.values()))
        steps.append(Step(at_ns, verb, tuple(random.randrange(1000) for _ in range(4))))
    drivers = tuple(random.choice((*DRIVERS, *NO_FILTERS)) for _ in range(random.choice((1, 2))))
    return Plan(seed, drivers, 64, False, random.randrange(2, 7), False, tuple(steps))


def _received(seed: int, count: int) -> Plan:
    """Policies that say who polls, and others who say otherwise."""
    random = Random(f"received {seed}")
    kinds = random.sample(STOPS_OF_RECEIVED, random.randrange(0, 9))
    verbs = RECEIVED | dict.fromkeys(kinds, 1) | ({"begin": 3} if kinds else {})
    steps = [Step(BEGIN_NS + MS, "begin"), *_drawn(random, verbs, count, 0.4, 800 * MS)]
    drivers = tuple(random.choice((*DRIVERS, *NO_FILTERS)) for _ in range(random.choice((1, 2))))
    return Plan(seed, drivers, 64, random.random() < 0.2, random.randrange(2, 7), False,
                tuple(steps), receives=True, wanders=False)  # fmt: skip


def _piloted(seed: int, count: int) -> Plan:
    """The same, where queues have so much to do that `auto` tries."""
    random = Random(f"piloted {seed}")
    verbs = {"migrate": 2, "open": 1, "admin sets reception": 1, "admin sets budget": 1}
    verbs |= dict.fromkeys(random.sample(STOPS_OF_RECEIVED, random.choice((0, 3))), 1)
    steps = [Step(BEGIN_NS + MS, "begin"), *_drawn(random, verbs, count // 2, 0.2, 1500 * MS)]
    return Plan(seed, (random.choice(DRIVERS),), 64, False, 2, True, tuple(steps),
                receives=True, wanders=False)  # fmt: skip


def _forwarded(seed: int, count: int) -> Plan:
    """A router whose traffic shifts now and then."""
    random = Random(f"forwarded {seed}")
    kinds = random.sample(STOPS_OF_FORWARDED, random.randrange(0, 7))
    verbs = FORWARDED | dict.fromkeys(kinds, 1) | ({"begin": 3} if kinds else {})
    first = Step(BEGIN_NS + MS, "shift", (1, 2, 3, 500))
    drawn = _drawn(random, verbs, count // 2, 0.3, 6_000 * MS, BEGIN_NS + MS)
    drivers = tuple(random.choice((*DRIVERS, *NO_FILTERS)) for _ in range(random.choice((2, 2, 3))))
    steps = first, Step(BEGIN_NS + MS, "begin"), *drawn
    return Plan(seed, drivers, 16, random.random() < 0.6, random.randrange(1, 3), False, steps,
                forwards=True, wanders=False)  # fmt: skip


def _shared(seed: int, count: int) -> Plan:
    """Threads that use sockets on two NICs, and take them along."""
    random = Random(f"shared {seed}")
    drivers = tuple(random.choice(DRIVERS) for _ in range(2))
    verbs = SHARED | random.choice(({}, {"arm": 2, "disarm": 1}))
    steps = [Step(BEGIN_NS + MS, "begin"), *_drawn(random, verbs, count, 0.4, 600 * MS)]
    return Plan(seed, drivers, 64, True, random.randrange(2, 5), False, tuple(steps))


def _restarted(seed: int, count: int) -> Plan:
    """A daemon that is killed again and again while it starts, and other programs that write the
    same settings before and after."""
    random = Random(f"restarted {seed}")
    steps = _drawn(random, RIVALS, 6, 0.9, 3 * MS)
    for _ in range(count // 8):
        at_ns = max(steps[-1].at_ns, BEGIN_NS + 500 * MS)
        again = ("kill", "begin", "begin") if random.random() < 0.8 else ("begin",)
        for verb in ("end", *again):
            at_ns += random.randrange(1_000, 2 * MS)
            steps.append(Step(at_ns, verb, tuple(random.randrange(1000) for _ in range(4))))
        steps += _drawn(random, RIVALS, 4, 0.3, 500 * MS, at_ns)
    driver = random.choice(DRIVERS)
    return Plan(seed, (driver,), 16, True, random.randrange(2, 7), False, tuple(steps))


def _crowded(seed: int, count: int) -> Plan:
    """More flows than the NIC has filters, for so long that nobody asks for one often."""
    random = Random(f"crowded {seed}")
    steps = [Step(BEGIN_NS + MS, "begin"), *_drawn(random, CROWDED, count // 2, 0.2, 15_000 * MS)]
    return Plan(seed, (random.choice(DRIVERS),), 4, True, 8, False, tuple(steps))


def _drawn(
    random: Random, verbs: Mapping[str, int], count: int, near: float, most_ns: int,
    at_ns: int = BEGIN_NS,
) -> list[Step]:  # fmt: skip
    """So many of these verbs, after `at_ns`; `near` of them at once after the one before."""
    steps = list[Step]()
    for _ in range(count):
        at_ns += random.randrange(1_000, 3 * MS if random.random() < near else most_ns)
        [verb] = random.choices(list(verbs), list(verbs.values()))
        steps.append(Step(at_ns, verb, tuple(random.randrange(1000) for _ in range(4))))
    return steps
