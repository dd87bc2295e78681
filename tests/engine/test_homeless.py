# SPDX-License-Identifier: GPL-2.0-or-later
"""Where a queue goes whose CPU went offline."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine.placement.queues import homeless
from atfnd.model import Queue, Topology
from tests.serve.published import topology

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


def test_a_crowd_is_spread() -> None:
    moves = homeless(QUEUES, without(0, 1, 2, 3))
    assert [cpu for _, cpu in moves] == [4, 5, 6, 7]


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
