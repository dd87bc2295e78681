# SPDX-License-Identifier: GPL-2.0-or-later
"""A daemon that did not get to drain the ring in time: it says so, and looks at every socket."""

from __future__ import annotations

import signal
import socket
import threading
from pathlib import Path

import pytest

from atfnd.bpf.layout import layout
from tests.bed import a_bed
from tests.daemons import policy
from tests.labs import HOST, PEER, Lab
from tests.observe.observing import RIGHT, WRONG, Pair, direct, directed, lockstep, on_cpu
from tests.wait import until

DATAGRAM, STREAMS, PORT = 300, 20, 41000
RING_BYTES = 4 << 20  # observer_state.bpf.h
MORE_THAN_FIT = RING_BYTES // layout("observer", "observer_record").codec.size


def datagram_sockets(lab: Lab) -> list[socket.socket]:
    """Connected, and known by the kernel to receive through the lab's NIC."""
    direct(lab, PORT)
    peer = lab.open("peer", socket.AF_INET, socket.SOCK_DGRAM)
    peer.bind((PEER[socket.AF_INET], PORT))
    made = []
    for _ in range(DATAGRAM):
        receiver = lab.open("host", socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind((HOST[socket.AF_INET], 0))
        receiver.connect(peer.getsockname())
        direct(lab, receiver.getsockname()[1], protocols=(socket.IPPROTO_UDP,))
        peer.sendto(b"x", receiver.getsockname())
        receiver.recv(1)
        made.append(receiver)
    return made


def used_by_a_thread(receivers: list[socket.socket], cpu: int) -> None:
    """By a new one, pinned: all are reported. Of the last one, a report would stand for all."""

    def use() -> None:
        on_cpu(cpu)
        for receiver in receivers:
            receiver.send(b"x")

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()


@pytest.mark.usefixtures("own_affinity")
def test_lost_events_lead_to_a_look_at_every_socket(lab: Lab, tmp_path: Path) -> None:
    with a_bed(lab, tmp_path, "bpf", policy(dwell="0s", hold_down="0s")) as bed:
        on_cpu(RIGHT)
        receivers = datagram_sockets(lab)
        pairs: list[Pair] = [directed(lab, lab.tcp_pair) for _ in range(STREAMS)]
        bed.start()
        assert bed.daemon.process is not None

        def all_on(cpu: int, count: int) -> bool:
            rows = bed.daemon.flows()
            on = [row for row in rows if row["state"] == "steered" and row["app_cpu"] == cpu]
            cpus = {queue.index: queue.cpu for queue in bed.lab.nic.queues()}
            there = {cpus[row["target_queue"]] for row in on} <= {cpu}
            return there and len(rows) == len(on) == count

        on_cpu(WRONG)
        for pair in pairs:
            lockstep(*pair)
        for receiver in receivers:
            receiver.send(b"x")
        until(lambda: all_on(WRONG, DATAGRAM + STREAMS), "every flow is steered", 60)
        assert bed.daemon.status()["events_lost"] == 0

        bed.daemon.process.send_signal(signal.SIGSTOP)
        cpu, reported = WRONG, 0
        while reported <= MORE_THAN_FIT or cpu == WRONG:
            cpu = WRONG if cpu == RIGHT else RIGHT
            used_by_a_thread(receivers, cpu)
            reported += len(receivers)
        for _, accepted in pairs:
            accepted.close()  # and its end finds the ring full
        bed.daemon.process.send_signal(signal.SIGCONT)
        until(lambda: bed.daemon.status()["resyncs"], "the daemon looks at every socket", 60)
        status = bed.daemon.status()
        assert status["events_lost"] > STREAMS
        assert "lost: " in bed.daemon.said()
        on_cpu(RIGHT)
        for receiver in receivers:
            receiver.send(b"x")  # a use that was lost is reported again
        until(lambda: all_on(RIGHT, DATAGRAM), "every flow is where its application is", 60)

        def only_theirs() -> bool:
            ours = {rule["location"] for rule in ours_in(bed.daemon.get(rules_of(lab)))}
            return ours == {row["filter"] for row in bed.daemon.flows()}

        # a closed socket's rule goes a second later
        until(only_theirs, "the filters are those of the flows", 60)


def rules_of(lab: Lab) -> str:
    return f"/v1/filters?nic={lab.nic.name}&limit=1000"


def ours_in(page: dict[str, list[dict[str, int]]]) -> list[dict[str, int]]:
    return [rule for rule in page["filters"] if rule["ours"]]
