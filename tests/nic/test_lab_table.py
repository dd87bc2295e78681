# SPDX-License-Identifier: GPL-2.0-or-later
"""The lab NIC's filter table: bounded and consistent; and its queues, whose NAPI threads are where
packets are delivered."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from atfnd.model import Filter, Match
from atfnd.nic.lab.nic import LabNic
from tests.labs import Lab, a_lab

CPUS = sorted(os.sched_getaffinity(0))
ANY = Match(4, None, None, 0, None, 0, None, None)


def exact(number: int) -> Match:
    """One of 65535 exact TCP filters."""
    return Match(4, 6, bytes([10, 8, 0, 1]), 32, bytes([10, 9, 0, 1]), 32, number + 1, 80)


def refusal(call: Callable[[], object]) -> str:
    """The name of the errno that `call` is refused with."""
    with pytest.raises(OSError) as raised:  # noqa: PT011  the errno is what is asserted
        call()
    return errno.errorcode[raised.value.errno or 0]


def fill(nic: LabNic) -> list[int]:
    """Insert until the table is full; the locations used."""
    free = (nic.caps().filter_slots or 0) - len(nic.filters())
    used = [nic.insert(exact(10000 + number), 0) for number in range(free)]
    assert refusal(lambda: nic.insert(exact(9999), 0)) == "ENOSPC"
    return used


def test_locations_are_taken_from_the_highest_down(lab: Lab) -> None:
    nic = lab.nic
    assert [nic.insert(exact(i), 0) for i in range(3)] == [3839, 3838, 3837]
    nic.delete(3838)
    assert nic.insert(exact(7), 1) == 3838
    assert nic.insert(exact(8), 2, 5) == 5
    port = ANY._replace(protocol=6, dst_port=80)
    assert nic.insert(port, 3) == 4095  # at the top, where every other wins over it
    assert [(rule.location, rule.queue) for rule in nic.filters()] == [
        (5, 2),
        (3837, 0),
        (3838, 1),
        (3839, 0),
        (4095, 3),
    ]


def test_full_is_full() -> None:
    with a_lab(queues=2, slots=10) as lab:
        assert fill(lab.nic) == [*range(8, -1, -1), 9]
        before = lab.nic.filters()
        assert refusal(lambda: lab.nic.insert(ANY, 0)) == "ENOSPC"
        assert lab.nic.filters() == before
        assert lab.nic.insert(ANY, 1, 4) == 4  # a used location is overwritten, full or not
        assert lab.nic.filters()[4] == Filter(4, ANY, 1, 0)
        lab.nic.delete(7)
        assert lab.nic.insert(exact(1), 0) == 7


def test_one_match_has_one_location(lab: Lab) -> None:
    assert lab.nic.insert(exact(1), 0, 100) == 100
    assert refusal(lambda: lab.nic.insert(exact(1), 1, 101)) == "EEXIST"
    assert refusal(lambda: lab.nic.insert(exact(1), 1)) == "EEXIST"
    assert lab.nic.filters() == [Filter(100, exact(1), 0, 0)]


@pytest.mark.parametrize("location", [-1, 0, 4096, 1 << 40])
def test_deleting_what_is_not_there(lab: Lab, location: int) -> None:
    assert refusal(lambda: lab.nic.delete(location)) == "ENOENT"


@pytest.mark.parametrize(
    ("match", "queue", "location"),
    [
        (exact(1), 4, None),
        (exact(1), 0, 4096),
        (ANY._replace(family=5), 0, None),
        (ANY._replace(family=6, src=bytes(4), src_prefix=32), 0, None),
        (ANY._replace(src=bytes([10, 0, 0, 1]), src_prefix=8), 0, None),
        (ANY._replace(dst=bytes(4), dst_prefix=33), 0, None),
        (ANY._replace(protocol=256), 0, None),
        (ANY._replace(protocol=6, src_port=65536), 0, None),
        (ANY._replace(protocol=1, dst_port=80), 0, None),
    ],
)
def test_bad_input_changes_nothing(
    lab: Lab, match: Match, queue: int, location: int | None
) -> None:
    assert refusal(lambda: lab.nic.insert(match, queue, location)) == "EINVAL"
    assert lab.nic.filters() == []


@pytest.mark.parametrize("number", [2, 3, 64])
def test_each_queue_has_a_thread_as_prompt_as_an_interrupt(number: int) -> None:
    with a_lab(queues=number) as lab:
        queues = lab.nic.queues()
        assert [queue.index for queue in queues] == list(range(number))
        assert len({queue.pid for queue in queues}) == number
        assert [queue.napi_id for queue in queues] == sorted(q.napi_id or 0 for q in queues)
        assert [queue.cpu for queue in queues] == [CPUS[i % len(CPUS)] for i in range(number)]
        assert all(queue.threaded and queue.irq is None for queue in queues)
        assert all(os.sched_getscheduler(queue.pid or 0) == os.SCHED_FIFO for queue in queues)


def test_impossible_queue_or_cpu(lab: Lab) -> None:
    before = lab.nic.queues()
    for queue, cpu in ((4, 0), (-1, 0), (0, 4095)):
        with pytest.raises(OSError, match=r"Invalid argument|no queue"):
            lab.nic.set_queue_cpu(queue, cpu)
    assert lab.nic.queues() == before
    os.sched_setaffinity(before[1].pid or 0, CPUS)  # on several CPUs it has none
    assert lab.nic.queues()[1].cpu == (CPUS[0] if len(CPUS) == 1 else None)
