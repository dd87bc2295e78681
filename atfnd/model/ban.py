# SPDX-License-Identifier: GPL-2.0-or-later
"""Interrupts that an irqbalance leaves alone because it was asked to."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Ban", "Bans"]


class Ban(NamedTuple):
    """An interrupt that one irqbalance leaves alone since we asked it to."""

    pid: int
    nic: str
    irq: int


class Bans(NamedTuple):
    """What the journal says of them."""

    ours: tuple[Ban, ...]
    doubtful: frozenset[Ban]  # irqbalance was not heard to take what it was asked of them
    theirs: frozenset[int]  # interrupts that another program had irqbalance move again
    new: frozenset[Ban] = frozenset()  # doubtful: irqbalance may not know them
