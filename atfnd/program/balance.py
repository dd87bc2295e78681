# SPDX-License-Identifier: GPL-2.0-or-later
"""Interrupts that irqbalance leaves alone by our doing, journaled, and given back.

In `Originals`, under the name `irqbalance`: a knob `NIC:IRQ`, which was `balanced`, and is `pid N`,
the irqbalance that was told. A ban ends with that process. Who else had banned an interrupt before
us has his ban: it is not in there.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from typing import NamedTuple

from atfnd.kernel import irqbalance
from atfnd.model import Restored, cpu_list
from atfnd.program.originals import Originals

__all__ = ["BALANCER", "Ban", "banned", "bans", "forget", "journal", "let_go", "lift", "restored"]
__all__ += ["running", "settle", "spared", "unban"]

BALANCER = "irqbalance"
PATIENCE_S = 25.0  # it answers nobody for its interval after a ban
running, spared = irqbalance.running, irqbalance.spared


class Ban(NamedTuple):
    """An interrupt that one irqbalance leaves alone since we told it."""

    pid: int
    nic: str
    irq: int


def bans(originals: Originals) -> list[Ban]:
    """Ours, by the journal."""
    found = []
    for knob, held in originals.held(BALANCER).items():
        nic, _, irq = knob.rpartition(":")
        if held.wrote is not None:
            found.append(Ban(int(held.wrote.removeprefix("pid ")), nic, int(irq)))
    return found


def journal(originals: Originals, ban: Ban) -> None:
    """Before it is told. Unrecorded: it must not be."""
    knob = f"{ban.nic}:{ban.irq}"
    originals.note(BALANCER, knob, "balanced")
    originals.wrote(BALANCER, knob, f"pid {ban.pid}")


def forget(originals: Originals, ban: Ban, *, his: bool = False) -> None:
    """It has ended; `his`: by somebody else, who is not to be told again."""
    (originals.let_go if his else originals.forget)(BALANCER, f"{ban.nic}:{ban.irq}")


def let_go(originals: Originals) -> frozenset[int]:
    """Interrupts that somebody else had irqbalance move again."""
    return frozenset(int(each.rpartition(":")[2]) for each in originals.manual(BALANCER))


def banned(pid: int, more: Collection[int], less: Collection[int] = ()) -> tuple[int, str]:
    """Add to what it leaves alone, and take from it; everybody else's bans stay. An errno, and in
    words what came of it. Takes its time: not for the loop's thread."""
    told = irqbalance.spared(pid)
    if told is None:
        return errno.EAGAIN, "it does not answer now"
    wanted = told.difference(less).union(more)
    if wanted == told:
        return 0, "it is so already"
    try:
        irqbalance.spare(pid, wanted)
    except OSError as refusal:
        return refusal.errno or errno.EIO, refusal.strerror or "it does not listen"
    if irqbalance.spared(pid) != wanted:
        return errno.EIO, "it took the list, and has another one"
    return 0, "as planned"


def lift(originals: Originals, nic: str | None) -> list[tuple[int, list[Ban]]]:
    """What has to be taken back of one NIC, or of all, by irqbalance. Those that ended with their
    process are forgotten."""
    ours = sorted(ban for ban in bans(originals) if nic in (None, ban.nic))
    here = running()
    for ban in ours:
        if ban.pid not in here:
            forget(originals, ban)
    ours = [ban for ban in ours if ban.pid in here]
    return [(pid, list(of)) for pid, of in groupby(ours, key=lambda ban: ban.pid)]


def unban(pid: int, irqs: Collection[int]) -> tuple[int, str]:
    """Have it balance these again. Waits while it sleeps."""
    give_up = time.monotonic() + PATIENCE_S
    while (done := banned(pid, (), irqs))[0] == errno.EAGAIN and time.monotonic() < give_up:
        if pid not in running():
            return 0, "ended with it"
    return done


def told(nic: str, irqs: Iterable[int], code: int, left: str) -> Restored:
    """As a thing that was restored, or was not."""
    what = f"irqbalance's ban of interrupts {cpu_list(irqs)}"
    return Restored(nic, what, code, "is lifted" if not code else f"stays: {left}")


def restored(originals: Originals, nic: str | None = None) -> list[Restored]:
    """Lift all bans of ours, of one NIC or of all. Takes its time."""
    done = []
    for pid, ours in lift(originals, nic):
        code, left = unban(pid, {ban.irq for ban in ours})
        done += settle(originals, ours, code, left)
    return done


def settle(originals: Originals, ours: list[Ban], code: int, left: str) -> list[Restored]:
    """Forget what was lifted, and tell it by NIC."""
    by_nic: Mapping[str, list[int]] = {ban.nic: [] for ban in ours}
    for ban in ours:
        by_nic[ban.nic].append(ban.irq)
        if not code:
            forget(originals, ban)
    return [told(nic, irqs, code, left) for nic, irqs in by_nic.items()]
