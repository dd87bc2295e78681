# SPDX-License-Identifier: GPL-2.0-or-later
"""Queues by the names that drivers give their interrupts in /proc/interrupts, and NAPIs by those of
their threads (real ones: test_ethtool_nic.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from atfnd.kernel.interrupts.irq_names import IrqProof, Named, queue_irqs
from atfnd.kernel.interrupts.napi import Napi
from atfnd.kernel.interrupts.napi_threads import PF_KTHREAD, napi_threads
from atfnd.nic.ethtool.queues import napi_of

# Names as reported with each driver, in the order of the interrupts.
IXGBE = ["enp59s0f0-TxRx-0", "enp59s0f0-TxRx-1", "enp59s0f0"]
I40E = [
    "i40e-0000:3c:00.0:misc",
    "i40e-eth2-TxRx-0",
    "i40e-eth2-TxRx-1",
    "i40e-0000:3c:00.0:fdir-TxRx-0",
]
ICE = ["ice-0000:31:00.0:misc", "ice-ens785f0-TxRx-0", "ice-ens785f0-TxRx-1"]
MLX5 = [
    "mlx5_async0@pci:0000:81:00.0",
    "mlx5_comp0@pci:0000:81:00.0",
    "mlx5_comp1@pci:0000:81:00.0",
    "mlx5_comp2@pci:0000:81:00.0",
]
MLX4 = ["mlx4-async@pci:0000:04:00.0", "mlx4-1@0000:04:00.0", "mlx4-2@0000:04:00.0"]
ENA = ["ena-mgmnt@pci:0000:00:05.0", "eth0-Tx-Rx-0", "eth0-Tx-Rx-1"]
BNXT = ["ens1f0np0-TxRx-0", "ens1f0np0-TxRx-1"]
IGB = ["eth0", "eth0-rx-0", "eth0-rx-1", "eth0-tx-0", "eth0-tx-1"]
VIRTIO = [
    "virtio1-config",
    "virtio1-input.0",
    "virtio1-output.0",
    "virtio1-input.1",
    "virtio1-output.1",
]
CXGB4 = ["0000:82:00.4-FWeventq", "eth4-Rx0", "eth4-Rx1", "eth5-Rx0", "eth5-Rx1"]
SFC = ["eth6-0", "eth6-1", "eth6-xdp-2"]
TG3 = ["eth7-tx-0", "eth7-rx-1", "eth7-rx-2"]
QEDE = ["eth8-fp-0", "eth8-fp-1"]
HNS3 = ["hclge-misc-0000:7d:00.0", "hns3-0000:7d:00.0-TxRx-0", "hns3-0000:7d:00.0-TxRx-1"]
OCTEON = ["eth9-rxtx-0", "eth9-rxtx-1"]
GVE = "gve-ntfy-blk{}@pci:0000:00:08.0"
OLD_GVE = "eth%d-ntfy-block.{}"  # so in /proc/interrupts: it had no name yet

# name, driver, number of queues, names of the interrupts by number, those of receive queues in
# order; [] where the names do not tell.
SAMPLES = [
    ("enp59s0f0", "ixgbe", 2, IXGBE, [0, 1]),
    ("eth2", "i40e", 2, I40E, [1, 2]),
    ("ens785f0", "ice", 2, ICE, [1, 2]),
    ("enp129s0f0np0", "mlx5_core", 3, MLX5, [1, 2, 3]),
    ("enp129s0f0np0", "mlx5_core", 2, MLX5, [1, 2]),  # more interrupts than queues
    ("enp129s0f0np0", "mlx5_core", 4, MLX5, []),  # fewer: some serve two
    ("ib0", "mlx4_en", 2, MLX4, [1, 2]),
    ("eth0", "ena", 2, ENA, [1, 2]),
    ("ens1f0np0", "bnxt_en", 2, BNXT, [0, 1]),
    ("eth0", "igb", 2, IGB, [1, 2]),
    ("ens4", "virtio_net", 2, VIRTIO, [1, 3]),
    ("eth5", "cxgb4", 2, CXGB4, [3, 4]),
    ("eth6", "sfc", 2, SFC, [0, 1]),
    ("eth7", "tg3", 2, TG3, [1, 2]),
    ("eth8", "qede", 2, QEDE, [0, 1]),
    ("eth10", "hns3", 2, HNS3, [1, 2]),
    ("eth9", "rvu-nicpf", 2, OCTEON, [0, 1]),
    # Renamed while up: the link's interrupt shows the new name, the queues' keep the old one.
    ("wan0", "ixgbe", 2, ["wan0", "eth0-TxRx-0", "eth0-TxRx-1"], [1, 2]),
    ("wan0", "igb", 2, ["wan0", "eth0-rx-0", "eth0-rx-1", "eth0-tx-0", "eth0-tx-1"], [1, 2]),
    ("wan0", "i40e", 2, I40E, [1, 2]),  # not its flow director
    ("wan0", "i40e", 1, ["i40e-eth2-TxRx-0", "i40e-0000:3c:00.0:fdir-TxRx-0"], [0]),
    ("wan0", "ice", 1, ["ice-0000:31:00.0:ctrl-TxRx-0", "ice-ens1-TxRx-0"], [1]),
    ("wan0", "ixgbe", 2, ["eth0-TxRx-0", "eth0-TxRx-1", "eth0-fdir-TxRx-0"], [0, 1]),
    ("wan0", "ixgbe", 1, ["eth0-TxRx-0", "eth0-fdir-TxRx-0"], []),  # either may be an interface
    # The name is that of another interface, or of none.
    ("eth0", "mana", 2, [f"mana_{each}@pci:7870:00:00.0" for each in ("hwc", "q0", "q1", "q2")],
     [1, 2]),
    ("ib0", "mlx4_en", 8, [f"mlx4-{number}@0000:04:00.0" for number in range(1, 17)], []),
    ("eth0", "gve", 2, [*map(GVE.format, range(4)), "gve-mgmnt@pci:0000:00:08.0"], [2, 3]),
    ("eth0", "gve", 1, [*map(OLD_GVE.format, range(4)), "eth%d-mgmnt"], [2]),
    ("eth0", "gve", 2, [*map(GVE.format, range(3))], []),
    ("enp5s0f4", "cxgb4", 2, ["0000:05:00.4-FWeventq", "enp5s0f4 (queue 0)", "enp5s0f4 (queue 1)"],
     [1, 2]),
    ("eth1", "cxgb", 2, [f"eth1 (queue {number})" for number in (4, 5)], [0, 1]),
    ("eth0", "be2net", 2, ["eth0-q0", "eth0-q1"], [0, 1]),
    ("eth0", "hinic", 2, ["eth0_rxq0", "eth0_txq0", "eth0_rxq1", "eth0_txq1"], [0, 2]),
    ("eth0", "hinic", 2, ["hinic_rxq0", "hinic_txq0", "hinic_rxq1", "hinic_txq1"], [0, 2]),
    ("eth0", "st_gmac", 2, ["eth0:mac", "eth0:rx-0", "eth0:rx-1", "eth0:tx-0"], [1, 2]),
    # A lone queue.
    ("eth0", "r8169", 1, ["eth0"], [0]),
    ("wan0", "r8169", 1, ["enp3s0"], [0]),
    ("eth0", "e1000e", 1, ["eth0-rx-0", "eth0-tx-0", "eth0"], [0]),
    ("eth0", "e1000", 1, ["uhci_hcd:usb1,eth0"], [0]),
    ("eth0", "odd", 1, ["odd-a", "odd-b"], []),
    ("eth0", "odd", 2, ["eth0"], []),
]  # fmt: skip


def received(
    said: list[str], port: str, driver: str, count: int, *, own: bool = True,
    buses: tuple[str, ...] = (), siblings: tuple[str, ...] = (),
) -> list[int]:  # fmt: skip
    named = Named(port, driver, frozenset(buses), frozenset(siblings))
    found = {
        irq.queue: irq.irq
        for irq in queue_irqs(dict(enumerate(said)), named, count, own=own)
        if irq.receives
    }
    assert sorted(found) == list(range(len(found)))
    return [found[queue] for queue in sorted(found) if queue < count]


@pytest.mark.parametrize(("port", "driver", "count", "sample", "receive"), SAMPLES)
def test_samples(port: str, driver: str, count: int, sample: list[str], receive: list[int]) -> None:
    assert received(sample, port, driver, count) == receive


XEN = ["vif0-q0-tx", "vif0-q0-rx", "vif0-q1-tx", "vif0-q1-rx", "vif1-q0-rx", "vif1-q1-rx"]


def test_of_all_the_machines_names_only_those_that_name_it() -> None:
    """Its device does not list its interrupts (no MSI)."""
    both = ["eth1-TxRx-0", "eth10-TxRx-0", "eth1-TxRx-1"]
    assert received(both, "eth1", "x", 2, own=False) == [0, 2]
    assert received(VIRTIO, "ens4", "virtio_net", 2, own=False) == []
    assert received(VIRTIO, "ens4", "virtio_net", 2, own=False, buses=("virtio1",))
    assert received(XEN, "eth0", "vif", 2, own=False, buses=("vif0",)) == [1, 3]
    assert received(IXGBE, "wan0", "ixgbe", 2, own=False) == []


def test_a_device_of_several_interfaces() -> None:
    """A renamed one has the names that are nobody else's; without a name it is not known whose."""
    assert received(CXGB4, "wan0", "cxgb4", 2, siblings=("eth5",)) == [1, 2]
    assert received(CXGB4, "wan0", "cxgb4", 2, siblings=("wan1",)) == []
    assert received(MLX4, "eth0", "mlx4_en", 2, siblings=("eth1",)) == []


@pytest.mark.parametrize(("seen", "proven"), [
    # Each second: what queues 0 and 1 received, how often interrupts 10, 11, 12 were delivered.
    ([], {}),
    ([((1, 0), (1, 0, 1)), ((0, 0), (0, 0, 1)), ((0, 1), (0, 1, 1)), ((0, 0), (0, 0, 1))] * 4,
     {0: 10, 1: 11}),
    ([((1, 0), (1, 0, 1)), ((0, 0), (0, 0, 1)), ((0, 1), (0, 1, 1)), ((0, 0), (0, 0, 1))] * 2,
     {}),  # too few
    ([((1, 1), (1, 1, 1))] * 9, {}),  # all are always busy
    ([((1, 0), (0, 0, 1))] * 9, {}),  # polled without an interrupt, beside one that never rests
    ([((1, 0), (1, 0, 0)), ((0, 0), (0, 0, 0)), ((0, 1), (1, 0, 0)), ((0, 0), (0, 0, 0))] * 4,
     {0: 10, 1: 10}),  # one for both
    ([((0, 0), (1, 0, 0)), ((1, 0), (0, 0, 0)), ((0, 0), (0, 0, 0)), ((0, 0), (0, 0, 0))] * 4,
     {0: 10}),  # a packet is counted after its interrupt
])  # fmt: skip
def test_an_interrupt_is_proven_by_counts(
    seen: list[tuple[tuple[int, ...], tuple[int, ...]]], proven: dict[int, int]
) -> None:
    proof, packets, deliveries = IrqProof(), {0: 0, 1: 0}, {10: 0, 11: 0, 12: 0}
    for came, delivered in [((0, 0), (0, 0, 0)), *seen]:
        packets = {queue: packets[queue] + more for queue, more in enumerate(came)}
        deliveries = {10 + at: deliveries[10 + at] + more for at, more in enumerate(delivered)}
        proof.look(packets, deliveries)
    assert proof.proven() == proven


ETH0 = Named("eth0", "x", frozenset(), frozenset())


def napis(*ids: int) -> list[Napi]:
    return [Napi(number, 2, None, None, False) for number in ids]


@pytest.mark.parametrize(
    ("sample", "ids", "found"),
    [
        # igb with more vectors than queues: first the receiving ones.
        (IGB, (8193, 8194, 8195, 8196), {0: 8193, 1: 8194}),
        (VIRTIO, (8209, 8210), {0: 8209, 1: 8210}),  # NAPIs that only send have no id
        (IGB, (7, 8, 9), {}),  # nothing adds up
        (IGB, (), {}),
    ],
)
def test_napis_in_the_order_of_interrupts(
    sample: list[str], ids: tuple[int, ...], found: dict[int, int]
) -> None:
    named = queue_irqs(dict(enumerate(sample)), ETH0, 2, own=True)
    assert {queue: napi.id for queue, napi in napi_of(napis(*ids), named, 2).items()} == found


def test_fewer_channels_than_interrupts_and_napis_of_them() -> None:
    """virtio_net keeps those of the channels that it does not use."""
    said = [f"virtio2-{way}.{queue}" for queue in range(4) for way in ("input", "output")]
    port = Named("eth0", "virtio_net", frozenset({"virtio2"}), frozenset())
    named = queue_irqs(dict(enumerate(said)), port, 2, own=True)
    found = napi_of(napis(*range(8193, 8201)), named, 2)
    assert {queue: found[queue].id for queue in range(2)} == {0: 8193, 1: 8195}


def test_napis_by_their_interrupts() -> None:
    """The kernel says the interrupt of each, in whatever order, and links no queue."""
    named = queue_irqs(dict(enumerate(IGB)), ETH0, 2, own=True)
    said = [Napi(id_, 2, irq, None, False) for id_, irq in ((7, 2), (8, 1), (9, 0))]
    assert {q: napi.id for q, napi in napi_of(said, named, 2).items()} == {0: 8, 1: 7}


def a_task(proc: Path, pid: int, comm: str, flags: int = PF_KTHREAD) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} ({comm}) S 2 0 0 0 -1 {flags} 0 0")


def test_only_the_kernels_threads_of_this_name(tmp_path: Path) -> None:
    a_task(tmp_path, 10, "napi/eth0-8193")
    a_task(tmp_path, 11, "napi/eth0-8194", flags=0)  # a process may call itself anything
    a_task(tmp_path, 12, "napi/eth01-819")
    a_task(tmp_path, 13, "napi/eth0-8195 )")
    a_task(tmp_path, 14, "napi/enp65s0f0np0-8196")
    (tmp_path / "15").mkdir()  # it ends while we look
    (tmp_path / "self").mkdir()
    assert napi_threads("eth0", tmp_path) == {8193: 10}
    assert napi_threads("enp65s0f0np0", tmp_path) == {8196: 14}
    a_task(tmp_path, 16, "napi/ens1f0-8193"[:15])  # which may be cut
    assert napi_threads("ens1f0", tmp_path) == {}
