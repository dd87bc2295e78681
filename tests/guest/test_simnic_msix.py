# SPDX-License-Identifier: GPL-2.0-or-later
"""simnic on PCI functions (pairs=0): real MSI-X vectors, a real bus address and NUMA node."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guest.hardware import effective_cpus, ethtool, interrupts, queue_of, send
from tests.guest.rxnfc import FlowSpec, insert
from tests.guest.simpair import HOST, PEER, open_host, open_peer, simnic

SECOND_GUEST = ["--kernel", "newest", "--nic", "every"]
NIC = "sim0"
FLOW = FlowSpec(PEER[socket.AF_INET], 5001, HOST[socket.AF_INET], 7001)


@pytest.fixture(scope="module", autouse=True)
def loaded() -> Iterator[None]:
    with simnic(pairs=0, max_queues=8, queues=4):
        yield


def test_it_is_a_pci_device() -> None:
    device = Path(f"/sys/class/net/{NIC}/device")
    assert (device / "subsystem").resolve().name == "pci"
    assert f"bus-info: {device.resolve().name}" in ethtool("-i", NIC)
    vectors = {path.name for path in (device / "msi_irqs").iterdir()}
    assert {str(interrupts(f"{NIC}-TxRx-{queue}")[0]) for queue in range(4)} <= vectors


def test_packets_arrive_where_the_vector_is_sent() -> None:
    with (
        open_peer(socket.AF_INET, socket.SOCK_DGRAM, 5001) as sender,
        open_host(socket.AF_INET, socket.SOCK_DGRAM, 7001) as receiver,
    ):
        insert(NIC, FLOW, 2)
        irq = interrupts(f"{NIC}-TxRx-2")[0]
        for cpu in (3, 0, 1):
            Path(f"/proc/irq/{irq}/smp_affinity_list").write_text(str(cpu))
            send(sender, receiver, 20)  # the vector moves with an interrupt
            assert effective_cpus(irq) == str(cpu)
            before = interrupts(f"{NIC}-TxRx-2")[1]
            assert queue_of(sender, receiver) == 2
            after = interrupts(f"{NIC}-TxRx-2")[1]
            assert [each for each in range(4) if after[each] > before[each]] == [cpu]
