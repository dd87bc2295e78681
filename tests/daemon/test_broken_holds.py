# SPDX-License-Identifier: GPL-2.0-or-later
"""A hold breaks, or the NIC is reset, in the middle of a move: it ends honestly, traffic flows on
within a second, and nothing stays quiesced."""

from __future__ import annotations

import signal
import time
from functools import partial
from pathlib import Path

import pytest

from atfnd.move.timer import Times
from tests.daemon.failing import Traffic, moves, stopped
from tests.daemon.faulty import spinners
from tests.wait import until

HOUR_NS = 3600 * 10**9


@pytest.mark.parametrize("state", ["hold after hold", "settle before drain_evidence"])
def test_the_spinner_killed(traffic: Traffic, tmp_path: Path, state: str) -> None:
    seats = traffic.seats()
    with moves(traffic, tmp_path, "strict", f"kill_spinner {state}") as moving:
        moving.killed()
        traffic.flows()
    assert traffic.seats() == seats


HELD = [
    ("hold after hold", "deferred: a hold ended before the write"),
    ("settle before drain_evidence", "unproven: "),
]


@pytest.mark.parametrize(("state", "ended"), HELD)
def test_the_spinner_robbed_of_its_cpu(
    traffic: Traffic, tmp_path: Path, state: str, ended: str
) -> None:
    """And not until its limit: what is quiesced is polled, though it still thinks that it holds."""
    with moves(traffic, tmp_path, "strict", f"demote {state}", HOUR_NS) as moving:
        moving.faulted()
        assert moving.says().startswith(ended)
        traffic.flows()


@pytest.mark.parametrize(("state", "ended"), HELD)
def test_stopped_while_it_holds(traffic: Traffic, tmp_path: Path, state: str, ended: str) -> None:
    """SIGSTOP: nobody ends the hold, and it ends nevertheless."""
    with moves(traffic, tmp_path, "strict", f"stop {state}") as moving:
        moving.faulted()
        until(partial(stopped, moving.process.pid), "it is stopped")
        traffic.flows()
        over_ns = time.monotonic_ns() + Times().hold_max_ns
        until(lambda: time.monotonic_ns() > over_ns, "its limit is over")
        moving.process.send_signal(signal.SIGCONT)
        assert moving.says().startswith(ended)
        assert moving.says()  # and moves go on
        traffic.flows()


@pytest.mark.parametrize(
    ("scene", "state", "ended"),
    [
        ("strict", "hold before hold", {"deferred"}),
        ("strict", "hold after hold", {"deferred"}),  # nothing was written
        ("strict", "settle before drain_evidence", {"resync"}),
        ("strict", "verify before evidence", {"resync", "proven"}),  # it may be there already
        ("bounded", "arm-gap before evidence", {"resync"}),
    ],
)
def test_the_nic_is_reset(
    traffic: Traffic, tmp_path: Path, scene: str, state: str, ended: set[str]
) -> None:
    with moves(traffic, tmp_path, scene, f"flap {state}") as moving:
        moving.faulted()
        traffic.flows()
        assert moving.says().partition(":")[0] in ended
        traffic.flows()
        assert not spinners(moving.process.pid)


@pytest.mark.parametrize("state", ["settle before drain_evidence", "verify before evidence"])
def test_the_filter_deleted_by_another_program(
    traffic: Traffic, tmp_path: Path, state: str
) -> None:
    """What RSS then delivers too early is no fault of the move."""
    with moves(traffic, tmp_path, "strict", f"delete {state}") as moving:
        moving.faulted()
        assert moving.says().partition(":")[0] == "resync"
        traffic.flows()
