# SPDX-License-Identifier: GPL-2.0-or-later
"""The interrupts of a NIC's queues, read from a tree of files: sysfs and /proc of a device that no
test machine has."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from atfnd.kernel.interface import DriverInfo, Interface
from atfnd.kernel.interrupts import irq
from atfnd.nic.ethtool import queues as queues_module
from atfnd.nic.ethtool.queues import Queues


class Device(Interface):
    """A PCI device of two queues, up, on a kernel that says nothing of queues."""

    def __init__(self, root: Path, irqs: dict[int, str]) -> None:
        self.root, self.called, self.ifindex = root, "eth0", 2
        for number, name in irqs.items():
            self.request(number, name)
            (root / f"irq/{number}").mkdir(parents=True)
            (root / f"irq/{number}/smp_affinity_list").write_text(f"{number}\n")
            self.deliver(number, 0)
        self.irqs = [str(each) for each in irqs]

    def request(self, number: int, name: str) -> None:
        (self.root / f"actions/{number}").mkdir(parents=True, exist_ok=True)
        (self.root / f"actions/{number}/actions").write_text(f"{name}\n")

    def deliver(self, number: int, count: int) -> None:
        by_cpu = f"{count // 2},{count - count // 2}\n"
        (self.root / f"actions/{number}/per_cpu_count").write_text(by_cpu)

    def name(self) -> str:
        return self.called

    def up(self) -> bool:
        return True

    def driver(self) -> DriverInfo:
        return DriverInfo("odd", "0000:3b:00.0")

    def device(self) -> str:
        return "0000:3b:00.0"

    def read(self, path: str) -> str | None:
        return None

    def list(self, path: str = "") -> list[str]:
        here = {"": ["device"], "queues": ["rx-0", "rx-1"], "device/msi_irqs": self.irqs}
        return here.get(path, [])


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(irq, "IRQS", str(tmp_path / "irq"))
    monkeypatch.setattr(irq, "ACTIONS", str(tmp_path / "actions"))
    monkeypatch.setattr(queues_module, "_LOOK_NS", 0)
    return tmp_path


def irqs(queues: Queues) -> list[int | None]:
    return [queue.irq for queue in queues.read()]


def test_names_are_read_anew_after_a_rename(root: Path) -> None:
    """While it is up the link's interrupt alone is renamed; the next time it comes up, all are."""
    device = Device(root, {4: "eth0", 5: "eth0-TxRx-0", 6: "eth0-TxRx-1"})
    with closing(Queues(device, None)) as queues:
        assert irqs(queues) == [5, 6]
        device.called = "wan0"
        device.request(4, "wan0")
        assert irqs(queues) == [5, 6]
        device.called = "lan0"
        for number, name in enumerate(("lan0-TxRx-1", "lan0-TxRx-0", "lan0"), 4):
            device.request(number, name)
        assert irqs(queues) == [5, 4]


def test_names_that_do_not_tell_are_no_guess(root: Path) -> None:
    """Until the counters have shown which interrupt moves with which queue."""
    device = Device(root, {4: "odd-b", 5: "odd-c", 6: "odd-a"})
    received, delivered = {0: 0, 1: 0}, {4: 0, 5: 0, 6: 0}
    with closing(Queues(device, None, lambda: dict(received))) as queues:
        first = queues.read()[0]
        assert (first.irq, first.cpu) == (None, None)
        assert first.loose == "served by an interrupt that is not known"
        for queue, number in [(0, 6), (None, 5), (None, None), (1, 4), (None, 5), (None, None)] * 4:
            if queue is not None:
                received[queue] += 9
            if number is not None:
                delivered[number] += 1
                device.deliver(number, delivered[number])
            assert irqs(queues) in ([None, None], [None, 4], [6, None], [6, 4])
        assert [(each.irq, each.cpu) for each in queues.read()] == [(6, 6), (4, 4)]
