# SPDX-License-Identifier: GPL-2.0-or-later
"""Which queue an interrupt serves, by what both count. Pure.

An interrupt is a queue's if it was delivered each time when packets came to the queue, rested at
some time when none came, and is the only one of which that is so. A packet is counted after its
interrupt, so the interrupt has until the look before to be delivered. Where all queues are busy all
the time, this proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["IrqProof"]

ENOUGH = 3  # times that packets came


class IrqProof:
    """Of some queues that may have any of some interrupts."""

    def __init__(self) -> None:
        self._looks: list[tuple[Mapping[int, int], Mapping[int, int]]] = []
        self._times: dict[int, int] = {}  # by queue: how often packets came
        self._fit: dict[int, frozenset[int]] = {}  # by queue: interrupts delivered each time
        self._rested: set[tuple[int, int]] = set()  # queue and interrupt: both at once

    def look(self, packets: Mapping[int, int], deliveries: Mapping[int, int]) -> None:
        """What each queue and each interrupt has counted by now."""
        self._looks = [*self._looks[-2:], (packets, deliveries)]
        if len(self._looks) < 3:
            return
        (_, earlier), (packets_before, before), _ = self._looks
        delivered = {irq for irq, n in deliveries.items() if n != earlier.get(irq, n)}
        resting = {irq for irq, n in deliveries.items() if n == before.get(irq)}
        for queue, count in packets.items():
            if count == packets_before.get(queue):
                self._rested |= {(queue, irq) for irq in resting}
            elif queue in packets_before:
                self._came(queue, frozenset(delivered))

    def _came(self, queue: int, delivered: frozenset[int]) -> None:
        fit = self._fit.get(queue, delivered) & delivered
        self._times[queue] = self._times.get(queue, 0) + 1 if fit else 0
        self._fit[queue] = fit
        if not fit:  # it was polled without an interrupt: what was seen before says nothing
            del self._fit[queue]

    def proven(self) -> dict[int, int]:
        """The interrupts by queue."""
        likely = {
            queue: [irq for irq in fit if (queue, irq) in self._rested]
            for queue, fit in self._fit.items()
            if self._times[queue] >= ENOUGH
        }
        return {queue: irqs[0] for queue, irqs in likely.items() if len(irqs) == 1}
