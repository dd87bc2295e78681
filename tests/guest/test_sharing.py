# SPDX-License-Identifier: GPL-2.0-or-later
"""Filters for many flows on a NIC with a true filter table: what is probed, and a daemon that has
few."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atfnd.model import Match
from tests.bed import a_bed
from tests.daemon.test_sharing import FLOWS, OURS, V4, Numbered
from tests.daemons import policy
from tests.guest.filters import listed
from tests.guest.simlab import NAME, a_simlab
from tests.labs import HOST, PEER, packed
from tests.wait import until

__all__: list[str] = []

QUEUES = 4
LONG_S = 100.0  # a rule of several flows that was refused is tried again after 1, 2, 4 s
SELDOM_S = 0.5  # what flows here keeps the guest's two real CPUs from the hold


@pytest.mark.parametrize(("parameters", "shapes"), [({}, 28), ({"v6": 0}, 14), ({"masks": 0}, 0)])
def test_what_it_takes_is_probed(parameters: dict[str, int], shapes: int) -> None:
    with a_simlab(table=16, location="explicit", **parameters) as lab:
        assert lab.nic.caps().shapes == frozenset()
        assert len(lab.nic.probe().shapes) == shapes
        assert listed() == {}


def test_flows_of_one_remote_share_a_filter(tmp_path: Path) -> None:
    """Every ring of RSS is to drain under one hold, on three other CPUs."""
    with a_simlab(queues=QUEUES, table=16, location="explicit", drvname="ixgbe") as lab:
        Path(f"/sys/class/net/{NAME}/threaded").write_text("1")
        config = policy(order="strict", hold_down="50ms") + OURS
        with a_bed(lab, tmp_path, "bpf", config) as bed:
            flows = Numbered(lab, 6000)
            bed.start()
            os.sched_setaffinity(0, {2})
            match = Match(4, 17, packed(PEER[V4]), 32, packed(HOST[V4]), 32, 6000, None)

            def shared() -> bool:
                flows.pump()
                return [rule.match for rule in lab.nic.filters()] == [match]

            until(shared, f"{FLOWS} flows come by one rule", LONG_S, SELDOM_S)
            [rule] = lab.nic.filters()
            queue = lab.nic.queues()[rule.queue or 0]
            assert queue.cpu == 2
            before = flows.sent
            until(lambda: flows.pump() > before + 50, "they go on")
            assert flows.late == []
            for receiver in flows.receivers:
                assert lab.queue_of(receiver) == rule.queue
            bed.daemon.end()
