# SPDX-License-Identifier: GPL-2.0-or-later
"""Queues by the names of their interrupts: lines of /proc/interrupts as drivers make them."""

from __future__ import annotations

import pytest

from atfnd.kernel.interrupts.irq_names import queue_irqs
from atfnd.kernel.interrupts.napi import Napi
from atfnd.nic.ethtool.queues import napi_by_order

__all__: list[str] = []

# Counts cut to two CPUs; numbers, chips and names are as reported with each driver.
IXGBE = """
 129:   91824       0  IR-PCI-MSIX-0000:3b:00.0    0-edge      enp59s0f0-TxRx-0
 130:       0   84112  IR-PCI-MSIX-0000:3b:00.0    1-edge      enp59s0f0-TxRx-1
 131:       4       0  IR-PCI-MSIX-0000:3b:00.0    2-edge      enp59s0f0
"""
I40E = """
 220:      11       0  IR-PCI-MSI 31457280-edge      i40e-0000:3c:00.0:misc
 221:    9123       0  IR-PCI-MSI 31457281-edge      i40e-eth2-TxRx-0
 222:       0    8821  IR-PCI-MSI 31457282-edge      i40e-eth2-TxRx-1
 300:       0       0  IR-PCI-MSI 31457408-edge      i40e-0000:3c:00.0:fdir-TxRx-0
"""
ICE = """
 190:       1       0  IR-PCI-MSIX-0000:31:00.0    0-edge      ice-0000:31:00.0:misc
 191:    4411       0  IR-PCI-MSIX-0000:31:00.0    1-edge      ice-ens785f0-TxRx-0
 192:       0     322  IR-PCI-MSIX-0000:31:00.0    2-edge      ice-ens785f0-TxRx-1
"""
MLX5 = """
  98:    3412       0  PCI-MSI-edge      mlx5_async0@pci:0000:81:00.0
  99:   90122       0  PCI-MSI-edge      mlx5_comp0@pci:0000:81:00.0
 100:       0   88712  PCI-MSI-edge      mlx5_comp1@pci:0000:81:00.0
 101:       0       3  PCI-MSI-edge      mlx5_comp2@pci:0000:81:00.0
"""
MLX4 = """
  60:    3412       0  PCI-MSI-edge      mlx4-async@pci:0000:04:00.0
  61:   90122       0  PCI-MSI-edge      mlx4-1@0000:04:00.0
  62:       0   88712  PCI-MSI-edge      mlx4-2@0000:04:00.0
"""
ENA = """
  27:      12       0  PCI-MSIX-0000:00:05.0    0-edge      ena-mgmnt@pci:0000:00:05.0
  28:   51000       0  PCI-MSIX-0000:00:05.0    1-edge      eth0-Tx-Rx-0
  29:       0   49000  PCI-MSIX-0000:00:05.0    2-edge      eth0-Tx-Rx-1
"""
BNXT = """
 150:   51000       0  IR-PCI-MSI 9961472-edge      ens1f0np0-TxRx-0
 151:       0   49000  IR-PCI-MSI 9961473-edge      ens1f0np0-TxRx-1
"""
IGB = """
  32:       1       0  PCI-MSIX-0000:01:00.0    0-edge      eth0
  33:     100       0  PCI-MSIX-0000:01:00.0    1-edge      eth0-rx-0
  34:       0     200  PCI-MSIX-0000:01:00.0    2-edge      eth0-rx-1
  35:       0       7  PCI-MSIX-0000:01:00.0    3-edge      eth0-tx-0
  36:       8       0  PCI-MSIX-0000:01:00.0    4-edge      eth0-tx-1
"""
VIRTIO = """
  50:       0       0  PCI-MSIX-0000:03:00.0    0-edge      virtio1-config
  51:     100       0  PCI-MSIX-0000:03:00.0    1-edge      virtio1-input.0
  52:      42       0  PCI-MSIX-0000:03:00.0    2-edge      virtio1-output.0
  53:       0     200  PCI-MSIX-0000:03:00.0    3-edge      virtio1-input.1
  54:       0      43  PCI-MSIX-0000:03:00.0    4-edge      virtio1-output.1
"""
CXGB4 = """
 109:       2       0  PCI-MSI-edge      0000:82:00.4-FWeventq
 110:     771       0  PCI-MSI-edge      eth4-Rx0
 111:       0     772  PCI-MSI-edge      eth4-Rx1
 112:       3       0  PCI-MSI-edge      eth5-Rx0
 113:       0       4  PCI-MSI-edge      eth5-Rx1
"""
SFC = """
  70:   51000       0  IR-PCI-MSI 2097152-edge      eth6-0
  71:       0   49000  IR-PCI-MSI 2097153-edge      eth6-1
  72:       0       1  IR-PCI-MSI 2097154-edge      eth6-xdp-2
"""
TG3 = """
  80:       9       0  PCI-MSI-edge      eth7-tx-0
  81:   51000       0  PCI-MSI-edge      eth7-rx-1
  82:       0   49000  PCI-MSI-edge      eth7-rx-2
"""
QEDE = """
  90:   51000       0  PCI-MSI-edge      eth8-fp-0
  91:       0   49000  PCI-MSI-edge      eth8-fp-1
"""
HNS3 = """
 390:       1       0  ITS-MSI 65536000 Edge      hclge-misc-0000:7d:00.0
 391:   51000       0  ITS-MSI 65536001 Edge      hns3-0000:7d:00.0-TxRx-0
 392:       0   49000  ITS-MSI 65536002 Edge      hns3-0000:7d:00.0-TxRx-1
"""
OCTEON = """
 120:   51000       0  ITS-MSI 1 Edge      eth9-rxtx-0
 121:       0   49000  ITS-MSI 2 Edge      eth9-rxtx-1
"""

SAMPLES = [
    ("enp59s0f0", IXGBE, {0: 129, 1: 130}, {}),
    ("eth2", I40E, {0: 221, 1: 222}, {}),
    ("ens785f0", ICE, {0: 191, 1: 192}, {}),
    ("enp129s0f0np0", MLX5, {0: 99, 1: 100, 2: 101}, {}),
    ("ib0", MLX4, {1: 61, 2: 62}, {}),
    ("eth0", ENA, {0: 28, 1: 29}, {}),
    ("ens1f0np0", BNXT, {0: 150, 1: 151}, {}),
    ("eth0", IGB, {0: 33, 1: 34}, {0: 35, 1: 36}),
    ("ens4", VIRTIO, {0: 51, 1: 53}, {0: 52, 1: 54}),
    ("eth5", CXGB4, {0: 112, 1: 113}, {}),
    ("eth6", SFC, {0: 70, 1: 71}, {}),
    ("eth7", TG3, {1: 81, 2: 82}, {0: 80}),
    ("eth8", QEDE, {0: 90, 1: 91}, {}),
    ("eth10", HNS3, {0: 391, 1: 392}, {}),
    ("eth9", OCTEON, {0: 120, 1: 121}, {}),
]


def names(sample: str) -> dict[int, str]:
    lines = [line.split() for line in sample.strip().splitlines()]
    return {int(words[0].rstrip(":")): words[-1] for words in lines}


@pytest.mark.parametrize(
    ("interface", "sample", "receive", "send"),
    SAMPLES,
    ids=lambda value: value if isinstance(value, str) and "\n" not in value else "",
)
def test_samples(
    interface: str, sample: str, receive: dict[int, int], send: dict[int, int]
) -> None:
    found = queue_irqs(names(sample), interface, own=True)
    assert {irq.queue: irq.irq for irq in found if irq.receives} == receive
    assert {irq.queue: irq.irq for irq in found if not irq.receives} == send


def test_a_name_that_begins_with_ours_is_anothers() -> None:
    both = {1: "eth1-TxRx-0", 2: "eth10-TxRx-0", 3: "eth1-TxRx-1"}
    assert [irq.irq for irq in queue_irqs(both, "eth1", own=False)] == [1, 3]


def test_without_its_name_only_what_is_its_devices() -> None:
    assert queue_irqs(names(VIRTIO), "ens4", own=False) == []


def test_an_interface_renamed_after_it_came_up() -> None:
    assert len(queue_irqs(names(IXGBE), "wan0", own=True)) == 2


def napis(*ids: int) -> list[Napi]:
    return [Napi(number, 2, None, None, False) for number in ids]


def test_napis_in_the_order_of_all_interrupts() -> None:
    """igb with more vectors than queues: first the receiving ones."""
    named = queue_irqs(names(IGB), "eth0", own=True)
    found = napi_by_order(napis(8193, 8194, 8195, 8196), named, 2)
    assert {queue: napi.id for queue, napi in found.items()} == {0: 8193, 1: 8194}


def test_napis_in_the_order_of_receiving_interrupts() -> None:
    """virtio_net: NAPIs that only send have no id."""
    named = queue_irqs(names(VIRTIO), "eth0", own=True)
    found = napi_by_order(napis(8209, 8210), named, 2)
    assert {queue: napi.id for queue, napi in found.items()} == {0: 8209, 1: 8210}


def test_napis_of_a_driver_without_interrupts() -> None:
    assert {q: napi.id for q, napi in napi_by_order(napis(7, 9), [], 2).items()} == {0: 7, 1: 9}


def test_no_deduction_when_nothing_adds_up() -> None:
    named = queue_irqs(names(IGB), "eth0", own=True)
    assert napi_by_order(napis(7, 8, 9), named, 2) == {}
    assert napi_by_order([], named, 2) == {}
