# SPDX-License-Identifier: GPL-2.0-or-later
"""What an operator gets of `order`: the daemon moves flows under a stall that makes unprotected
moves reorder.

A receiver of numbered datagrams, which knows nothing of queues, tells what was late.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from atfnd.model import Filter, FlowKey, Protocol
from atfnd.nic import Nic
from bench.traffic.sequence import Sequence, sequence, stalled
from tests.applications import CPUS, rss_cpu
from tests.bed import Bed, a_bed
from tests.daemons import Row, policy
from tests.labs import HOST, Ends, Lab, a_lab, key_of
from tests.wait import until

pytestmark = pytest.mark.usefixtures("own_affinity")

RATE_PPS = 10_000
BUSY_MS, PERIOD_MS = 3.0, 7.3  # not in step with what waits in whole milliseconds
MOVES = 12
LONG_S = 60.0  # beside others with real-time priority a hold may have to be tried often
PORTS = iter(range(4000, 5000))


class Numbered:
    """A flow of numbered datagrams, and the process that receives it."""

    def __init__(self, bed: Bed, key: FlowKey, running: Sequence) -> None:
        self.bed, self.key, self.running = bed, key, running
        self.cpus = sorted({queue.cpu for queue in bed.lab.nic.queues() if queue.cpu is not None})
        self.cpu = self.cpus[0]

    def on(self, cpu: int) -> None:
        os.sched_setaffinity(self.running.checker.pid, {cpu})
        self.cpu = cpu

    def row(self) -> Row:
        row = self.bed.daemon.flow(self.key)
        return {} if row is None else row

    def arrives(self) -> bool:
        """A rule leads it to the CPU of its receiver."""
        row = self.row()
        there = row.get("app_cpu") == row.get("target_cpu") == self.cpu
        ruled = row.get("state") == "steered"
        return there and ruled and self.bed.cpu_of(row["target_queue"]) == self.cpu

    def start(self, what: str) -> None:
        """Run where RSS does not deliver it, and be placed."""
        self.on(next(cpu for cpu in self.cpus if cpu != rss_cpu(self.bed.lab, self.key)))
        until(self.arrives, what, LONG_S)

    def migrates(self) -> None:
        self.on(next(cpu for cpu in self.cpus if cpu != self.cpu))


@contextmanager
def numbered(
    bed: Bed, lab: Ends[Nic], by_rss: int | None = None, rate_pps: int = RATE_PPS
) -> Iterator[Numbered]:
    """`by_rss`: one that RSS delivers on this CPU."""
    while True:
        sender, receiver = lab.udp_pair(socket.AF_INET, next(PORTS), next(PORTS))
        if by_rss in (None, rss_cpu(bed.lab, key_of(receiver, Protocol.UDP))):
            break
    with sequence(sender, receiver, rate_pps) as running:
        yield Numbered(bed, key_of(receiver, Protocol.UDP), running)


@contextmanager
def strict(lab: Lab, folder: Path, order: str = "strict") -> Iterator[Bed]:
    with a_bed(lab, folder, "bpf", policy(order=order, hold_down="50ms")) as bed:
        bed.start()
        yield bed


def reported(bed: Bed, mechanism: str, verdict: str) -> int:
    counts = bed.daemon.status()["moves"]
    ends = [each for each in counts if (each["mechanism"], each["verdict"]) == (mechanism, verdict)]
    return sum(each["count"] for each in ends)


def follows(bed: Bed) -> dict[str, int]:
    """Verdict -> how many queues' moves ended so."""
    counts = bed.daemon.status()["moves"]
    return {each["verdict"]: each["count"] for each in counts if each["mechanism"] == "follow"}


def only_broken_holds_are_late(bed: Bed, late: int, early: int = 0, seq: int = 0) -> None:
    """Each packet that was late is reported, with a move of its own; and why that one's hold had
    ended before its time. No hold that was whole is late. So many were so before event `seq`,
    whatever moved them."""
    violated = [each for each in bed.daemon.events("violated") if each["seq"] > seq]
    said = [re.fullmatch(r"(\d+) packets overtook others(: .+)?", each["why"]) for each in violated]
    assert all(each is not None and each[2] for each in said), violated
    assert all("by hold" in each["what"] for each in violated), violated
    assert sum(int(each[1]) for each in said if each is not None) == late - early
    assert bed.daemon.status()["late_packets"] == late


def test_a_queue_follows_its_owner_and_nothing_is_late(lab: Lab, tmp_path: Path) -> None:
    with strict(lab, tmp_path) as bed, numbered(bed, lab) as flow, stalled(CPUS[0], BUSY_MS, 7.3):
        flow.start("it is placed")
        rule = flow.row()["filter"]
        for move in range(MOVES):
            flow.migrates()
            until(flow.arrives, f"its queue follows, {move}", LONG_S)
        row = flow.row()
        owners = [each["owner"] for each in bed.daemon.get("/v1/queues")["queues"]]
        assert owners[row["target_queue"]] == f"thread {flow.running.checker.pid}"
        # Packets must still come: a move after which none is seen within a second ends as `quiet`,
        # as one on a machine that stood still for so long.
        until(lambda: sum(follows(bed).values()) >= MOVES, "each move is seen to its end")
        ends = follows(bed)
        assert ends.keys() <= {"proven", "quiet"}
        assert ends["proven"] > MOVES // 2, ends
        tally = flow.running.finish()
        assert (tally.received > 0, tally.late_ns) == (True, [])
        assert row["filter"] == rule
        assert bed.daemon.events("rewrite") == []  # one write a migration: its queue's
        assert bed.daemon.status()["late_packets"] == 0


def test_a_guest_is_moved_by_hold_and_no_proven_move_is_late(tmp_path: Path) -> None:
    with a_lab(queues=2) as lab, strict(lab, tmp_path) as bed, ExitStack() as flows:
        owners = [flows.enter_context(numbered(bed, lab, by_rss=cpu)) for cpu in CPUS[:2]]
        for owner in owners:
            owner.start("its thread owns the queue on its CPU")
        guest = flows.enter_context(numbered(bed, lab))
        guest.start("it is placed beside an owner")
        flows.enter_context(stalled(CPUS[0], BUSY_MS, PERIOD_MS))
        for move in range(MOVES):
            guest.migrates()
            until(guest.arrives, f"it is moved, {move}", LONG_S)
        tallies = [each.running.finish() for each in (guest, *owners)]
        assert reported(bed, "hold", "proven") > 0, bed.daemon.status()["moves"]
        only_broken_holds_are_late(bed, sum(len(tally.late_ns) for tally in tallies))


def test_a_queue_changes_its_owner_and_nothing_is_late(tmp_path: Path) -> None:
    """The owner falls silent, its guest gets the queue and takes it along; the owner comes back."""
    with a_lab(queues=2) as lab, strict(lab, tmp_path) as bed, ExitStack() as flows:
        old = flows.enter_context(numbered(bed, lab))

        def owns(flow: Numbered) -> bool:
            queues = bed.daemon.get("/v1/queues")["queues"]
            owner = f"thread {flow.running.checker.pid}"
            return owner in [each["owner"] for each in queues if each["cpu"] == flow.cpu]

        old.start("it is placed")
        third = flows.enter_context(numbered(bed, lab, old.cpu))  # it has the other queue
        third.on(next(cpu for cpu in CPUS if cpu != old.cpu))
        until(lambda: owns(old) and owns(third), "both queues are owned", LONG_S)
        new = flows.enter_context(numbered(bed, lab))
        new.start("it is placed, as a guest")
        flows.enter_context(stalled(CPUS[0], BUSY_MS, PERIOD_MS))
        host = old if old.cpu == new.cpu else third
        host.running.sender.send_signal(signal.SIGSTOP)
        until(lambda: owns(new), "it owns the queue of the silent one", LONG_S)
        for move in range(MOVES):
            new.migrates()
            until(lambda: owns(new) and new.arrives(), f"its queue comes along, {move}", LONG_S)
        host.running.sender.send_signal(signal.SIGCONT)
        host.on(next(cpu for cpu in CPUS if cpu != new.cpu))
        until(host.arrives, "it is delivered on its core again", LONG_S)
        late = sum(len(each.running.finish().late_ns) for each in (old, new, third))
        assert reported(bed, "follow", "proven") > 0
        only_broken_holds_are_late(bed, late)


def test_immediate_moves_are_late_and_each_late_packet_is_reported(tmp_path: Path) -> None:
    with a_lab(queues=2) as lab, strict(lab, tmp_path, "immediate") as bed:
        with numbered(bed, lab) as flow:
            flow.start("it is placed")
            with stalled(CPUS[0], BUSY_MS, PERIOD_MS):
                while reported(bed, "none", "violated") < 3:
                    flow.migrates()
                    until(flow.arrives, "it is moved")
            tally = flow.running.finish()
        until(lambda: bed.daemon.status()["late_packets"] == len(tally.late_ns), "all is reported")
        assert len(tally.late_ns) > 0
        [first, *_] = bed.daemon.events("violated")
        assert first["flow"] == str(flow.key)
        assert "packets late" in first["what"]
        explained = bed.daemon.ctl("explain", first["flow"]).stdout
        assert "Its last move, without protection, ended as" in explained


def test_connections_are_born_on_the_queue_of_who_listens(lab: Lab, tmp_path: Path) -> None:
    with strict(lab, tmp_path) as bed:
        os.sched_setaffinity(0, {CPUS[1]})
        port = next(PORTS)
        listener = lab.open("host", socket.AF_INET, socket.SOCK_STREAM)
        listener.bind((HOST[socket.AF_INET], port))
        listener.listen(50)
        client = lab.open("peer", socket.AF_INET, socket.SOCK_STREAM)
        client.connect((HOST[socket.AF_INET], port))
        client.send(b"x")
        first = listener.accept()[0]
        assert first.recv(1) == b"x"  # now it is known that one thread serves the port
        first.close()
        client.close()

        def of_port() -> Filter | None:  # beside it, what a write takes is measured with a rule
            found = (r for r in lab.nic.filters() if r.match and r.match.dst_port == port)
            return next(found, None)

        rule = until(of_port, "its port has a rule")
        assert rule is not None
        assert rule.match is not None
        assert rule.match.src_port is None
        assert rule.queue is not None
        assert bed.cpu_of(rule.queue) == CPUS[1]
        until(lambda: reported(bed, "birth", "verified"), "no connection was on its way meanwhile")
        pairs = []
        for _ in range(20):
            client = lab.open("peer", socket.AF_INET, socket.SOCK_STREAM)
            client.connect((HOST[socket.AF_INET], port))
            accepted = listener.accept()[0]
            pairs.append((client, accepted))
            for _ in range(20):
                client.send(b"x")
                assert accepted.recv(1) == b"x"
            assert lab.queue_of(accepted) == rule.queue
        here = [each for each in lab.nic.filters() if each.match and each.match.dst_port == port]
        assert [each.location for each in here] == [rule.location]
        for _, accepted in pairs:
            accepted.close()


def test_strict_says_which_condition_keeps_a_flow_where_it_is(lab: Lab, tmp_path: Path) -> None:
    with strict(lab, tmp_path) as bed, numbered(bed, lab) as flow:
        flow.start("it is placed")
        rule, queue = flow.row()["filter"], flow.row()["target_queue"]
        for index in range(4):
            ip_rps(lab, index, 3)

        def put_off() -> list[Row]:
            stages = "RPS hands packets to other CPUs"
            return [each for each in bed.daemon.events("deferred") if stages in each["why"]]

        while not put_off():  # what it knows may be a second old
            flow.migrates()
            until(lambda: flow.arrives() or put_off(), "moved, or put off")
        assert put_off()[0]["what"] == f"queue {queue} to CPU {flow.cpu}, not moved"
        assert (flow.row()["filter"], flow.row()["target_queue"]) == (rule, queue)
        assert bed.cpu_of(queue) != flow.cpu


def ip_rps(lab: Lab, queue: int, cpus: int) -> None:
    """As an admin does."""
    path = f"/sys/class/net/r0/queues/rx-{queue}/rps_cpus"
    command = ["ip", "netns", "exec", f"{lab.name}-host", "sh", "-c", f"echo {cpus} > {path}"]
    subprocess.run(command, check=True)
