# SPDX-License-Identifier: GPL-2.0-or-later
"""Forwarding rules through the engine: it sees what a machine forwards, and what it writes is done
to that machine. And where channels are placed."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from atfnd.engine.command import Begin, Command, WriteSettings
from atfnd.engine.engine import Engine
from atfnd.engine.event import (
    CpusRead,
    LoadRead,
    MovesReported,
    NicAttached,
    OriginalsRead,
    PairsCounted,
    PolicyLoaded,
    SettingsDue,
    SettingsLeftAlone,
)
from atfnd.engine.forwarding.matrix import Channel, Stream, streams
from atfnd.engine.forwarding.place import ToPlace, clearly_better, cost, placed
from atfnd.engine.ownership.owner import Owned
from atfnd.engine.plan import changed
from atfnd.engine.table.memory import Memory
from atfnd.kernel.system.cpulist import parse_cpulist
from atfnd.model import (
    Action,
    ActionKind,
    ForwardingRule,
    Mode,
    Outcome,
    Pair,
    PairPlacement,
    Pairs,
    Policy,
    Queue,
    ServeOn,
)
from atfnd.model.reason import Code
from atfnd.move.command import Ended
from atfnd.move.verdict import Mechanism, Verdict
from atfnd.policy.file.load import built_in
from tests.diagnose.machines import topology
from tests.values import NIC

SECOND = 1_000_000_000
GATEWAY = ForwardingRule(
    "gateway", "test:1", ("in*",), ("out*",), False, PairPlacement.CORE, Mode.STRICT
)


def policy(*rules: ForwardingRule) -> Policy:
    return replace(built_in(), forwarding=rules)


class Machine:
    """Interfaces whose channels forward; the engine decides. `pps`: of channel and egress."""

    def __init__(
        self,
        at: Mapping[str, list[int]],
        pps: Mapping[tuple[str, int, str], float],
        rule: ForwardingRule = GATEWAY,
        xps: Mapping[tuple[str, int], str] | None = None,
        unarmed: frozenset[str] = frozenset(),
        bonded: tuple[str, ...] = (),
    ) -> None:
        self.bonded = bonded
        self.engine = Engine(Memory.of(policy(rule)))
        self.pps, self.now_ns = dict(pps), SECOND
        self.wrote: list[Action] = []
        self.refuse: dict[str, int] = {}
        self.changed_tx_queue: list[tuple[str, int, str]] = []
        self.take(CpusRead(topology()))
        for name, cpus in at.items():
            settings = {f"queue-cpu:{i}": str(cpu) for i, cpu in enumerate(cpus)}
            settings |= {f"xps-cpus:{i}": (xps or {}).get((name, i), "") for i in range(len(cpus))}
            queues = tuple(Queue(i, i + 1, None, c, True, 9) for i, c in enumerate(cpus))
            caps = replace(NIC.caps, filters=False, queue_cpu=True)
            view = replace(NIC, name=name, settings=settings, queues=queues, caps=caps)
            self.take(NicAttached(view, name not in unarmed))

    def take(self, event: Any) -> list[Command]:
        """Give it an event, and do what it wants."""
        commands = list(self.engine.handle(event, self.now_ns))
        for command in commands:
            actions: list[Action] = []
            if isinstance(command, WriteSettings):
                actions = list(command.plan)
            elif isinstance(command, Begin):
                assert all(each.mode is Mode.STRICT for each in command.wanted)
                actions = [each.action for each in command.wanted]
            for action in actions:
                self._write(action)
        return commands

    def _write(self, action: Action) -> None:
        before = self.tx_queues()
        setting = action.setting or f"queue-cpu:{action.queue}"
        code = self.refuse.get(setting, 0)
        known = self.engine.memory.nics[action.nic]
        if not code:
            known.view = changed(known.view, action)
        self.wrote.append(action)
        after = self.tx_queues()
        self.changed_tx_queue += [each for each in before if before[each] != after[each]]
        outcome = Outcome(action, self.now_ns, code, None, "refused" if code else "as planned")
        self.engine.handle(MovesReported((outcome,)), self.now_ns)
        if code and action.queue is not None:
            end = Mechanism.FOLLOW, Verdict.REFUSED, Code.KERNEL(outcome.left), 0, 0
            ended = Ended(action.queue, action, *end)
            self.engine.handle(MovesReported((ended,)), self.now_ns)

    def tx_queues(self) -> dict[tuple[str, int, str], frozenset[int]]:
        """By which TX queues the packets of each channel leave."""
        found = {}
        for (nic, i, out), pps in self.pps.items():
            if pps > 0:
                masks = self.xps(out)
                given = {
                    t for t, cpus in enumerate(masks) if self.cpus(nic)[i] in parse_cpulist(cpus)
                }
                found[nic, i, out] = frozenset(given or {i % len(masks)})
        return found

    def cpus(self, nic: str) -> list[int]:
        cpus = [queue.cpu for queue in self.engine.memory.nics[nic].view.queues]
        return [-1 if cpu is None else cpu for cpu in cpus]

    def xps(self, nic: str) -> list[str]:
        view = self.engine.memory.nics[nic].view
        return [view.settings[f"xps-cpus:{queue.index}"] for queue in view.queues]

    def may_be_on(self, nic: str, channel: int, cpus: str) -> None:
        """It is served where it was, and may be on others of these CPUs."""
        known = self.engine.memory.nics[nic]
        settings = {**known.view.settings, f"queue-cpu:{channel}": cpus}
        known.view = replace(known.view, settings=settings)

    def look(self, times: int = 1) -> None:
        """So many looks at what it forwards."""
        for _ in range(times):
            self.now_ns += SECOND
            self.take(PairsCounted(self.count()))

    def count(self) -> Pairs:
        rows = []
        for (nic, i, out), queues in self.tx_queues().items():
            cpu, pps = self.cpus(nic)[i], self.pps[nic, i, out] / len(queues)
            among = self.bonded if nic in self.bonded else ()
            came = "bond0" if among else nic
            rows += [
                Pair(came, None, out, t, cpu, None, None, 0, pps, 0, among=among) for t in queues
            ]
        return Pairs(1.0, None, 0, tuple(rows))

    def why(self, ingress: str = "in", egress: str = "out") -> str:
        found = self.engine.forwarding.why(ingress, egress)
        assert found is not None
        return str(found[1])


APART = {"in": [0, 1], "out": [1, 0]}
BUSY = {("in", 0, "out"): 1000.0, ("in", 1, "out"): 1000.0}


def test_channels_move_together_after_three_looks_and_tx_queues_match() -> None:
    made = Machine(APART, BUSY)
    made.look(2)
    assert made.wrote == []
    assert "not placed yet" in made.why()
    made.look()
    assert made.cpus("in") == made.cpus("out") == [0, 1]
    assert {each.kind for each in made.wrote} == {ActionKind.QUEUE_CPU}
    made.look(2)
    assert made.xps("out") == ["0", "1"]
    assert made.changed_tx_queue == []
    assert made.why() == "channels of one number are on one CPU"
    wrote = len(made.wrote)
    made.look(10)
    assert len(made.wrote) == wrote


LIMITS = [
    # `serve_on` of the one and of the other, and where the channels of both go.
    (ServeOn(frozenset({1})), ServeOn(frozenset({0})), [2, 3]),
    (ServeOn(frozenset({0, 7})), ServeOn(frozenset({0, 7}), False), None),
]


@pytest.mark.parametrize(("comes", "goes", "on"), LIMITS)
def test_channels_stay_on_cpus_that_may_serve_all_interfaces(
    comes: ServeOn, goes: ServeOn, on: list[int] | None
) -> None:
    made = Machine({"in": [2, 3], "out": [0, 2]}, BUSY)
    for name, serve_on in (("in", comes), ("out", goes)):
        known = made.engine.memory.nics[name]
        known.view = replace(known.view, serve_on=serve_on)
    made.look(5)
    assert ("no CPU may serve" in made.why()) == (on is None)
    if on is None:
        assert made.wrote == []
    else:
        assert made.cpus("in") == made.cpus("out") == on


def test_channels_of_a_bond_move_together_with_those_that_they_forward_to() -> None:
    of_both = {("in0", 0, "out"): 900.0, ("in1", 0, "out"): 500.0, ("in1", 1, "out"): 800.0}
    at = {"in0": [0, 1], "in1": [0, 1], "out": [1, 0]}
    made = Machine(at, of_both, bonded=("in0", "in1"))
    made.look(4)
    assert made.cpus("in0") == made.cpus("in1") == made.cpus("out")
    assert made.changed_tx_queue == []
    assert made.why("in1") == "channels of one number are on one CPU"


def test_under_strict_what_was_counted_before_a_channel_moved_gives_no_cpu_a_tx_queue() -> None:
    """A thread's queue follows it to a CPU that, by the last count, forwards nothing."""
    made = Machine({"in": [0, 1], "out": [0, 1]}, {("in", 0, "out"): 1000.0})
    made.engine.memory.nics["in"].owned = {0: Owned(("thread", 1), 0)}
    made.refuse = {"xps-cpus:0": errno.EBUSY, "xps-cpus:1": errno.EBUSY}
    made.look(2)
    counted, made.refuse = made.count(), {}
    made._write(Action(ActionKind.QUEUE_CPU, "in", None, None, 0, 1, Code.UNSAID(), "", queue=0))
    made.take(PairsCounted(counted))
    made.look(5)
    assert made.changed_tx_queue == []


def test_under_bounded_it_does_not_wait() -> None:
    bounded = replace(GATEWAY, order=Mode.BOUNDED)
    made = Machine({"in": [0, 1], "out": [0, 1]}, BUSY, bounded, xps={("out", 0): "0,1"})
    made.look(3)
    assert made.xps("out") == ["0", "1"]
    assert ("in", 1, "out") in made.changed_tx_queue


@pytest.mark.parametrize("held", ["manual", "owned", "unarmed"])
def test_what_is_not_ours_stays_and_others_join_it(held: str) -> None:
    unarmed = frozenset({"out"}) if held == "unarmed" else frozenset[str]()
    made = Machine(APART, BUSY, unarmed=unarmed)
    known = made.engine.memory.nics["out"]
    if held == "manual":
        theirs = frozenset({"queue-cpu:0", "queue-cpu:1", "xps-cpus:1"})
        made.take(SettingsLeftAlone("out", theirs))
    elif held == "owned":
        known.owned = {0: Owned(("thread", 1), 0), 1: Owned(("thread", 2), 0)}
    made.look(9)
    assert made.cpus("out") == made.cpus("in") == [1, 0]
    assert made.xps("out") == {"manual": ["1", ""], "owned": ["1", "0"], "unarmed": ["", ""]}[held]


def test_a_refusal_is_said_and_tried_again() -> None:
    made = Machine(APART, BUSY)
    made.refuse["queue-cpu:0"] = made.refuse["queue-cpu:1"] = 1
    made.look(9)
    assert made.cpus("out") == [1, 0]
    assert "refused" in made.why()
    made.refuse.clear()
    made.look(9)
    assert made.cpus("in") == made.cpus("out")
    assert made.why() == "channels of one number are on one CPU"


def test_one_way_and_the_first_rule_decide() -> None:
    one_way = replace(GATEWAY, one_way=True, placement=PairPlacement.LEAVE)
    made = Machine(APART, BUSY, one_way)
    made.look()
    assert made.engine.forwarding.why("out", "in") is None
    made.engine.memory.in_force = replace(
        made.engine.memory.in_force, forwarding=(one_way, replace(GATEWAY, name="back"))
    )
    made.look()
    assert made.engine.forwarding.why("in", "out") == ("gateway", Code.RULE_LEAVES())
    assert (made.engine.forwarding.why("out", "in") or ("",))[0] == "back"


def test_without_its_rule_tx_queues_are_as_they_were_and_queues_go_home() -> None:
    made = Machine(APART, BUSY)
    made.look(5)
    assert made.xps("out") == ["0", "1"]
    made.take(PolicyLoaded(policy(), {}, frozenset()))
    originals = {"queue-cpu:0": "1", "queue-cpu:1": "0", "xps-cpus:0": "", "xps-cpus:1": ""}
    known = made.engine.memory.nics["out"]
    known.view = replace(known.view, method=type(known.view.method).NONE)
    made.take(OriginalsRead("out", originals))
    assert made.xps("out") == ["", ""]
    assert known.lent.homes == {0: 1, 1: 0}


def test_arming_leaves_tx_queues_to_the_rule() -> None:
    for rules, expected in (((GATEWAY,), False), ((), True)):
        made = Machine(APART, BUSY)
        made.take(PolicyLoaded(policy(*rules), {}, frozenset()))
        commands = made.take(SettingsDue("out"))
        plans = [each.plan for each in commands if isinstance(each, WriteSettings)]
        settings = {action.setting for plan in plans for action in plan}
        assert ("xps-cpus:0" in settings) is expected


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=4),
    st.lists(st.integers(0, 7), min_size=1, max_size=4),
    st.lists(st.sampled_from([0.0, 50.0, 400.0, 5000.0]), min_size=4, max_size=4),
    st.lists(st.sampled_from(["", "0", "1", "0,1", "4", "5,6"]), min_size=4, max_size=4),
    st.sampled_from([each for each in PairPlacement if each is not PairPlacement.LEAVE]),
    st.lists(st.integers(0, 3), max_size=4),
    st.sets(st.integers(0, 3)),
)
@example(
    # Two channels of a CPU without a TX queue of its own, and a CPU that has two.
    [1, 0, 0, 1], [0, 0], [50.0, 0.0, 0.0, 50.0], ["0", "0", "", ""], PairPlacement.CORE, [], set()
)  # fmt: skip
def test_under_strict_no_packet_on_its_way_gets_another_tx_queue(
    comes: list[int],
    goes: list[int],
    pps: list[float],
    xps: list[str],
    placement: PairPlacement,
    stops: list[int],
    loose: set[int],
) -> None:
    """And what is done ends: with traffic as it is, the same is never written again and again."""
    busy = {("in", i, "out"): pps[i] for i in range(len(comes))}
    masks = {("out", t): xps[t] for t in range(len(goes))}
    rule = replace(GATEWAY, placement=placement)
    made = Machine({"in": comes, "out": goes}, busy, rule, masks)
    for channel in (each for each in loose if each < len(comes)):
        made.may_be_on("in", channel, "0-7")
    made.look(12)
    for channel in (each for each in stops if each < len(comes)):
        made.pps["in", channel, "out"] = 0.0
        made.look(6)
    assert made.changed_tx_queue == []
    made.look(12)
    wrote = len(made.wrote)
    made.look(12)
    assert len(made.wrote) == wrote


def test_channels_do_not_flee_for_ever_from_work_that_comes_along() -> None:
    """They bring packets for sockets, too, which count as work of others."""
    near = replace(GATEWAY, placement=PairPlacement.NODE, order=Mode.BOUNDED)
    made = Machine({"in": [0, 1], "out": [0, 1]}, BUSY, near)

    def moves(looks: int, *, along: bool) -> int:
        wrote = 0
        for _ in range(looks):
            busy = dict.fromkeys(range(4), 1) | {made.cpus("in")[0] if along else 0: 80}
            made.take(LoadRead({cpu: 10 + percent for cpu, percent in busy.items()}))
            before = made.cpus("in")
            made.look()
            wrote += made.cpus("in") != before
        return wrote

    assert 1 <= moves(60, along=True) <= 3
    moves(400, along=False)
    known = made.engine.memory.nics["in"]
    both_on_0 = tuple(replace(each, cpu=0) for each in known.view.queues)
    known.view = replace(known.view, queues=both_on_0)
    assert moves(4, along=False) == 1


# Where channels of interfaces that forward to each other are placed: examples and properties.

CPUS = {cpu.index: cpu for cpu in topology().cpus}
PLACING = [each for each in PairPlacement if each is not PairPlacement.LEAVE]
CORES = PairPlacement.CORE, PairPlacement.MODE_0


def problem(
    placement: PairPlacement,
    now: dict[str, list[int | None]],
    pps: dict[tuple[str, int, str], float],
    **more: object,
) -> ToPlace:
    """`now`: the CPUs of each interface's channels; `pps` of channel and egress."""
    made = ToPlace(
        placement=placement,
        channels={nic: len(cpus) for nic, cpus in now.items()},
        streams=[Stream(Channel(nic, i), out, each) for (nic, i, out), each in pps.items()],
        receives=frozenset(nic for nic, _, _ in pps),
        now={Channel(nic, i): cpu for nic, cpus in now.items() for i, cpu in enumerate(cpus)},
        fixed=frozenset(),
        cpus=CPUS,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def cpus(found: dict[Channel, int], nic: str) -> list[int]:
    return [cpu for channel, cpu in sorted(found.items()) if channel.nic == nic]


def package(cpu: int) -> int | None:
    return CPUS[cpu].package


def test_mode_1_receives_on_one_package_and_sends_on_the_other() -> None:
    pps = {("rx1", 0, "tx"): 1000.0, ("rx2", 0, "tx"): 1000.0}
    now: dict[str, list[int | None]] = {"rx1": [0], "rx2": [4], "tx": [0]}
    found = placed(problem(PairPlacement.MODE_I, now, pps))
    receiving = {package(found[Channel(nic, 0)]) for nic in ("rx1", "rx2")}
    assert len(receiving) == 1
    assert package(found[Channel("tx", 0)]) not in receiving
    assert found[Channel("rx1", 0)] != found[Channel("rx2", 0)]


def test_mode_2_sends_beside_the_busiest_that_receives() -> None:
    pps = {("rx1", 0, "tx"): 1000.0, ("rx2", 0, "tx"): 3000.0}
    now: dict[str, list[int | None]] = {"rx1": [0], "rx2": [1], "tx": [0]}
    found = placed(problem(PairPlacement.MODE_II, now, pps))
    beside = package(found[Channel("tx", 0)])
    assert package(found[Channel("rx2", 0)]) == beside
    assert package(found[Channel("rx1", 0)]) != beside


def test_without_packages_modes_part_the_cores() -> None:
    one = {i: replace(CPUS[i], smt=(i,), llc=(0, 1)) for i in (0, 1)}
    pps = {("rx1", 0, "tx"): 1000.0, ("rx2", 0, "tx"): 900.0}
    now: dict[str, list[int | None]] = {"rx1": [0], "rx2": [1], "tx": [1]}
    found = placed(problem(PairPlacement.MODE_I, now, pps, cpus=one))
    assert cpus(found, "rx1") == cpus(found, "rx2") != cpus(found, "tx")
    found = placed(problem(PairPlacement.MODE_II, now, pps, cpus=one))
    assert cpus(found, "rx1") != cpus(found, "rx2")
    assert cpus(found, "tx") == cpus(found, "rx1")


@st.composite
def problems(draw: st.DrawFn) -> ToPlace:
    names = draw(st.sampled_from([["a", "b"], ["a", "b", "c"]]))
    where = st.none() | st.integers(0, 7)
    now = {nic: draw(st.lists(where, min_size=1, max_size=3)) for nic in names}
    pps = {
        (nic, i, out): float(draw(st.integers(0, 10_000)))
        for nic in names
        for i in range(len(now[nic]))
        for out in names
        if nic != out and draw(st.booleans())
    }
    made = problem(draw(st.sampled_from(PLACING)), now, pps)
    fixed = frozenset(channel for channel in made.now if draw(st.integers(0, 4)) == 0)
    comes = draw(st.sets(st.sampled_from(names), min_size=1))
    most = draw(st.none() | st.integers(1, 20_000).map(float))
    taken = draw(st.dictionaries(st.integers(0, 7), st.integers(0, 9_000).map(float)))
    return replace(made, fixed=fixed, receives=frozenset(comes), most=most, taken=taken)


@given(problems())
def test_no_place_is_worse_than_the_present_one(made: ToPlace) -> None:
    before, after = cost(made.now, made), cost(placed(made), made)
    assert after <= before
    if before.overload == 0 and before.apart == 0:
        assert after.overload == 0
        assert after.distance <= before.distance


@given(problems())
def test_what_may_not_be_moved_stays_and_every_place_is_a_cpu(made: ToPlace) -> None:
    found = placed(made)
    for channel, cpu in made.now.items():
        if channel in made.fixed:
            assert found.get(channel) == cpu
    assert set(found.values()) <= {*CPUS, *made.now.values()}


@given(problems(), st.sampled_from(CORES))
def test_with_core_every_number_has_one_cpu(made: ToPlace, placement: PairPlacement) -> None:
    made = replace(made, placement=placement, fixed=frozenset())
    found = placed(made)
    fewest = min(made.channels.values())
    if made.total:
        for number in range(fewest):
            assert len({cpu for each, cpu in found.items() if each.queue % fewest == number}) == 1


@given(problems(), st.lists(st.integers(-2, 2), min_size=18, max_size=18))
def test_what_was_placed_stays_under_noise(made: ToPlace, noise: list[int]) -> None:
    if made.placement in (PairPlacement.MODE_I, PairPlacement.MODE_II) or made.total < 1000:
        return
    for _ in range(9):  # each search begins where the last one ended
        made = replace(made, now=placed(made))
    again = [
        each._replace(pps=each.pps * (1 + more / 200))
        for each, more in zip(made.streams, noise, strict=False)
    ]
    later = replace(made, streams=again)
    assert not clearly_better(cost(placed(later), later), cost(later.now, later))


def test_packets_count_for_the_channel_of_their_cpu() -> None:
    at = {"in": (0, 0, 2, None), "out": (4, 5, 6, 7)}
    nics = {}
    for name, cpus in at.items():
        queues = (replace(NIC.queues[i], cpu=cpu) for i, cpu in enumerate(cpus))
        nics[name] = replace(NIC, name=name, queues=tuple(queues))

    def row(cpu: int, pps: float, ingress: str = "in") -> Pair:
        return Pair(ingress, None, "out", 0, cpu, None, None, 0, pps, 0.0)

    found = streams([row(0, 100.0), row(2, 30.0), row(9, 7.0), row(1, 5.0, "br0")], nics)
    assert {each.ingress.queue: each.pps for each in found} == {0: 50.0, 1: 50.0, 2: 30.0, 3: 7.0}
