# SPDX-License-Identifier: GPL-2.0-or-later
"""Which queue an interrupt serves, by the name its driver requested it under. Pure.

There is no rule for these names but habit. Known ones, from drivers/net: `eth0-TxRx-0` (ixgbe, igb,
igc, bnxt), `eth0-rx-0` (igb, e1000e, enic), `i40e-eth0-TxRx-0` (i40e, ice, iavf, idpf),
`mlx5_comp0@pci:0000:3b:00.0`, `mlx4-1@0000:81:00.0`, `eth0-Tx-Rx-0` (ena), `virtio0-input.0`,
`eth0-rxtx-0` (vmxnet3, octeontx2), `eth0-fp-0` (qede), `eth0-Rx0` (cxgb4), `eth0-0` (sfc,
atlantic), `hns3-0000:7d:00.0-TxRx-0`. The name of the interface is the one it had when it came up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["QueueIrq", "queue_irqs"]

BOTH, RECEIVE, SEND = r"tx-?rx|rx-?tx|comp|fp|mlx4", r"rx|input", r"tx|output"
NAMED = rf"(?:({BOTH}|{RECEIVE})|({SEND}))[-.]?(\d+)(?:@.*)?$"
ROLE = re.compile(rf"(?:^|[-_]|\b){NAMED}", re.IGNORECASE)
PLAIN = re.compile(r"-(\d+)$")


class QueueIrq(NamedTuple):
    """Interrupt `irq` is the one of receive (or send) queue `queue`."""

    irq: int
    queue: int
    receives: bool


def queue_irqs(names: Mapping[int, str], interface: str, own: bool) -> list[QueueIrq]:
    """The interrupts of an interface's queues, in number order, of those named in `names`. `own`:
    they are all its device's, so that one need not name the interface, unless others do (a device
    with several ports)."""
    mine = {irq: name for irq, name in names.items() if _mentions(name, interface)}
    if not mine and own:
        mine = dict(names)
    found = []
    for irq, name in sorted(mine.items()):
        if role := ROLE.search(name):
            found.append(QueueIrq(irq, int(role[3]), role[1] is not None))
        elif (plain := PLAIN.search(name)) and name == f"{interface}{plain[0]}":
            found.append(QueueIrq(irq, int(plain[1]), True))
    return found


def _mentions(name: str, interface: str) -> bool:
    """As a word of its own: eth1 is not in eth10-TxRx-0."""
    return re.search(rf"(?:^|[-_@: ]){re.escape(interface)}(?:$|[-_@: ])", name) is not None
