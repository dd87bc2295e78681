# SPDX-License-Identifier: GPL-2.0-or-later
"""What the BPF observer tells of sockets on a queue whose packets RFS hands to the thread's CPU.
All are processed on RIGHT, where they are read; the queue is said to be polled on WRONG."""

from __future__ import annotations

import pytest

from atfnd.model import SocketSeen
from atfnd.observe.sockets.bpf import BpfObserver
from tests.labs import Lab
from tests.observe.observing import (
    RIGHT,
    WRONG,
    Watch,
    directed,
    lockstep,
    napis,
    on_cpu,
    wanders_to,
)

__all__: list[str] = []

pytestmark = pytest.mark.usefixtures("own_affinity")


def arrivals(observer: BpfObserver) -> list[tuple[int, int | None]]:
    """The application's CPU, and that of its packets, in each report since the last look."""
    seen = [each for each in observer.drain() if isinstance(each, SocketSeen)]
    return [(each.app_cpu, each.rx_cpu) for each in seen]


def polled_on(lab: Lab, cpu: int) -> dict[int, int]:
    return dict.fromkeys(napis(lab), cpu)


def test_what_rfs_hands_to_a_pinned_thread_came_to_the_wrong_queue(
    shared_lab: Lab, watch: Watch
) -> None:
    observer, nic = watch(shared_lab), shared_lab.nic.name
    pair = directed(shared_lab, shared_lab.tcp_pair)
    on_cpu(RIGHT)
    lockstep(*pair, times=10)
    assert arrivals(observer) == []
    observer.hands_on(nic, polled_on(shared_lab, WRONG))
    lockstep(*pair, times=10)
    assert arrivals(observer) == [(RIGHT, WRONG)]


def test_one_that_was_reported_is_right_when_its_queue_is_polled_there(
    shared_lab: Lab, watch: Watch
) -> None:
    observer, nic = watch(shared_lab, report_again_ns=0), shared_lab.nic.name
    pair = directed(shared_lab, shared_lab.tcp_pair)
    observer.hands_on(nic, polled_on(shared_lab, WRONG))
    on_cpu(RIGHT)
    lockstep(*pair, times=3)
    assert arrivals(observer) == [(RIGHT, WRONG)] * 3
    observer.hands_on(nic, polled_on(shared_lab, RIGHT))
    lockstep(*pair, times=10)
    assert arrivals(observer) == []


def test_what_rfs_hands_to_any_other_thread_arrives_right(shared_lab: Lab, watch: Watch) -> None:
    observer, nic = watch(shared_lab), shared_lab.nic.name
    pair = directed(shared_lab, shared_lab.tcp_pair)
    wanders_to(RIGHT)
    lockstep(*pair)
    observer.drain()
    observer.hands_on(nic, polled_on(shared_lab, WRONG))
    wanders_to(RIGHT)
    lockstep(*pair, times=3)
    assert {rx for _, rx in arrivals(observer)} <= {RIGHT}  # of a moment elsewhere, at most


def test_it_holds_for_queues_that_are_watched_later_and_ends_with_them(
    shared_lab: Lab, watch: Watch
) -> None:
    observer, nic = watch(shared_lab, report_again_ns=0), shared_lab.nic.name
    pair = directed(shared_lab, shared_lab.tcp_pair)
    watched = napis(shared_lab)
    observer.watch([shared_lab.nic.netns], dict(list(watched.items())[1:]))
    observer.hands_on(nic, polled_on(shared_lab, WRONG))
    observer.watch([shared_lab.nic.netns], watched)
    on_cpu(RIGHT)
    lockstep(*pair)
    assert arrivals(observer) == [(RIGHT, WRONG)]
    observer.watch([], {})
    observer.watch([shared_lab.nic.netns], watched)
    lockstep(*pair)
    assert arrivals(observer) == []
