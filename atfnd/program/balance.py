# SPDX-License-Identifier: GPL-2.0-or-later
"""Interrupts that irqbalance leaves alone because we asked it to, journaled, and given back.

In `UndoJournal`, under the name `irqbalance`: a setting `NIC:IRQ/PID`, whose value was `balanced`
and is now `pid N`, the irqbalance that we asked (before: a setting `NIC:IRQ`). A ban ends with that
process. A ban that another program set before us belongs to that program, and is not in there.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby

from atfnd.kernel.interrupts import irqbalance
from atfnd.model import Ban, Bans, Restored, cpu_list
from atfnd.program.journals.record_file import Unrecorded
from atfnd.program.journals.undo_journal import OwnedSetting, UndoJournal

__all__ = ["BALANCER", "NOT_ASKED", "banned", "bans", "doubt", "forget"]
__all__ += [
    "journal",
    "journaled",
    "left_alone",
    "lift",
    "lifted",
    "made",
    "rename_bans",
    "restored",
    "running",
    "spared",
    "unban",
]

BALANCER = "irqbalance"
NOT_ASKED = errno.EAGAIN, errno.E2BIG  # after these it does not know what it was to be asked
PATIENCE_S = 25.0  # it answers no client for its interval after a ban
running = irqbalance.running


def spared(pid: int) -> frozenset[int] | None:
    """All that it leaves alone. None: it does not answer now."""
    asked = irqbalance.spared(pid)
    return None if asked is None else asked | irqbalance.spared_by_module(pid)


def bans(undo_journal: UndoJournal) -> list[Ban]:
    """Our bans, by the journal."""
    return [_ban(*each) for each in undo_journal.held(BALANCER).items()]


def journaled(undo_journal: UndoJournal) -> Bans:
    """All that the journal says of them."""
    held = undo_journal.held(BALANCER).items()
    doubtful = {
        _ban(setting, of): of.earlier in (None, of.original)
        for setting, of in held
        if of.wrote is None or of.earlier is not None
    }
    new = frozenset(ban for ban, is_new in doubtful.items() if is_new)
    ours = tuple(bans(undo_journal))
    return Bans(ours, frozenset(doubtful), left_alone(undo_journal), new)


def _ban(setting: str, held: OwnedSetting) -> Ban:
    nic, _, which = setting.rpartition(":")
    irq, _, pid = which.partition("/")
    return Ban(int(pid or (held.wrote or "pid 0").removeprefix("pid ")), nic, int(irq))


def _setting(ban: Ban) -> str:
    return f"{ban.nic}:{ban.irq}/{ban.pid}"


def _settings(undo_journal: UndoJournal, ban: Ban) -> list[str]:
    """As it is named now, or was before."""
    held = undo_journal.held(BALANCER)
    return [each for each in (_setting(ban), f"{ban.nic}:{ban.irq}") if each in held
            and _ban(each, held[each]) == ban]  # fmt: skip


def journal(undo_journal: UndoJournal, new: Sequence[Ban]) -> None:
    """Before irqbalance is asked. Unrecorded: it must not be asked, and the journal is as it
    was."""
    try:
        for ban in new:
            undo_journal.note(BALANCER, _setting(ban), "balanced")
            undo_journal.wrote(BALANCER, _setting(ban), f"pid {ban.pid}")
    except Unrecorded:
        for ban in new:
            forget(undo_journal, ban)
        raise


def doubt(undo_journal: UndoJournal, ended: Iterable[Ban]) -> None:
    """Before irqbalance is asked to balance these again: it may do so and not answer. A journal
    that cannot be written holds up no undo."""
    with suppress(Unrecorded):
        for ban in ended:
            for setting in _settings(undo_journal, ban):
                undo_journal.wrote(BALANCER, setting, f"pid {ban.pid}")


def made(undo_journal: UndoJournal, ban: Ban) -> None:
    """It leaves this interrupt alone: it has said so."""
    for setting in _settings(undo_journal, ban):
        undo_journal.confirmed(BALANCER, setting, f"pid {ban.pid}")


def forget(undo_journal: UndoJournal, ban: Ban, *, theirs: bool = False) -> None:
    """The ban has ended; `theirs`: another program ended it, and irqbalance must not be asked
    again."""
    for setting in _settings(undo_journal, ban):
        (undo_journal.leave_alone if theirs else undo_journal.forget)(BALANCER, setting)


def left_alone(undo_journal: UndoJournal) -> frozenset[int]:
    """Interrupts that another program had irqbalance move again."""
    every = undo_journal.manual(BALANCER)
    return frozenset(int(each.rpartition(":")[2].partition("/")[0]) for each in every)


def rename_bans(undo_journal: UndoJournal, old: str, new: str) -> None:
    """An interface has a new name, and keeps its interrupts: its bans go on under that."""
    every = (*undo_journal.held(BALANCER), *undo_journal.manual(BALANCER))
    names = {each: new + each.removeprefix(old) for each in every if each.startswith(f"{old}:")}
    if names:
        undo_journal.rename_settings(BALANCER, names)


def banned(pid: int, more: Collection[int], less: Collection[int] = ()) -> tuple[int, str]:
    """Add to the interrupts it leaves alone, and take from them; the bans of others stay. Returns
    an errno, and the result in words. Slow: not for the loop's thread."""
    spared_now = irqbalance.spared(pid)
    if spared_now is None:
        return errno.EAGAIN, "it does not answer now"
    wanted = spared_now.difference(less).union(more)
    if wanted == spared_now:
        return 0, "it is already so"
    try:
        irqbalance.spare(pid, wanted)
    except OSError as refusal:
        return refusal.errno or errno.EIO, refusal.strerror or "it does not listen"
    if irqbalance.spared(pid) != wanted:
        return errno.EIO, "it accepted the list, but reports another one"
    return 0, "as planned"


def lift(undo_journal: UndoJournal, nic: str | None) -> list[tuple[int, list[Ban]]]:
    """The bans to take back for one NIC, or for all, by irqbalance, which is about to be asked.
    Those that ended with their process are forgotten."""
    ours = sorted(ban for ban in bans(undo_journal) if nic in (None, ban.nic))
    here = running()
    for ban in ours:
        if ban.pid not in here:
            forget(undo_journal, ban)
    ours = [ban for ban in ours if ban.pid in here]
    doubt(undo_journal, ours)
    return [(pid, list(of)) for pid, of in groupby(ours, key=lambda ban: ban.pid)]


def unban(pid: int, irqs: Collection[int]) -> tuple[int, str]:
    """Have it balance these again. Waits while it sleeps, and until it has said that it does."""
    give_up, again = time.monotonic() + PATIENCE_S, (errno.EAGAIN, errno.EIO)
    while (done := banned(pid, (), irqs))[0] in again and time.monotonic() < give_up:
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
