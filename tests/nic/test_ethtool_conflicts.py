# SPDX-License-Identifier: GPL-2.0-or-later
"""What works against steering is found, made for real where this kernel can, else as values."""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from atfnd.kernel.netlink.rtnl import Link
from atfnd.kernel.system.netns import open_socket
from atfnd.model import Conflict, Device, Queue
from atfnd.nic.ethtool.conflicts import found_conflicts
from atfnd.nic.ethtool.nic import EthtoolNic
from tests.nic.interfaces import Namespace, xdp_pass

AF_XDP, SOL_XDP, XDP_COPY = 44, 283, 2
XDP_RX_RING, XDP_UMEM_REG, XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING = 2, 4, 5, 6
FRAMES, FRAME_BYTES = 64, 2048


@contextmanager
def xdp_socket(net: Namespace, ifindex: int, queue: int) -> Iterator[None]:
    """An AF_XDP socket that owns a receive queue (Documentation/networking/af_xdp.rst)."""
    with (
        closing(open_socket(net.path, AF_XDP, socket.SOCK_RAW)) as made,
        mmap.mmap(-1, FRAMES * FRAME_BYTES) as memory,
    ):
        window = ctypes.c_char.from_buffer(memory)
        area = struct.pack("=QQII4x", ctypes.addressof(window), len(memory), FRAME_BYTES, 0)
        del window
        made.setsockopt(SOL_XDP, XDP_UMEM_REG, area)
        for ring in (XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING, XDP_RX_RING):
            made.setsockopt(SOL_XDP, ring, FRAMES)
        address = struct.pack("=HHIII", AF_XDP, XDP_COPY, ifindex, queue, 0)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.bind(made.fileno(), address, len(address)) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        yield


def test_an_xdp_socket(nic: EthtoolNic, net: Namespace) -> None:
    with xdp_socket(net, nic.ifindex, 1):
        assert nic.conflicts() == (
            Conflict(
                "an AF_XDP socket takes the packets of queue 1",
                "stop that application, or leave this NIC to it",
                blocks=True,
            ),
        )


@pytest.mark.parametrize(
    ("mode", "how"),
    [("xdp", "in the driver"), ("xdpgeneric", "generic")],
    ids=["driver", "generic"],
)
def test_an_xdp_program(
    nic: EthtoolNic, net: Namespace, tmp_path: Path, mode: str, how: str
) -> None:
    net.ip(f"link set dev v0 {mode} obj {xdp_pass(tmp_path)} sec xdp")
    (conflict,) = nic.conflicts()
    assert conflict.what.startswith(f"an XDP program ({how}) sees every packet")
    assert not conflict.blocks
    net.ip(f"link set dev v0 {mode} off")
    assert nic.conflicts() == ()


def test_rps(nic: EthtoolNic) -> None:
    assert nic.conflicts() == ()
    nic.write_setting("rps-cpus:1", "0")
    nic.write_setting("rps-cpus:2", "0")
    assert nic.conflicts() == (
        Conflict(
            "RPS hands packets of queue 1-2 to other CPUs",
            "echo 0 | tee /sys/class/net/v0/queues/rx-*/rps_cpus",
            blocks=False,
        ),
    )


def test_one_queue(nic: EthtoolNic, net: Namespace) -> None:
    net.ethtool("-L v0 rx 1 tx 1")
    (conflict,) = nic.conflicts()
    assert conflict.what == "packets have one receive queue to come in by"
    assert conflict.advice == "ethtool -L v0 rx 4"


def found(settings: dict[str, str], ntuple: bool | None = True, arfs: bool = True) -> list[str]:
    """Of a NIC of which this machine has none: i40e with two queues."""
    conflicts = found_conflicts(
        "eth0",
        Link("eth0", None),
        None,
        (),
        tuple(Queue(index, 8193 + index, None, index, False, None) for index in range(2)),
        Device(driver="i40e", ntuple=ntuple),
        settings,
        "flow-director-atr",
        arfs,
    )
    assert not any(conflict.blocks for conflict in conflicts)
    assert all("atfnd turns it off while eth0 is armed" in c.advice for c in conflicts)
    return [conflict.what for conflict in conflicts]


def test_atr() -> None:
    flag = "priv:flow-director-atr"
    assert found({flag: "on"}) == ["i40e steers TCP flows by what they send (flow-director-atr)"]
    assert found({flag: "off"}) == []
    assert found({}) == []


def test_accelerated_rfs_needs_all_four() -> None:
    on = {"rps-flow-cnt:0": "2048", "rps-flow-cnt:1": "2048", "rps-sock-flow-entries": "4096"}
    assert found(on) == ["accelerated RFS steers flows of queue 0-1 with filters, too"]
    assert found(on, ntuple=False) == []
    assert found(on, arfs=False) == []
    assert found(on | {"rps-sock-flow-entries": "0"}) == []
    assert found(on | {"rps-flow-cnt:0": "0", "rps-flow-cnt:1": "0"}) == []
