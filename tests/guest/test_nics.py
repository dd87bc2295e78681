# SPDX-License-Identifier: GPL-2.0-or-later
"""The NICs that QEMU emulates: their drivers, queues, interrupts and nodes; two of a kind meet."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from atfnd.kernel.system.netns import open_socket, path_of

IGB = ("igb", 4, 1, [r"{nic}-rx-{queue}", r"{nic}-tx-{queue}"])
VIRTIO = ("virtio_net", 4, 0, [r"virtio\d+-input\.{queue}", r"virtio\d+-output\.{queue}"])
VMXNET3 = ("vmxnet3", 4, None, [r"{nic}-rxtx-{queue}"])
E1000E = ("e1000e", 1, None, [r"{nic}-rx-{queue}", r"{nic}-tx-{queue}"])
PAIRS = {"eth0": IGB, "eth2": VIRTIO, "eth4": VMXNET3, "eth6": E1000E}


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@pytest.fixture(params=PAIRS, scope="module")
def nic(request: pytest.FixtureRequest) -> Iterator[str]:
    """The first of a pair, up (some ask for interrupts only then); the other is in `far`."""
    name: str = request.param
    other = f"eth{int(name[3:]) + 1}"
    with ExitStack() as undo:
        ip("netns", "add", "far")
        undo.callback(ip, "netns", "del", "far")
        ip("link", "set", other, "netns", "far")
        undo.callback(ip, "-n", "far", "link", "set", other, "netns", "1")
        for where, link, address in ((), name, "10.8.0.1"), (("-n", "far"), other, "10.8.0.2"):
            ip(*where, "addr", "add", f"{address}/24", "dev", link)
            ip(*where, "link", "set", link, "up")
        undo.callback(ip, "addr", "flush", "dev", name)
        yield name


def test_driver_queues_and_node(nic: str) -> None:
    driver, queues, node, _ = PAIRS[nic]
    device = Path("/sys/class/net", nic, "device")
    assert (device / "driver").resolve().name == driver
    assert len(list(Path("/sys/class/net", nic, "queues").glob("rx-*"))) == queues
    function = device.resolve() if (device / "numa_node").exists() else device.resolve().parent
    assert int((function / "numa_node").read_text()) == (-1 if node is None else node)


def test_every_queue_has_its_interrupt(nic: str) -> None:
    _, queues, _, names = PAIRS[nic]
    function = re.search(
        r"[0-9a-f:.]+(?=/(net|virtio\d+/net)/)", os.path.realpath(f"/sys/class/net/{nic}")
    )
    assert function is not None
    table = Path("/proc/interrupts").read_text().splitlines()
    mine = [line.split() for line in table if f"-{function[0]}" in line]
    for queue in range(queues):
        for name in names:
            wanted = re.compile(name.format(nic=nic, queue=queue))
            irqs = [words[0].rstrip(":") for words in mine if wanted.fullmatch(words[-1])]
            assert len(irqs) == 1, (nic, name, queue, table)
            affinity = Path("/proc/irq", irqs[0], "smp_affinity_list")
            affinity.write_text("2")
            assert affinity.read_text().strip() == "2"


def test_two_of_a_kind_meet(nic: str) -> None:
    with (
        open_socket(path_of("far"), socket.AF_INET, socket.SOCK_STREAM) as listener,
        socket.socket() as client,
    ):
        listener.bind(("10.8.0.2", 9))
        listener.listen()
        client.settimeout(60)
        client.connect(("10.8.0.2", 9))
        listener.accept()[0].close()
        assert client.recv(1) == b""
