# SPDX-License-Identifier: GPL-2.0-or-later
"""Where channels of interfaces that forward to each other are placed: examples and properties."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine.forwarding.matrix import Channel, Stream, streams
from atfnd.engine.forwarding.place import ToPlace, clearly_better, cost, placed
from atfnd.model import Pair, PairPlacement
from tests.diagnose.machines import topology
from tests.values import NIC

__all__: list[str] = []

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


def test_fewer_channels_on_one_side_are_shared() -> None:
    pps = {("in", i, "out"): 1000.0 for i in range(4)}
    found = placed(problem(PairPlacement.CORE, {"in": [0, 1, 2, 3], "out": [4, 5]}, pps))
    one, other = cpus(found, "out")
    assert cpus(found, "in") == [one, other, one, other]
    assert one != other


def test_the_cache_is_kept_where_a_cpu_has_no_room_for_all() -> None:
    pps = {("in", 0, "out"): 1000.0, ("in", 1, "out"): 1000.0}
    far = problem(PairPlacement.LLC, {"in": [0, 1], "out": [4, 5]}, pps, most=1100.0)
    found = placed(far)
    after = cost(found, far)
    assert after.apart == after.overload == 0
    assert len({cpu // 4 for cpu in found.values()}) <= 2
    for i in (0, 1):
        near = {cpu // 4 for cpu in cpus(found, "out")}
        assert cpus(found, "in")[i] // 4 in near


def test_what_others_do_on_a_cpu_leaves_less_room() -> None:
    pps = {("in", 0, "out"): 1000.0}
    busy = {cpu: 950.0 for cpu in CPUS if cpu != 6}
    now: dict[str, list[int | None]] = {"in": [0], "out": [0]}
    found = placed(problem(PairPlacement.CORE, now, pps, most=1300.0, taken=busy))
    assert set(found.values()) == {6}


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
