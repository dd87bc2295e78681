# SPDX-License-Identifier: GPL-2.0-or-later
"""EthtoolNic on simnic: what the emulated NICs have not."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from atfnd.model import FlowKey, Match, Queue, Rss
from atfnd.model.nic import RSS_KEY
from atfnd.model.toeplitz import rss_queue, symmetric_key
from atfnd.nic import Nic
from tests.guest.simlab import NAME, a_simlab, ethtool, interrupts, sh
from tests.guest.wired import FLOW, Wired
from tests.wait import until

SECOND_GUEST = ["--kernel", "newest", "--nic", "every"]
CPUS = range(4)

Bed = tuple[Wired, Nic]


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    """Its interrupts are MSI-X of a PCI function."""
    with a_simlab(pairs=0, queues=4, max_queues=8, node=1) as lab:
        yield Wired(lab), lab.nic


def all_to(nic: Nic, queue: int) -> None:
    rss = nic.rss()
    assert rss is not None
    nic.set_rss(Rss(rss.key, (queue,) * len(rss.table)))


def comes_by(port: Wired, queue: Queue) -> None:
    until(lambda: port.napi_id() == queue.napi_id, f"packets come by queue {queue.index}")


def test_64_queues_of_interrupts_that_cannot_move() -> None:
    with a_simlab(queues=64, max_queues=64, node=1) as lab:
        port, nic = Wired(lab), lab.nic
        assert nic.device().node == 1
        queues = nic.queues()
        assert len({queue.napi_id for queue in queues} - {None}) == 64
        assert len({queue.irq for queue in queues} - {None}) == 64
        assert len(nic.stats().queues) == 64
        all_to(nic, 63)
        comes_by(port, queues[63])


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
    """Toeplitz over its key and table, against where the packets come; by a symmetric key the reply
    comes to the same queue."""
    port, nic = bed
    before = nic.settings()[RSS_KEY]
    symmetric = symmetric_key(len(before) // 2)
    for key in (bytes(range(40)), bytes(range(200, 240)), symmetric):
        nic.write_setting(RSS_KEY, key.hex())
        assert nic.setting(RSS_KEY) == nic.settings()[RSS_KEY] == key.hex()
        reported = nic.rss()
        assert reported is not None
        assert (reported.key, reported.another) == (key, None)
        assert ":".join(f"{byte:02x}" for byte in key) in ethtool("-x", NAME)
        queue = rss_queue(reported, FLOW)
        assert queue is not None
        comes_by(port, nic.queues()[queue])
        reply = FlowKey(FLOW.protocol, FLOW.remote, FLOW.remote_port, FLOW.local, FLOW.local_port)
        assert key != symmetric or rss_queue(reported, reply) == queue
    with pytest.raises(OSError, match="Invalid argument"):
        nic.write_setting(RSS_KEY, symmetric.hex() + "00")
    nic.write_setting(RSS_KEY, before)
    assert nic.settings()[RSS_KEY] == before


def test_contexts_are_counted(bed: Bed) -> None:
    _, nic = bed
    assert (nic.device().node, nic.device().rss_contexts) == (1, 0)
    said = ethtool("-X", NAME, "context", "new", "equal", 2)
    assert nic.device().rss_contexts == 1
    number = re.search(r"\d+", said)
    assert number is not None
    ethtool("-X", NAME, "context", number[0], "delete")
    assert nic.device().rss_contexts == 0


@pytest.mark.usefixtures("own_affinity")
def test_drops_of_a_full_ring(bed: Bed) -> None:
    """On its own CPU an interrupt comes between two frames, and the ring is emptied."""
    port, nic = bed
    os.sched_setaffinity(0, {*CPUS} - {nic.queues()[0].cpu})
    ethtool("-G", NAME, "rx", 8)
    assert nic.device().ring_size == nic.ring_size() == 8
    before = nic.stats().ring_drops or 0

    def flooded() -> bool:
        for _ in range(2000):
            port.far.send(bytes(64))
        return (nic.stats().ring_drops or 0) > before

    until(flooded, "the ring overflows")
    ethtool("-G", NAME, "rx", 256)


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
