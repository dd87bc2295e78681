# SPDX-License-Identifier: GPL-2.0-or-later
"""What surrounds the NICs: a made-up tree, and this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from atfnd.model import FoundInterface
from atfnd.observe.machine.machine import interfaces, machine

ALL = 0xFFFFFFFFFF
ROOT_ONLY_BPF = 1 << 21 | 1 << 12 | 1 << 23


def tree(root: Path, capabilities: int = ALL) -> Path:
    """Two ports of one adapter, one queue each on a third; and a bridge, which has no device."""
    for index, (name, driver, queues) in enumerate(
        (("eth0", "ixgbe", 8), ("eth1", "ixgbe", 8), ("eth2", "e1000e", 1), ("br0", None, 1))
    ):
        net = root / "sys/class/net" / name
        net.mkdir(parents=True)
        (net / "ifindex").write_text(f"{index + 2}\n")
        (net / "address").write_text(f"02:00:00:00:00:0{index}\n")
        for queue in range(queues):
            (net / f"queues/rx-{queue}").mkdir(parents=True)
        if driver is not None:
            (root / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
            (net / "device").mkdir()
            (net / "device/driver").symlink_to(root / f"sys/bus/pci/drivers/{driver}")
    (root / "proc/self").mkdir(parents=True)
    status = f"Name:\tx\nCapPrm:\t0\nCapEff:\t{capabilities:016x}\n"
    (root / "proc/self/status").write_text(status)
    return root


def test_every_interface_with_its_driver_and_queues(tmp_path: Path) -> None:
    root = tree(tmp_path)
    (root / "sys/class/net/bonding_masters").write_text("\n")  # no interface
    (root / "sys/class/net/br0/lower_eth1").mkdir()
    several = (FoundInterface("eth0", "ixgbe", 8), FoundInterface("eth1", "ixgbe", 8))
    bridge, one = FoundInterface("br0", None, 1, ("eth1",)), FoundInterface("eth2", "e1000e", 1)
    assert interfaces(root) == (bridge, *several, one)
    assert machine(root).interfaces == several
    assert interfaces(tmp_path / "nowhere") == ()


@pytest.mark.parametrize(
    ("held", "missing"),
    [
        (ALL, set()),
        (ROOT_ONLY_BPF, set()),
        (0, {"CAP_NET_ADMIN", "CAP_SYS_NICE", "CAP_BPF", "CAP_PERFMON"}),
        (1 << 12 | 1 << 39, {"CAP_SYS_NICE", "CAP_PERFMON"}),
    ],
)
def test_rights(tmp_path: Path, held: int, missing: set[str]) -> None:
    assert machine(tree(tmp_path, held)).missing_capabilities == missing


@pytest.mark.parametrize("mode", ["none", "integrity", "confidentiality"])
def test_lockdown(tmp_path: Path, mode: str) -> None:
    tree(tmp_path)
    assert machine(tmp_path).lockdown is None
    (tmp_path / "sys/kernel/security").mkdir(parents=True)
    text = "none integrity confidentiality\n".replace(mode, f"[{mode}]")
    (tmp_path / "sys/kernel/security/lockdown").write_text(text)
    assert machine(tmp_path).lockdown == mode


def test_busy_polling(tmp_path: Path) -> None:
    tree(tmp_path)
    assert machine(tmp_path).busy_polling == ()  # not the first network namespace
    core = tmp_path / "proc/sys/net/core"
    core.mkdir(parents=True)
    names = ["busy_poll", "busy_read"]
    for poll, read, on in ((0, 0, []), (50, 0, names[:1]), (50, 50, names)):
        (core / "busy_poll").write_text(f"{poll}\n")
        (core / "busy_read").write_text(f"{read}\n")
        assert machine(tmp_path).busy_polling == tuple(f"net.core.{name}" for name in on)
