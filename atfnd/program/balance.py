# SPDX-License-Identifier: GPL-2.0-or-later
"""Interrupts that irqbalance leaves alone because we asked it to, journaled, and given back.

In `UndoJournal`, under the name `irqbalance`: a setting `NIC:IRQ`, whose value was `balanced` and
is now `pid N`, the irqbalance that we asked. A ban ends with that process. A ban that another
program set before us belongs to that program, and is not in there.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from typing import NamedTuple

from atfnd.kernel.interrupts import irqbalance
from atfnd.model import Restored, cpu_list
from atfnd.program.journals.undo_journal import UndoJournal

__all__ = ["BALANCER", "Ban", "banned", "bans", "forget", "journal", "left_alone", "lift", "lifted"]
__all__ += ["restored", "running", "spared", "unban"]

BALANCER = "irqbalance"
PATIENCE_S = 25.0  # it answers no client for its interval after a ban
running, spared = irqbalance.running, irqbalance.spared


class Ban(NamedTuple):
    """An interrupt that one irqbalance leaves alone since we asked it to."""

    pid: int
    nic: str
    irq: int


def bans(undo_journal: UndoJournal) -> list[Ban]:
    """Our bans, by the journal."""
    found = []
    for setting, held in undo_journal.held(BALANCER).items():
        nic, _, irq = setting.rpartition(":")
        if held.wrote is not None:
            found.append(Ban(int(held.wrote.removeprefix("pid ")), nic, int(irq)))
    return found


def journal(undo_journal: UndoJournal, ban: Ban) -> None:
    """Before irqbalance is asked. If this cannot be recorded, it must not be asked."""
    setting = f"{ban.nic}:{ban.irq}"
    undo_journal.note(BALANCER, setting, "balanced")
    undo_journal.wrote(BALANCER, setting, f"pid {ban.pid}")


def forget(undo_journal: UndoJournal, ban: Ban, *, theirs: bool = False) -> None:
    """The ban has ended; `theirs`: another program ended it, and irqbalance must not be asked
    again."""
    (undo_journal.leave_alone if theirs else undo_journal.forget)(BALANCER, f"{ban.nic}:{ban.irq}")


def left_alone(undo_journal: UndoJournal) -> frozenset[int]:
    """Interrupts that another program had irqbalance move again."""
    return frozenset(int(each.rpartition(":")[2]) for each in undo_journal.manual(BALANCER))


def banned(pid: int, more: Collection[int], less: Collection[int] = ()) -> tuple[int, str]:
    """Add to the interrupts it leaves alone, and take from them; the bans of others stay. Returns
    an errno, and the result in words. Slow: not for the loop's thread."""
    spared_now = irqbalance.spared(pid)
    if spared_now is None:
        return errno.EAGAIN, "it does not answer now"
    wanted = spared_now.difference(less).union(more)
    if wanted == spared_now:
        return 0, "it is so already"
    try:
        irqbalance.spare(pid, wanted)
    except OSError as refusal:
        return refusal.errno or errno.EIO, refusal.strerror or "it does not listen"
    if irqbalance.spared(pid) != wanted:
        return errno.EIO, "it took the list, and reports another one"
    return 0, "as planned"


def lift(undo_journal: UndoJournal, nic: str | None) -> list[tuple[int, list[Ban]]]:
    """The bans to take back for one NIC, or for all, by irqbalance. Those that ended with their
    process are forgotten."""
    ours = sorted(ban for ban in bans(undo_journal) if nic in (None, ban.nic))
    here = running()
    for ban in ours:
        if ban.pid not in here:
            forget(undo_journal, ban)
    ours = [ban for ban in ours if ban.pid in here]
    return [(pid, list(of)) for pid, of in groupby(ours, key=lambda ban: ban.pid)]


def unban(pid: int, irqs: Collection[int]) -> tuple[int, str]:
    """Have it balance these again. Waits while it sleeps."""
    give_up = time.monotonic() + PATIENCE_S
    while (done := banned(pid, (), irqs))[0] == errno.EAGAIN and time.monotonic() < give_up:
        if pid not in running():
            return 0, "ended with it"
    return done


def outcome(nic: str, irqs: Iterable[int], code: int, left: str) -> Restored:
    """The result as something that was restored, or was not."""
    what = f"irqbalance's ban of interrupts {cpu_list(irqs)}"
    return Restored(nic, what, code, "is lifted" if not code else f"stays: {left}")


def restored(undo_journal: UndoJournal, nic: str | None = None) -> list[Restored]:
    """Lift all bans of ours, of one NIC or of all. Slow."""
    done = []
    for pid, ours in lift(undo_journal, nic):
        code, left = unban(pid, {ban.irq for ban in ours})
        done += lifted(undo_journal, ours, code, left)
    return done


def lifted(undo_journal: UndoJournal, ours: list[Ban], code: int, left: str) -> list[Restored]:
    """Forget what was lifted, and return the results by NIC."""
    by_nic: Mapping[str, list[int]] = {ban.nic: [] for ban in ours}
    for ban in ours:
        by_nic[ban.nic].append(ban.irq)
        if not code:
            forget(undo_journal, ban)
    return [outcome(nic, irqs, code, left) for nic, irqs in by_nic.items()]
