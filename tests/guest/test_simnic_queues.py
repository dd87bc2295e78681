# SPDX-License-Identifier: GPL-2.0-or-later
"""simnic's queues: interrupts and their CPUs, RSS, rings, coalescing, aRFS, netdev-genl."""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.guest.hardware import (
    effective_cpus,
    ethtool,
    held,
    interrupts,
    packets,
    queue_of,
    send,
    statistics,
)
from tests.guest.rxnfc import FlowSpec, delete, insert, listed, refused
from tests.guest.simpair import HOST, PEER, open_host, open_peer, simnic
from tests.wait import until

SECOND_GUEST = ["--kernel", "newest", "--nic", "every"]
NIC = "sim0"
FLOW = FlowSpec(PEER[socket.AF_INET], 5001, HOST[socket.AF_INET], 7001)
SO_INCOMING_CPU, SO_INCOMING_NAPI_ID = 49, 56


class Flow(NamedTuple):
    sender: socket.socket
    receiver: socket.socket


@pytest.fixture(scope="module", autouse=True)
def loaded() -> Iterator[None]:
    with simnic(max_queues=8, queues=4, table=64):
        yield


@pytest.fixture
def flow() -> Iterator[Flow]:
    with (
        open_peer(socket.AF_INET, socket.SOCK_DGRAM, 5001) as sender,
        open_host(socket.AF_INET, socket.SOCK_DGRAM, 7001) as receiver,
    ):
        # only a connected socket learns the CPU and NAPI of each packet (net/ipv4/udp.c)
        receiver.connect(sender.getsockname())
        yield Flow(sender, receiver)
    for location in listed(NIC):
        delete(NIC, location)


def test_each_queue_has_an_interrupt_and_they_are_spread() -> None:
    cpus = [effective_cpus(interrupts(f"{NIC}-TxRx-{queue}")[0]) for queue in range(4)]
    assert cpus == ["0", "1", "2", "3"]
    listed_irqs = {
        int(path.name) for path in Path(f"/sys/class/net/{NIC}/device/msi_irqs").iterdir()
    }
    assert {interrupts(f"{NIC}-TxRx-{queue}")[0] for queue in range(4)} <= listed_irqs


def test_packets_arrive_where_the_interrupt_is_sent(flow: Flow) -> None:
    insert(NIC, FLOW, 2)
    irq = interrupts(f"{NIC}-TxRx-2")[0]
    for cpu in (3, 0, 1):
        Path(f"/proc/irq/{irq}/smp_affinity_list").write_text(str(cpu))
        assert effective_cpus(irq) == str(cpu)
        send(*flow, 5)  # what was on its way
        before = interrupts(f"{NIC}-TxRx-2")[1]
        assert queue_of(*flow) == 2
        assert flow.receiver.getsockopt(socket.SOL_SOCKET, SO_INCOMING_CPU) == cpu
        after = interrupts(f"{NIC}-TxRx-2")[1]
        assert [c for c in range(4) if after[c] > before[c]] == [cpu]


def test_the_affinity_survives_down_and_channels() -> None:
    irq = interrupts(f"{NIC}-TxRx-1")[0]
    Path(f"/proc/irq/{irq}/smp_affinity_list").write_text("3")
    for state in ("down", "up"):
        subprocess.run(["ip", "link", "set", NIC, state], check=True)
    ethtool("-L", NIC, "combined", 8)
    ethtool("-L", NIC, "combined", 4)
    assert interrupts(f"{NIC}-TxRx-1")[0] == irq
    assert Path(f"/proc/irq/{irq}/smp_affinity_list").read_text() == "3\n"


def test_each_queue_has_a_napi_of_its_own(flow: Flow) -> None:
    """The links netdev-genl reports are tested by the kernel's queues.py and irq.py."""
    ids = set()
    for queue in range(4):
        insert(NIC, FLOW, queue, 0)
        send(*flow, 5)
        ids.add(flow.receiver.getsockopt(socket.SOL_SOCKET, SO_INCOMING_NAPI_ID))
    assert len(ids) == 4


def test_rss_follows_its_table_and_contexts(flow: Flow) -> None:
    for queue in range(4):
        ethtool("-X", NIC, "weight", *("1" if each == queue else "0" for each in range(4)))
        assert queue_of(*flow) == queue
    ethtool("-X", NIC, "default")
    said = ethtool("-X", NIC, "context", "new")
    context = int(said.split()[-1])
    ethtool("-X", NIC, "context", context, "weight", 0, 0, 0, 1)
    words = f"flow-type udp4 dst-port 7001 context {context} loc 3"
    ethtool("-N", NIC, *words.split())
    assert queue_of(*flow) == 3
    busy = ["ethtool", "-X", NIC, "context", str(context), "delete"]
    assert subprocess.run(busy, capture_output=True).returncode != 0
    delete(NIC, 3)
    subprocess.run(busy, check=True)


def test_the_hash_is_microsofts() -> None:
    """With the key of "Verifying the RSS Hash Calculation" (Windows driver documentation)."""
    key = (
        "6d:5a:56:da:25:5b:0e:c2:41:67:25:3d:43:a3:8f:b0:d0:ca:2b:cb:"
        "ae:7b:30:b4:77:cb:2d:a3:80:30:f2:0c:6a:42:b3:3b:be:ac:01:fa"
    )
    before = re.findall(r"(?:[0-9a-f]{2}:){39}[0-9a-f]{2}", ethtool("-x", NIC))[0]
    ethtool("-X", NIC, "hkey", key)
    ethtool("-L", NIC, "combined", 8)
    try:
        with (
            open_peer(socket.AF_INET, socket.SOCK_DGRAM, 5001) as sender,
            open_host(socket.AF_INET, socket.SOCK_DGRAM, 7001) as receiver,
        ):
            source, destination = (socket.inet_aton(each[socket.AF_INET]) for each in (PEER, HOST))
            data = source + destination + struct.pack("!HH", 5001, 7001)
            hash_ = toeplitz(bytes.fromhex(key.replace(":", "")), data)
            assert queue_of(sender, receiver) == hash_ % 256 % 8
    finally:
        ethtool("-L", NIC, "combined", 4)
        ethtool("-X", NIC, "hkey", before)
    # its published vector: 66.9.149.187:2794 -> 161.142.100.80:1766
    known = socket.inet_aton("66.9.149.187") + socket.inet_aton("161.142.100.80")
    known += struct.pack("!HH", 2794, 1766)
    assert toeplitz(bytes.fromhex(key.replace(":", "")), known) == 0x51CCC178


def toeplitz(key: bytes, data: bytes) -> int:
    stream = int.from_bytes(key, "big")
    bits = len(key) * 8
    result = 0
    for index in range(len(data) * 8):
        if data[index // 8] >> (7 - index % 8) & 1:
            result ^= stream >> (bits - 32 - index) & 0xFFFFFFFF
    return result


def test_rings_are_bounded(flow: Flow) -> None:
    """A queue whose interrupt waits takes as many frames as it has descriptors."""
    ethtool("-G", NIC, "rx", 8)
    ethtool("-C", NIC, "rx-usecs", 10000)
    try:
        before = sum(statistics()[f"rx_queue_{queue}_drops"] for queue in range(8))
        insert(NIC, FLOW, 1)
        for _ in range(2000):
            flow.sender.sendto(b"x", flow.receiver.getsockname())
        assert sum(statistics()[f"rx_queue_{queue}_drops"] for queue in range(8)) > before
        missed = Path(f"/sys/class/net/{NIC}/statistics/rx_missed_errors")
        assert int(missed.read_text()) > 0
    finally:
        ethtool("-C", NIC, "rx-usecs", 0)
        ethtool("-G", NIC, "rx", 256)


def test_coalescing_delays_the_interrupt(flow: Flow) -> None:
    insert(NIC, FLOW, 1)
    flow.receiver.settimeout(30)

    def interrupts_of(count: int) -> int:
        before = statistics()["rx_queue_1_irqs"]
        for _ in range(count):
            flow.sender.sendto(b"x", flow.receiver.getsockname())
        for _ in range(count):
            flow.receiver.recv(16)
        return statistics()["rx_queue_1_irqs"] - before

    ethtool("-C", NIC, "rx-usecs", 10000)
    assert re.search(r"rx-usecs:\s+10000\n", ethtool("-c", NIC))
    coalesced = interrupts_of(100)
    ethtool("-C", NIC, "rx-usecs", 0)
    assert coalesced < 50
    ethtool("-Q", NIC, "queue_mask", "0x2", "--coalesce", "rx-usecs", 77)
    one = ethtool("-Q", NIC, "queue_mask", "0x2", "--show-coalesce")
    assert re.search(r"rx-usecs:\s+77\n", one)
    ethtool("-C", NIC, "adaptive-rx", "on")
    assert "Adaptive RX: on" in ethtool("-c", NIC)
    ethtool("-C", NIC, "adaptive-rx", "off", "rx-usecs", 0)


def test_channels_that_filters_or_tables_name_stay() -> None:
    ethtool("-L", NIC, "combined", 8)
    insert(NIC, FLOW, 7)
    refused_channels = ["ethtool", "-L", NIC, "combined", "4"]
    assert subprocess.run(refused_channels, capture_output=True).returncode != 0
    delete(NIC, 0)
    subprocess.run(refused_channels, check=True)
    with refused(errno.EINVAL):
        insert(NIC, FLOW, 4)


@pytest.fixture
def rfs() -> Iterator[None]:
    entries = Path("/proc/sys/net/core/rps_sock_flow_entries")
    entries.write_text("4096")
    counts = [Path(f"/sys/class/net/{NIC}/queues/rx-{queue}/rps_flow_cnt") for queue in range(4)]
    for count in counts:
        count.write_text("1024")
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)
    for count in counts:
        count.write_text("0")
    entries.write_text("0")


@pytest.mark.usefixtures("rfs")
def test_arfs_runs_on_it(flow: Flow) -> None:
    """The kernel steers a flow to the queue of its reader's CPU, and lets the filter expire. It
    asks for none where RSS is right by chance: so RSS names queue 0, whose CPU has no reader."""
    ethtool("-X", NIC, "weight", 1, 0, 0, 0)
    irqs = [interrupts(f"{NIC}-TxRx-{queue}")[0] for queue in range(4)]
    for queue, irq in enumerate(irqs):
        Path(f"/proc/irq/{irq}/smp_affinity_list").write_text(str(queue))
    for cpu in (3, 1, 2):
        os.sched_setaffinity(0, {cpu})

        def steered(cpu: int = cpu) -> bool:
            send(*flow, 5)
            return [rule.queue for rule in held() if rule.location is None] == [str(cpu)]

        until(steered, f"aRFS steers to CPU {cpu}'s queue")
        assert queue_of(*flow) == cpu
    assert listed(NIC) == []
    assert statistics()["arfs_rules"] == 1
    insert(NIC, FLOW, 0)  # a user's filter outranks it
    assert queue_of(*flow) == 0
    delete(NIC, 0)
    ethtool("-X", NIC, "default")


def test_arfs_filters_expire() -> None:
    until(lambda: statistics()["arfs_rules"] == 0, "what RFS no longer wants expires", 60)
    assert held() == []


def test_counters_agree(flow: Flow) -> None:
    """ethtool -S, rtnetlink: the same packets."""
    before = sum(packets())
    send(*flow, 20)
    link = Path(f"/sys/class/net/{NIC}/statistics/rx_packets")
    assert sum(packets()) >= before + 20
    first = int(link.read_text())
    assert first <= sum(packets())
    assert int(link.read_text()) >= first
