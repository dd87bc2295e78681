# SPDX-License-Identifier: GPL-2.0-or-later
"""EthtoolNic on simnic: what the emulated NICs have not. In the guest, with `--nic nvme:2`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from atfnd.kernel.ethtool.changes import ethtool_changes
from atfnd.model import FlowKey, Match, Queue, Rss
from atfnd.model.nic import RSS_KEY
from atfnd.model.toeplitz import rss_queue, symmetric_key
from atfnd.nic.ethtool.nic import EthtoolNic
from tests.guest.settings import threads_by_queue
from tests.guest.simlab import NAME, ethtool, interrupts, sh
from tests.guest.wired import FLOW, Wired, simnic
from tests.wait import until

__all__: list[str] = []

SECOND_GUEST = ["--kernel", "newest", "--nic", "every"]
CPUS = range(4)


Bed = tuple[Wired, EthtoolNic]


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    """Its interrupts are MSI-X of a PCI function."""
    with simnic(pairs=0, queues=4, max_queues=8, node=1) as made:
        yield made


def all_to(nic: EthtoolNic, queue: int) -> None:
    rss = nic.rss()
    assert rss is not None
    nic.set_rss(Rss(rss.key, (queue,) * len(rss.table)))


def comes_by(port: Wired, queue: Queue) -> None:
    until(lambda: port.napi_id() == queue.napi_id, f"packets come by queue {queue.index}")


def test_the_chain(bed: Bed) -> None:
    port, nic = bed
    for queue in nic.queues():
        irq = queue.irq
        assert irq is not None
        all_to(nic, queue.index)
        nic.set_queue_cpu(queue.index, 3 - queue.index)
        before = sum(interrupts(irq))
        comes_by(port, queue)
        until(lambda at=queue.index: port.cpu() == 3 - at, "packets come on its CPU")  # type: ignore[misc]
        assert sum(interrupts(irq)) > before
        name = Path(f"/sys/kernel/irq/{irq}/actions").read_text().strip()
        assert re.fullmatch(rf".*-{queue.index}", name)
    assert [queue.cpu for queue in nic.queues()] == [3, 2, 1, 0]
    nic.write_setting("rss", "default")


def test_the_queue_rss_gives_a_flow(bed: Bed) -> None:
    """Toeplitz over its key and table, against where the packets come."""
    port, nic = bed
    for key in (bytes(range(40)), bytes(range(200, 240))):
        rss = nic.rss()
        assert rss is not None
        nic.set_rss(Rss(key, rss.table))
        reported = nic.rss()
        assert reported is not None
        assert (reported.key, reported.table, reported.another) == (key, rss.table, None)
        assert ":".join(f"{byte:02x}" for byte in key) in ethtool("-x", NAME)
        queue = rss_queue(reported, FLOW)
        assert queue is not None
        comes_by(port, nic.queues()[queue])


def test_a_symmetric_key_brings_the_reply_to_the_same_queue(bed: Bed) -> None:
    port, nic = bed
    before = nic.settings()[RSS_KEY]
    key = symmetric_key(len(before) // 2)
    nic.write_setting(RSS_KEY, key.hex())
    assert nic.setting(RSS_KEY) == nic.settings()[RSS_KEY] == key.hex()
    reported = nic.rss()
    assert reported is not None
    there, here = (FLOW.local, FLOW.local_port), (FLOW.remote, FLOW.remote_port)
    queue = rss_queue(reported, FLOW)
    assert queue == rss_queue(reported, FlowKey(FLOW.protocol, *here, *there))
    assert queue is not None
    comes_by(port, nic.queues()[queue])
    with pytest.raises(OSError, match="Invalid argument"):
        nic.write_setting(RSS_KEY, key.hex() + "00")
    nic.write_setting(RSS_KEY, before)
    assert nic.settings()[RSS_KEY] == before


def test_a_reset_table_lets_channels_be_reduced(bed: Bed) -> None:
    _, nic = bed
    nic.write_setting("rss", " ".join("3" for _ in range(len((nic.rss() or Rss(b"", ())).table))))
    with pytest.raises(AssertionError, match="Invalid argument"):
        ethtool("-L", NAME, "combined", 2)
    nic.write_setting("rss", "default")
    ethtool("-L", NAME, "combined", 2)
    assert len(nic.queues()) == 2
    assert nic.settings()["rss"] == "default"
    ethtool("-L", NAME, "combined", 4)
    assert len(nic.queues()) == 4


def test_contexts_are_counted(bed: Bed) -> None:
    _, nic = bed
    assert nic.device().rss_contexts == 0
    said = ethtool("-X", NAME, "context", "new", "equal", 2)
    assert nic.device().rss_contexts == 1
    number = re.search(r"\d+", said)
    assert number is not None
    ethtool("-X", NAME, "context", number[0], "delete")
    assert nic.device().rss_contexts == 0


def test_what_ethtool_shows(bed: Bed) -> None:
    _, nic = bed
    ethtool("-G", NAME, "rx", 512)
    device = nic.device()
    assert (device.driver, device.channels, device.channels_max) == ("simnic", 4, 8)
    rings = re.findall(r"^RX:\s+(\d+)", ethtool("-g", NAME), re.MULTILINE)
    assert [device.ring_max, device.ring_size] == list(map(int, rings))
    assert device.ring_size == nic.ring_size() == 512
    assert device.ntuple is True
    node = int(Path(f"/sys/class/net/{NAME}/device/numa_node").read_text())
    assert device.node == (node if node >= 0 else None)
    ethtool("-G", NAME, "rx", 256)


@pytest.mark.parametrize(
    "command",
    [("-L", "combined", 3), ("-G", "rx", 512), ("-K", "rxhash", "off"), ("-C", "rx-usecs", 20)],
    ids=lambda command: str(command[0]),
)
def test_an_admin_is_heard(bed: Bed, command: tuple[object, ...]) -> None:
    _, nic = bed
    with closing(ethtool_changes(None)) as changes:
        option, *rest = command
        ethtool(option, NAME, *rest)
        assert changes.drain() == {nic.ifindex}
    for undone in (("-L", "combined", 4), ("-G", "rx", 256), ("-K", "rxhash", "on")):
        option, *rest = undone
        ethtool(option, NAME, *rest)


def test_counters_by_queue(bed: Bed) -> None:
    port, nic = bed
    all_to(nic, 2)
    before = nic.stats()
    comes_by(port, nic.queues()[2])
    after = nic.stats()
    gained = [
        (b.packets or 0) - (a.packets or 0)
        for a, b in zip(before.queues, after.queues, strict=True)
    ]
    assert gained[2] >= 20
    nic.write_setting("rss", "default")


def test_drops_of_a_full_ring(bed: Bed) -> None:
    port, nic = bed
    ethtool("-G", NAME, "rx", 8)
    before = nic.stats().ring_drops or 0

    def flooded() -> bool:
        for _ in range(2000):
            port.far.send(bytes(64))
        return (nic.stats().ring_drops or 0) > before

    until(flooded, "the ring overflows")
    ethtool("-G", NAME, "rx", 256)


def test_accelerated_rfs_is_found(bed: Bed) -> None:
    _, nic = bed
    assert nic.conflicts() == ()
    nic.write_setting("rps-sock-flow-entries", "1024")
    nic.write_setting("rps-flow-cnt:1", "256")
    (conflict,) = nic.conflicts()
    assert conflict.what == "accelerated RFS steers flows of queue 1 with filters, too"
    nic.write_setting("rps-flow-cnt:1", "0")
    nic.write_setting("rps-sock-flow-entries", "0")
    assert nic.conflicts() == ()


def test_a_threaded_napi(bed: Bed) -> None:
    """Its thread decides where packets are handled; the interrupt stays where it is."""
    port, nic = bed
    all_to(nic, 1)
    nic.set_queue_cpu(1, 0)
    threaded = Path(f"/sys/class/net/{NAME}/threaded")
    threaded.write_text("1")
    queue = nic.queues()[1]
    assert queue.threaded
    assert queue.pid is not None
    for cpu in CPUS:
        nic.set_queue_cpu(1, cpu)
        assert nic.queues()[1].cpu == cpu
        until(lambda at=cpu: port.cpu() == at, f"packets come on CPU {cpu}")  # type: ignore[misc]
        assert Path(f"/proc/irq/{queue.irq}/smp_affinity_list").read_text().strip() == "0"
    threaded.write_text("0")
    assert nic.queues()[1].cpu == 0
    nic.write_setting("rss", "default")


def test_a_borrowed_thread_stays_where_the_interrupt_goes(bed: Bed) -> None:
    """`queue-cpu` goes on to be the interrupt's, and who moves the queue moves both."""
    port, nic = bed
    all_to(nic, 1)
    nic.set_queue_cpu(1, 0)
    assert nic.setting("threaded") == "0"
    nic.write_setting("threaded", "1")
    for cpu in CPUS:
        nic.set_queue_cpu(1, cpu)
        queue = nic.queues()[1]
        assert (queue.threaded, queue.borrowed, queue.cpu) == (True, True, cpu)
        assert nic.setting("queue-cpu:1") == str(cpu)
        assert queue.pid is not None
        assert os.sched_getaffinity(queue.pid) == {cpu}
        assert Path(f"/proc/irq/{queue.irq}/smp_affinity_list").read_text().strip() == str(cpu)
        until(lambda at=cpu: port.cpu() == at, f"packets come on CPU {cpu}")  # type: ignore[misc]
    nic.write_setting("threaded", "0")
    queue, last = nic.queues()[1], CPUS[-1]
    assert (queue.threaded, queue.borrowed) == (False, False)
    # The interrupt goes to its new CPU when it is raised the next time (irq_move_irq()).
    until(lambda: (port.cpu(), nic.queues()[1].cpu) == (last, last), "so does the interrupt")
    Path(f"/sys/class/net/{NAME}/threaded").write_text("1")  # an operator's own
    assert not nic.queues()[1].borrowed
    Path(f"/sys/class/net/{NAME}/threaded").write_text("0")
    nic.write_setting("rss", "default")


def test_what_was_probed(bed: Bed) -> None:
    _, nic = bed
    before = dict(nic.settings())
    caps = nic.probe()
    assert caps.probed
    assert (caps.filters, caps.rss_table, caps.queue_cpu) == (True, True, True)
    assert nic.filters() == []
    assert nic.settings() in (before, threads_by_queue(before))


def test_every_setting_can_be_written(bed: Bed) -> None:
    _, nic = bed
    before = dict(nic.settings())
    for name, value in before.items():
        nic.write_setting(name, value)
    assert nic.settings() == before


def test_renamed(bed: Bed) -> None:
    """Filters go on by its new name; a stranger of its old one is left alone."""
    port, nic = bed
    sh("ip", "link", "set", NAME, "down")
    sh("ip", "link", "set", NAME, "name", "wan0")
    try:
        sh("ip", "link", "set", "wan0", "up")
        sh("ip", "link", "add", NAME, "type", "veth", "peer", "name", "sim9")
        flow = FLOW._replace(remote_port=7003)
        location = nic.insert(Match.of(flow), 3)
        assert nic.filters() == [nic.filter(location)]
        assert f"Filter: {location}" in ethtool("-n", "wan0")
        nic.delete(location)
        assert "Filter:" not in ethtool("-n", "wan0")
        assert (nic.name, len(nic.queues())) == (NAME, 4)
        sh("ip", "link", "del", NAME)
    finally:
        sh("ip", "link", "set", "wan0", "down")
        sh("ip", "link", "set", "wan0", "name", NAME)
        sh("ip", "link", "set", NAME, "up")
    until(port.napi_id, "packets come again")
