# SPDX-License-Identifier: GPL-2.0-or-later
"""What traffic and threads cost, read from the running kernel and from a made-up /proc."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from atfnd.observe.machine.busy import BusyCpus, handoffs
from atfnd.observe.processes.cpu_time import context_switches, cpu_time, ran_ns
from atfnd.observe.sockets.round_trips import RoundTrips
from tests.applications import CPUS
from tests.kernel.netns import APP4, PEER4, Net
from tests.labs import packed
from tests.wait import until

SPIN = "import time; end = time.thread_time() + 0.3\nwhile time.thread_time() < end: pass"


@pytest.fixture
def net() -> Iterator[Net]:
    with ExitStack() as stack:
        yield Net(stack)


def test_a_cpu_is_busy_for_as_long_as_a_process_computes_on_it() -> None:
    """On the CPU that it runs on, for at least as long, and never for longer than time passes."""
    with closing(BusyCpus()) as busy:
        until(lambda: busy.read().busy_ns.keys() >= set(CPUS), "every CPU has switched threads")
        began_ns, before = time.monotonic_ns(), busy.read().busy_ns
        subprocess.run(["taskset", "-c", str(CPUS[-1]), sys.executable, "-c", SPIN], check=True)
        after, took_ns = busy.read().busy_ns, time.monotonic_ns() - began_ns
    spent_ns = {cpu: after[cpu] - before[cpu] for cpu in CPUS}
    assert 300_000_000 <= spent_ns[CPUS[-1]] <= took_ns
    assert all(0 <= each <= took_ns for each in spent_ns.values())


def test_the_network_takes_a_part_of_that(net: Net) -> None:
    """Packets over a veth pair or lo are received in softirqs."""
    with closing(BusyCpus()) as busy:
        before = busy.read().network_ns
        sender = net.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver = net.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind((PEER4, 0))
        for _ in range(2000):
            sender.sendto(bytes(100), receiver.getsockname())
        now = busy.read()
    spent_ns = sum(now.network_ns[cpu] - before.get(cpu, 0) for cpu in now.network_ns)
    assert 100_000 < spent_ns < sum(now.busy_ns.values())


def test_the_round_trip_times_are_those_that_ss_shows(net: Net) -> None:
    listener = net.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((PEER4, 0))
    listener.listen()
    client = net.socket(socket.AF_INET, socket.SOCK_STREAM)
    client.bind((APP4, 0))
    client.connect(listener.getsockname())
    server, _ = listener.accept()
    with server, closing(RoundTrips(net.path)) as round_trips:
        for _ in range(50):
            client.sendall(bytes(64))
            server.recv(64, socket.MSG_WAITALL)
        ours = {each.local: each.rtt for each in round_trips.read()}
        assert ours.keys() == {packed(APP4), packed(PEER4)}
        said = subprocess.run(
            ["ip", "netns", "exec", net.name, "ss", "-Htin", "src", APP4],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        (rtt_ms,) = (
            float(word.removeprefix("rtt:").split("/")[0])
            for word in said.split()
            if word.startswith("rtt:")
        )
        assert ours[packed(APP4)].rtt_us == pytest.approx(1000 * rtt_ms, abs=1)
        assert ours[packed(APP4)].acked >= 50 * 64
        assert ours[packed(PEER4)].acked <= 1, "it sent nothing"


def test_handoffs_and_context_switches_are_counts_of_all_cpus(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    row = "00000010 0 0 0 0 0 0 0 0 {:08x} 0 0 00000000"
    (tmp_path / "net/softnet_stat").write_text(f"{row.format(0x1F)}\n{row.format(2)}\n")
    assert handoffs(str(tmp_path)) == 33
    (tmp_path / "net/softnet_stat").write_text("00000010 0 0\n")
    assert handoffs(str(tmp_path)) is None
    assert handoffs(str(tmp_path / "nowhere")) is None
    (tmp_path / "stat").write_text("cpu  1 2\nctxt 4711\nbtime 5\n")
    assert context_switches(str(tmp_path)) == 4711
    (tmp_path / "stat").write_text("cpu  1 2\n")
    assert context_switches(str(tmp_path)) is None


TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
STAT = """\
cpu  100 200 300 4000 500 600 700 800 90 0
cpu0 1 2 3 1000 50 4 5 800 1 0
cpu2 10 20 30 3000 450 40 50 0 9 0
intr 12345 1 2 3
ctxt 99
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "stat").write_text(STAT)
    for pid, tid, ran in ((5, 5, 100), (5, 6, 2_000_000_000_000)):
        folder = tmp_path / str(pid) / "task" / str(tid)
        folder.mkdir(parents=True)
        (folder / "schedstat").write_text(f"{ran} 7 8\n")
    return tmp_path


def test_a_cpu_is_busy_but_for_idle_and_stolen_time(proc: Path) -> None:
    now = cpu_time([], str(proc))
    assert now.busy_ns == {0: 15 * TICK_NS, 2: 150 * TICK_NS}  # CPU 1 is offline
    assert now.softirq_ns == {0: 5 * TICK_NS, 2: 50 * TICK_NS}


def test_what_the_kernel_does_not_tell_of_a_thread_is_missing(proc: Path) -> None:
    assert ran_ns([5, 99], str(proc)) == {5: 100, 6: 2_000_000_000_000}
    assert ran_ns([99], str(proc)) == {}
    now = cpu_time([(5, 5), (5, 6), (5, 7), (8, 8)], str(proc))
    assert now.ran_ns == {5: 100, 6: 2_000_000_000_000}
    assert now.waited_ns == {5: 7, 6: 7}
    for path in proc.glob("5/task/*/schedstat"):
        path.unlink()
    now = cpu_time([(5, 5), (5, 6)], str(proc))
    assert (now.ran_ns, now.waited_ns) == ({}, {})
    assert ran_ns([5], str(proc)) is None
