# SPDX-License-Identifier: GPL-2.0-or-later
"""A driver's counters by queue: names as `ethtool -S` shows them."""

from __future__ import annotations

import pytest

from atfnd.kernel.ethtool.driver_stats import places

# Names, and where the packets and bytes of queue 0 are among them.
SAMPLES: dict[str, tuple[list[str], tuple[int | None, int | None]]] = {
    "ixgbe": (
        ["rx_packets", "tx_queue_0_packets", "rx_queue_0_packets", "rx_queue_0_bytes"],
        (2, 3),
    ),
    "i40e": (["rx_bytes", "tx-0.packets", "rx-0.packets", "rx-0.bytes"], (2, 3)),
    "mlx5": (["rx_packets", "ch0_poll", "rx0_packets", "rx0_bytes", "rx0_csum_none"], (2, 3)),
    "ena": (["tx_timeout", "queue_0_tx_cnt", "queue_0_rx_cnt", "queue_0_rx_bytes"], (2, 3)),
    "bnxt": (["[0]: tx_ucast_packets", "[0]: rx_ucast_packets", "[0]: rx_ucast_bytes"], (1, 2)),
    "octeontx2": (["rx_bytes", "rxq0: bytes", "rxq0: frames", "txq0: bytes"], (2, 1)),
    "hns3": (["rx_bytes", "txq0_packets", "rxq0_packets", "rxq0_bytes"], (2, 3)),
    "gve": (["rx_packets", "tx_posted_desc[0]", "rx_packets[0]", "rx_bytes[0]"], (2, 3)),
    "qede": (["rx_ucast_bytes", "0: xmit_pkts", "0: rcv_pkts"], (2, None)),
}


@pytest.mark.parametrize("driver", SAMPLES)
def test_samples(driver: str) -> None:
    names, where = SAMPLES[driver]
    assert places(names) == {0: where}


def test_queues_are_told_apart() -> None:
    names = [f"rx_queue_{queue}_{what}" for queue in range(12) for what in ("packets", "bytes")]
    assert places(names) == {queue: (2 * queue, 2 * queue + 1) for queue in range(12)}


def test_totals_and_what_is_no_packet_count_are_left_out() -> None:
    assert places(["rx_packets", "rx_bytes", "rx_queue_0_xdp_packets", "rx0_drops"]) == {}
