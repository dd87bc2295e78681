# SPDX-License-Identifier: GPL-2.0-or-later
"""Which queue an interrupt serves, by the name its driver requested it under, or by what both
count. Pure.

There is no rule for these names but habit. Known ones, from drivers/net: `eth0-TxRx-0` (ixgbe, igb,
igc, bnxt), `eth0-rx-0` (igb, e1000e, enic), `i40e-eth0-TxRx-0` (i40e, ice, iavf, idpf),
`mlx5_comp0@pci:0000:3b:00.0`, `mlx4-1@0000:81:00.0`, `mana_q0@pci:7870:00:00.0`, `eth0-Tx-Rx-0`
(ena), `virtio0-input.0`, `eth0-rxtx-0` (vmxnet3, octeontx2), `eth0-fp-0` (qede), `eth0-Rx0` and
`eth0 (queue 0)` (cxgb4), `eth0-0` (sfc, atlantic), `eth0-q0` (be2net), `eth0_rxq0` (hinic),
`hns3-0000:7d:00.0-TxRx-0`, `vif0-q0-rx` (xen-netfront). gve numbers notification blocks
(`gve-ntfy-blk0@pci:...`, `eth%d-ntfy-block.0`): those that send are the first half.

A name of an interface in them is the one it had when it came up. What stands beside it may be a
helper's (`i40e-0000:3c:00.0:fdir-TxRx-0`). So a set of names counts only if it is whole, and the
only one that fits; else nothing is known by names, and `IrqProof` finds out.

By counts, an interrupt is a queue's if it was delivered each time when packets came to the queue,
rested at some time when none came, and is the only one of which that is so. A packet is counted
after its interrupt, so the interrupt has until the look before to be delivered. Where all queues
are busy all the time, this proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["IrqProof", "Named", "QueueIrq", "queue_irqs"]

_BUS = r"(?:@(?P<bus>.+))?$"
_ROLES = r"(?:tx-?rx|rx-?tx|fp|comp|queue|qp|q|(?P<receives>rxq?|input)|(?P<sends>txq?|output))"
_BLOCK = re.compile(rf"(?P<owner>.+)-ntfy-bl(?:oc)?k\.?(?P<number>\d+){_BUS}")
_FORMS = (
    _BLOCK,
    re.compile(r"(?P<owner>.+)-q(?P<number>\d+)-(?:(?P<receives>rx)|(?P<sends>tx))$"),
    re.compile(rf"(?P<owner>.*?)(?:^|[-_.: (]+){_ROLES}[-_. ]?(?P<number>\d+)\)?{_BUS}", re.I),
    re.compile(rf"(?P<owner>.+)-(?P<number>\d+){_BUS}"),
)
_PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class QueueIrq(NamedTuple):
    """Interrupt `irq` is the one of receive (or send) queue `queue`."""

    irq: int
    queue: int
    receives: bool


class Named(NamedTuple):
    """An interface, as names of interrupts may mean it."""

    name: str
    driver: str
    buses: frozenset[str]  # how its device is called
    siblings: frozenset[str]  # other interfaces of the same device


class _Set(NamedTuple):
    """Names that differ in nothing but role and number."""

    owner: str  # without the driver
    bus: str | None
    blocks: bool


def queue_irqs(names: Mapping[int, str], port: Named, count: int, *, own: bool) -> list[QueueIrq]:
    """The interrupts of its `count` receive queues, and of those that send, in number order. A NIC
    with fewer channels than before may keep the interrupts of the others (virtio_net), and their
    NAPIs: they are here, too. Empty: the names do not tell. `own`: `names` are all its device's, so
    that they need not name the interface."""
    sets: dict[_Set, list[QueueIrq]] = {}
    for irq, text in sorted(names.items()):
        for name in text.split(","):  # a shared interrupt has several
            if found := _parsed(name, port.driver):
                which, number, receives = found
                sets.setdefault(which, []).append(QueueIrq(irq, number, receives))
    whole = {
        which: numbered for which, each in sets.items() if (numbered := _whole(which, each, count))
    }
    mine = [which for which in sets if which.owner == port.name]
    fit = mine or [which for which in whole if _may_be(which, port, own)]
    if len(fit) == 1:
        return whole.get(fit[0], [])
    return [] if fit else _lone(names, port, count, own)


def _parsed(name: str, driver: str) -> tuple[_Set, int, bool] | None:
    for form in _FORMS:
        if match := form.match(name):
            said = match.groupdict()
            owner = match["owner"].removeprefix(f"{driver}-")
            which = _Set(owner, said.get("bus"), form is _BLOCK)
            return which, int(match["number"]), not said.get("sends")
    return None


def _whole(which: _Set, found: list[QueueIrq], count: int) -> list[QueueIrq]:
    """With the number of the queue, if each has exactly one. Some drivers count from 1 (tg3)."""
    receiving = sorted((irq for irq in found if irq.receives), key=lambda irq: irq.queue)
    numbers = [irq.queue for irq in receiving]
    if not numbers or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        return []
    if which.blocks:
        half, odd = divmod(len(numbers), 2)
        if odd or numbers[0] or half < count:
            return []
        blocks = (QueueIrq(irq.irq, irq.queue % half, irq.queue >= half) for irq in receiving)
        return sorted(irq for irq in blocks if irq.queue < count)
    if len(numbers) < count or (numbers[0] and len(numbers) > count):
        return []
    queues = {irq.irq: rank for rank, irq in enumerate(receiving)}
    return [irq._replace(queue=queues.get(irq.irq, irq.queue)) for irq in found]


def _may_be(which: _Set, port: Named, own: bool) -> bool:
    """It does not name the interface: by a name that it had, or none."""
    if which.owner in port.siblings:
        return False
    device = which.bus is not None or which.owner in port.buses or _PCI.fullmatch(which.owner)
    if not own:
        return which.owner in port.buses
    if ":" in which.owner and not device:
        return False  # no interface is called so (dev_valid_name(), net/core/dev.c)
    return not (device and port.siblings)


def _lone(names: Mapping[int, str], port: Named, count: int, own: bool) -> list[QueueIrq]:
    """A lone queue has the lone interrupt, or the one that is named like it."""
    if count != 1:
        return []
    called = {port.name, *port.buses}
    named = [irq for irq, text in names.items() if not called.isdisjoint(text.split(","))]
    if own and len(names) == 1:
        named = list(names)
    return [QueueIrq(named[0], 0, True)] if len(named) == 1 else []


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
