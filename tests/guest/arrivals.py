# SPDX-License-Identifier: GPL-2.0-or-later
"""Where a flow's packets come in, told by what we did not write: `ethtool -S`, /proc/interrupts."""

from __future__ import annotations

import re
from pathlib import Path

from tests.applications import Application
from tests.bed import Bed
from tests.guest.simlab import interrupts, statistics
from tests.wait import until

__all__ = ["affinities", "arrives_only_on", "comes_to", "irq_of"]

PACKETS = 50


def irq_of(bed: Bed, queue: int) -> int:
    irq = bed.lab.nic.queues()[queue].irq
    assert irq is not None
    return irq


def affinities(bed: Bed) -> list[str]:
    """Which CPUs each queue's interrupt may run on, in the queues' order."""
    irqs = [irq_of(bed, queue.index) for queue in bed.lab.nic.queues()]
    return [Path(f"/proc/irq/{irq}/smp_affinity_list").read_text().strip() for irq in irqs]


def received(bed: Bed) -> dict[int, int]:
    """Packets of each queue; where the driver does not count them for ethtool, as virtio_net since
    6.10, interrupts."""
    counted = statistics(bed.lab.nic.name)
    found = {re.fullmatch(r"rx_queue_(\d+)_packets", name): name for name in counted}
    packets = {int(match[1]): counted[name] for match, name in found.items() if match}
    queues = bed.lab.nic.queues()
    return packets or {queue.index: sum(interrupts(queue.irq)) for queue in queues if queue.irq}


def arrives_on(bed: Bed, app: Application) -> dict[int, set[int]]:
    """The queues that get the flow's next packets, and the CPUs that each one's interrupt runs on.

    Nothing else sends but for an ARP or ND: a queue with less than a tenth is not the flow's. It
    has two when it is moved meanwhile.
    """
    queues = bed.lab.nic.queues()
    before = received(bed)
    fired = {queue.index: interrupts(queue.irq) for queue in queues if queue.irq is not None}

    def grown() -> dict[int, int]:
        return {index: count - before[index] for index, count in received(bed).items()}

    until(lambda: sum(grown().values()) >= PACKETS, f"{app.key} gets packets", 60)
    packets = grown()
    found = {}
    for queue in (queue for queue in packets if packets[queue] > 0.1 * sum(packets.values())):
        now = interrupts(irq_of(bed, queue))
        found[queue] = {cpu for cpu, count in enumerate(now) if count > fired[queue][cpu]}
    return found


def arrives_only_on(bed: Bed, app: Application, queue: int, on: int | None = None) -> None:
    """AssertionError unless its packets come to arrive on this queue, and that on its CPU alone, or
    on CPU `on`."""
    cpu = app.cpu if on is None else on
    seen: list[dict[int, set[int]]] = []

    def there() -> bool:
        seen[:] = [arrives_on(bed, app)]
        return seen == [{queue: {cpu}}]

    try:
        until(there, f"{app.key} arrives on queue {queue} and CPU {cpu} only", 60)
    except AssertionError as late:
        raise AssertionError(f"{late}; it arrives on {seen}; {_reported(bed, app)}") from late


def comes_to(bed: Bed, app: Application, cpu: int) -> None:
    """Its packets come on this CPU, by `ethtool -S` and the interrupts."""
    queue = next(queue.index for queue in bed.lab.nic.queues() if queue.cpu == cpu)
    arrives_only_on(bed, app, queue, cpu)


def _reported(bed: Bed, app: Application) -> str:
    """What the daemon says of the flow, of its queues, and what it did last."""
    row, queues = bed.daemon.flow(app.key), bed.daemon.get("/v1/queues")["queues"]
    return f"its row is {row}; queues: {queues}; last events: {bed.daemon.events()[-40:]}"
