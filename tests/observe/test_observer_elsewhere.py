# SPDX-License-Identifier: GPL-2.0-or-later
"""What the BPF observer tells of sockets whose packets may belong on another CPU than their
application's. All packets arrive on RIGHT, and what is not right is reported again with each
call."""

from __future__ import annotations

import time

import pytest

from atfnd.model import SocketSeen
from atfnd.observe.sockets.bpf import BpfObserver
from tests.labs import Lab
from tests.observe.observing import (
    RIGHT,
    WRONG,
    Pair,
    Watch,
    cookie,
    directed,
    lockstep,
    napis,
    on_cpu,
    wanders_to,
)

__all__: list[str] = []

AT_ONCE = 0  # between two reports of what is not right

pytestmark = pytest.mark.usefixtures("own_affinity")


def reported(observer: BpfObserver) -> list[int]:
    """The application's CPU in each report since the last look."""
    return [each.app_cpu for each in observer.drain() if isinstance(each, SocketSeen)]


def expect(observer: BpfObserver, pair: Pair, cpu: int) -> None:
    """The answer to the last report."""
    observer.expect(cookie(pair[1]), cpu, time.monotonic_ns())


def test_one_whose_packets_belong_elsewhere_is_reported_until_they_come_there(
    shared_lab: Lab, watch: Watch
) -> None:
    observer = watch(shared_lab, report_again_ns=AT_ONCE, elsewhere=True)
    pair = directed(shared_lab, shared_lab.tcp_pair)
    on_cpu(RIGHT)
    lockstep(*pair, times=100)
    assert reported(observer) == [RIGHT]  # once, where they arrive
    expect(observer, pair, WRONG)
    lockstep(*pair, times=10)
    assert reported(observer) == [RIGHT] * 10


def test_one_that_is_away_on_purpose_is_reported_no_more_from_that_cpu(
    shared_lab: Lab, watch: Watch
) -> None:
    observer = watch(shared_lab, report_again_ns=AT_ONCE, elsewhere=True)
    pair = directed(shared_lab, shared_lab.tcp_pair)
    on_cpu(WRONG)
    lockstep(*pair, times=10)
    assert reported(observer) == [WRONG] * 10  # nobody has said that this is right
    expect(observer, pair, RIGHT)
    lockstep(*pair, times=100)
    assert reported(observer) == []
    for cpu in (RIGHT, WRONG):
        on_cpu(cpu)
        lockstep(*pair)
        assert reported(observer) == [cpu]
    lockstep(*pair)
    assert reported(observer) == [WRONG]  # until it is said anew


def test_a_late_answer_does_not_hide_the_answer_to_the_last_report(
    shared_lab: Lab, watch: Watch
) -> None:
    """User space is behind: it answers the first report when the second is on its way already."""
    observer = watch(shared_lab, report_again_ns=AT_ONCE, elsewhere=True)
    pair = directed(shared_lab, shared_lab.tcp_pair)
    for cpu in (WRONG, RIGHT):
        on_cpu(cpu)
        lockstep(*pair)
    first, second = (each for each in observer.drain() if isinstance(each, SocketSeen))
    assert (first.app_cpu, second.app_cpu) == (WRONG, RIGHT)
    observer.expect(first.cookie, RIGHT, first.at_ns)  # it is right there for WRONG
    lockstep(*pair, times=10)
    assert reported(observer) == []
    observer.expect(second.cookie, WRONG, second.at_ns)
    lockstep(*pair, times=10)
    assert reported(observer) == [RIGHT] * 10


def test_an_adopted_socket_is_reported_where_its_packets_arrive_until_it_is_said_to_belong_there(
    shared_lab: Lab, watch: Watch
) -> None:
    """Of a filter that an earlier run left nobody knows yet what its policy wants."""
    observer = watch(shared_lab, report_again_ns=AT_ONCE, elsewhere=True)
    pair = directed(shared_lab, shared_lab.tcp_pair)
    observer.adopt({cookie(pair[1]): RIGHT})
    on_cpu(RIGHT)
    lockstep(*pair)
    assert reported(observer) == [RIGHT]
    expect(observer, pair, RIGHT)
    lockstep(*pair, times=10)
    assert reported(observer) == []


def test_what_rfs_hands_to_a_pinned_thread_alone_came_to_the_wrong_queue(
    shared_lab: Lab, watch: Watch
) -> None:
    """All is processed where it is read; the queues are said to be polled on WRONG."""
    observer, nic = watch(shared_lab, report_again_ns=AT_ONCE), shared_lab.nic
    pair = directed(shared_lab, shared_lab.tcp_pair)
    watched = napis(shared_lab)

    def arrivals() -> set[int | None]:
        """The CPU of the packets in each report of two uses."""
        lockstep(*pair, times=2)
        return {each.rx_cpu for each in observer.drain() if isinstance(each, SocketSeen)}

    observer.watch([nic.netns], dict(list(watched.items())[1:]))
    observer.hands_on(nic.name, dict.fromkeys(watched, WRONG))
    observer.watch([nic.netns], watched)  # it holds for queues that are watched later
    wanders_to(RIGHT)
    assert arrivals() <= {RIGHT}  # of a moment elsewhere, at most
    on_cpu(RIGHT)
    assert arrivals() == {WRONG}
    observer.hands_on(nic.name, dict.fromkeys(watched, RIGHT))
    assert arrivals() == set()
    observer.hands_on(nic.name, dict.fromkeys(watched, WRONG))
    assert arrivals() == {WRONG}
    observer.watch([], {})  # it ends with them
    observer.watch([nic.netns], watched)
    assert arrivals() == set()
