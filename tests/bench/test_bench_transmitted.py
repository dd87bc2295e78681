# SPDX-License-Identifier: GPL-2.0-or-later
"""The rival that steers by transmitted packets does so, and `bench transmitted` counts it."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from atfnd.errors import OperatorError
from atfnd.kernel.system.netns import in_netns, path_of
from atfnd.model import Match, Protocol
from bench import transmitted
from bench.bed import Bed, lab_bed
from bench.sent import by_transmitted
from bench.tcp_reordering import TcpReordering
from bench.traffic import messages
from bench.transmitted import Run
from tests.labs import key_of
from tests.wait import until

__all__: list[str] = []

pytestmark = pytest.mark.usefixtures("own_affinity")


def test_a_packet_leads_what_its_flow_receives_to_the_queue_of_the_cpu_that_sent_it() -> None:
    with lab_bed() as bed, bed.open() as nic:
        host_path, peer_path = path_of(bed.host or ""), path_of(bed.peer)
        listener = in_netns(host_path, partial(socket.create_server, (bed.address, 0)))
        peer = in_netns(peer_path, partial(socket.create_connection, listener.getsockname()))
        host = listener.accept()[0]
        with listener, peer, host:
            match = Match.of(key_of(host, Protocol.TCP))

            def comes_to(cpu: int) -> bool:
                [queue] = [each.queue for each in nic.filters() if each.match == match]
                return queue is not None and bed.cpus[queue] == cpu

            with by_transmitted(bed) as totals:
                for cpu in (*bed.cpus, *bed.cpus):
                    os.sched_setaffinity(0, {cpu})
                    host.sendall(b"x")
                    until(partial(comes_to, cpu), f"it comes to CPU {cpu}")
                assert totals().packets > totals().moves >= len(bed.cpus)
            assert nic.filters() == []
            assert peer.recv(10)


def test_it_wants_a_lab_with_no_other_filters() -> None:
    other = Bed("eth0", "eth0", None, "", "", 1, (0,))
    with pytest.raises(OperatorError, match="no lab"), by_transmitted(other):
        raise AssertionError


RUN = Run("free", 40, "atfnd", 0.75, 10, 5.0, 1000, 0, 0)


def test_the_report_has_shares_of_segments_and_any_late_one_of_ours_misses() -> None:
    rival = RUN._replace(contender="transmitted", moves=500, out_of_order=10)
    good = transmitted.report([RUN, rival])
    values = {(row.what, row.contender): row.estimate.value for row in good.rows}
    assert values["free, 2n = 40, filters written", "transmitted"] == 100
    assert values["free, 2n = 40, segments out of order", "transmitted"] == 0.01
    assert values["free, 2n = 40, read locally", "atfnd"] == 0.75
    assert all(target.met for target in good.targets)
    assert not all(each.met for each in transmitted.report([RUN._replace(out_of_order=1)]).targets)


def test_each_contender_is_measured(tmp_path: Path) -> None:
    with (
        lab_bed() as bed,
        bed.meter() as meter,
        closing(TcpReordering(path_of(bed.host or ""))) as order,
    ):
        program = messages.built(tmp_path)
        for name in transmitted.RIVALS:
            found = transmitted.measured(program, bed, meter, order, "migrating", 8, name)
            assert found.segments > 0
            assert (found.moves > 0) == (name != "rss")
            assert bed.ring_drops() is not None
