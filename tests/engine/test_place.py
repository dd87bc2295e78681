# SPDX-License-Identifier: GPL-2.0-or-later
"""Which CPU and queue a placement comes to, on machines of any shape, and what it falls back to;
and where a queue goes whose CPU went offline."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine.placement.candidates import Step, fits, steps
from atfnd.engine.placement.place import Spot, place
from atfnd.engine.placement.queues import homeless
from atfnd.model import Cpu, Placement, PlacementKind, Queue, Topology
from tests.serve.published import topology

LLC = Placement(PlacementKind.LLC)
LLC_ONLY = Placement(PlacementKind.LLC, avoid_smt=True)
NODE = Placement(PlacementKind.NODE)
SMT = Placement(PlacementKind.SMT)

Machine = Mapping[int, Cpu]


def machine(nodes: int, cores: int, threads: int, **out: frozenset[int]) -> dict[int, Cpu]:
    """Nodes of one cache each; CPU n's sibling is n + 1. `offline` and `isolated` name CPUs."""
    offline, isolated = out.get("offline", frozenset()), out.get("isolated", frozenset())
    cpus = {}
    for index in range(nodes * cores * threads):
        core, node = index // threads, index // (cores * threads)
        smt = tuple(range(core * threads, core * threads + threads))
        llc = tuple(range(node * cores * threads, (node + 1) * cores * threads))
        online = index not in offline
        cpus[index] = Cpu(index, online, node, node, core, smt, llc, index in isolated)
    return cpus


TWO_BY_TWO = machine(nodes=2, cores=2, threads=2)  # 0-3 and 4-7; siblings 0,1 2,3 4,5 6,7


def queue(index: int, cpu: int | None) -> Queue:
    return Queue(index, 100 + index, None, cpu, True, None)


def on(*cpus: int | None) -> list[Queue]:
    """A queue on each of these CPUs, in order."""
    return [queue(index, cpu) for index, cpu in enumerate(cpus)]


def placed(
    placement: Placement, queues: list[Queue], cpus: Machine = TWO_BY_TWO, app_cpu: int = 0,
    **more: frozenset[int],
) -> Spot:  # fmt: skip
    tried = steps(app_cpu, placement, cpus, **more)
    return place(app_cpu, placement, tried, queues, lambda queue: (queue.index,))


def test_each_placement_where_every_cpu_has_a_queue() -> None:
    every = on(*range(8))
    assert placed(Placement.CORE, every).cpu == 0
    assert placed(SMT, every).cpu == 1
    assert placed(LLC, every).cpu == 2  # a core of its own before the sibling
    assert placed(LLC_ONLY, every).cpu == 2
    assert placed(NODE, every).cpu == 2
    assert placed(Placement(PlacementKind.CPUS, frozenset({5, 6})), every).cpu == 5
    assert placed(Placement(PlacementKind.DEDICATED, frozenset({7})), every).cpu == 7
    assert placed(Placement.LEAVE, every).queue is None


def test_llc_takes_the_sibling_unless_it_is_told_to_avoid_it() -> None:
    assert placed(LLC, on(0, 1)).cpu == 1
    assert placed(LLC, on(0, 1)).fell_back is None
    spot = placed(LLC_ONLY, on(0, 1))
    assert spot.cpu == 0
    assert str(spot.fell_back) == (
        "near llc, avoid smt: no queue is delivered on another core under its last-level cache; "
        "on its own CPU instead"
    )
    assert "queue 0 is delivered on CPU 0" in str(spot.why)


def test_llc_falls_back_to_its_node_then_to_its_core_then_to_rss() -> None:
    cpus = {cpu.index: cpu for cpu in machine(1, 4, 1).values()}
    split = {  # two caches on one node: 0,1 and 2,3
        index: Cpu(index, True, 0, 0, index, (index,), (index & 2, (index & 2) + 1))
        for index in cpus
    }
    for queues, cpu, instead in (
        (on(0, 2), 2, "on another core of its NUMA node instead"),
        (on(0), 0, "on its own CPU instead"),
        (on(None), None, "left to RSS"),
    ):
        spot = placed(LLC, queues, split)
        assert spot.cpu == cpu
        assert spot.fell_back is not None
        assert str(spot.fell_back).endswith(instead)


def some(n: int) -> st.SearchStrategy[frozenset[int]]:
    return st.frozensets(st.integers(0, n - 1), max_size=n)


@st.composite
def worlds(
    draw: st.DrawFn,
) -> tuple[Machine, int, Placement, list[Queue], dict[str, frozenset[int]]]:
    shape = draw(st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 2)))
    count = shape[0] * shape[1] * shape[2]
    cpus = machine(*shape, offline=draw(some(count)), isolated=draw(some(count)))
    kind = draw(st.sampled_from([k for k in PlacementKind if k is not PlacementKind.AUTO]))
    named = draw(some(count)) if kind in (PlacementKind.CPUS, PlacementKind.DEDICATED) else ()
    avoid = kind in (PlacementKind.LLC, PlacementKind.NODE) and draw(st.booleans())
    placement = Placement(kind, frozenset(named), avoid)
    where = st.one_of(st.none(), st.integers(0, count - 1))
    queues = on(*draw(st.lists(where, min_size=1, max_size=6)))
    more = {"dedicated": placement.cpus if kind is PlacementKind.DEDICATED else draw(some(count))}
    if draw(st.booleans()):
        more["allowed"] = draw(some(count))
    return cpus, draw(st.integers(0, count - 1)), placement, queues, more


@given(worlds(), st.one_of(st.none(), st.integers(0, 5)), st.lists(st.integers(0, 9), min_size=6))
def test_what_holds_on_every_machine(
    world: tuple[Machine, int, Placement, list[Queue], dict[str, frozenset[int]]],
    current: int | None,
    load: list[int],
) -> None:
    cpus, app_cpu, placement, queues, more = world
    tried: list[Step] = steps(app_cpu, placement, cpus, **more)

    def decide(order: list[Queue]) -> Spot:
        rank = lambda queue: (load[queue.index], queue.index)  # noqa: E731
        return place(app_cpu, placement, tried, order, rank, current)

    spot = decide(queues)
    assert spot == decide(queues[::-1])  # whatever the order they are named in
    own = tried[0] if tried else Step(placement.kind, ())
    reachable = [each for each in queues if fits(own, each.cpu)]
    assert (spot.fell_back is None) == (spot.queue in reachable)  # a fallback is always said
    assert spot.fell_back is None or spot.fell_back in spot.why.about
    assert not reachable or spot.queue in reachable  # and none is taken without need
    if spot.queue is None:
        assert not any(fits(step, each.cpu) for step in tried for each in queues)
        return
    cpu = spot.cpu
    assert cpu is not None
    assert cpus[cpu].online
    if placement.kind is not PlacementKind.DEDICATED:
        assert cpu not in more["dedicated"]
    if placement.kind in (PlacementKind.CPUS, PlacementKind.DEDICATED):
        assert cpu in placement.cpus
    elif cpu != app_cpu:
        assert not cpus[cpu].isolated
        assert cpu in more.get("allowed", {cpu})
        assert cpus[cpu].node == cpus[app_cpu].node
        assert not (placement.avoid_smt and cpu in cpus[app_cpu].smt)
    if any(queue.index == current for queue in reachable):
        assert spot.queue.index == current


# Where a queue goes whose CPU went offline.

QUEUES = tuple(Queue(n, 100 + n, 40 + n, n, False, None) for n in range(8))


def without(*offline: int, isolated: Collection[int] = ()) -> Topology:
    """Two nodes of two cores of two threads (see `tests.serve.published.topology`)."""
    whole = topology()
    return replace(
        whole,
        cpus=tuple(
            replace(cpu, online=cpu.index not in offline, isolated=cpu.index in isolated)
            for cpu in whole.cpus
        ),
    )


@pytest.mark.parametrize(
    ("offline", "new_cpu"),
    [
        ((3,), 2),  # its SMT sibling
        ((2, 3), 0),  # under its cache
        ((0, 1, 2, 3), 4),  # the other node
    ],
)
def test_the_nearest_cpu(offline: tuple[int, ...], new_cpu: int) -> None:
    assert homeless(QUEUES[3:4], without(*offline)) == [(QUEUES[3], new_cpu)]


def test_isolated_cpus_are_left_in_peace_while_there_are_others() -> None:
    assert homeless(QUEUES[3:4], without(3, isolated=(2,))) == [(QUEUES[3], 0)]
    assert homeless(QUEUES[3:4], without(3, isolated=(2, 3))) == [(QUEUES[3], 2)]
    assert homeless(QUEUES[3:4], without(3, isolated=range(8))) == [(QUEUES[3], 2)]
    alone = without(3, isolated=(0, 1, 2, 4, 5, 6, 7))
    assert homeless(QUEUES[3:4], alone) == [(QUEUES[3], 2)]


def test_a_dedicated_cpu_takes_in_its_own_and_others_only_if_there_is_no_other() -> None:
    queue = QUEUES[3:4]
    assert homeless(queue, without(3), frozenset({2})) == [(QUEUES[3], 0)]
    assert homeless(queue, without(3), frozenset({2, 3})) == [(QUEUES[3], 2)]
    assert homeless(queue, without(3, isolated=(3,)), frozenset({2})) == [(QUEUES[3], 0)]
    rest_isolated = without(3, isolated=(0, 1, 4, 5, 6, 7))
    assert homeless(queue, rest_isolated, frozenset({2})) == [(QUEUES[3], 0)]
    assert homeless(queue, without(3), frozenset(range(8)) - {3}) == [(QUEUES[3], 2)]


def test_the_node_at_the_shorter_distance() -> None:
    whole = without(0, 1)
    cpus = [replace(cpu, node=cpu.index // 2, smt=(), llc=()) for cpu in whole.cpus]
    nodes = tuple(
        replace(whole.nodes[0], index=n, distances={0: distance, n: 10})
        for n, distance in enumerate((10, 31, 41, 21))
    )
    (move,) = homeless(QUEUES[:1], Topology(tuple(cpus), nodes))
    assert move[1] == 6


@given(
    st.sets(st.integers(0, 7), max_size=7),
    st.sets(st.integers(0, 7)),
    st.lists(st.none() | st.integers(0, 7), max_size=12),
    st.frozensets(st.integers(0, 7)),
)
def test_a_queue_is_never_left_without_a_live_cpu(
    offline: set[int], isolated: set[int], cpus: list[int | None], dedicated: frozenset[int]
) -> None:
    queues = [Queue(n, None, None, cpu, None, None) for n, cpu in enumerate(cpus)]
    moves = dict(homeless(queues, without(*offline, isolated=isolated), dedicated))
    for queue in queues:
        assert (queue in moves) == (queue.cpu in offline)
        assert moves.get(queue) not in offline
