# SPDX-License-Identifier: GPL-2.0-or-later
"""Which interrupts an irqbalance is asked to leave alone: those of armed NICs, in addition to those
that it leaves alone already, and again after it restarts. Pure.

What it moved before it was asked is put back once. One that cannot be asked counts as any other
program that moves our interrupts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from atfnd.engine.command import (
    AskBalancer,
    Command,
    ConfirmBan,
    ForgetBan,
    Log,
    LookAtInterrupts,
    ReadBalancer,
)
from atfnd.model import Ban, Bans, NicView, SteeringMethod, cpu_list
from atfnd.model.reason import Code

__all__ = ["Balancers"]

_DOUBTS = 15  # looks without an answer: it may sleep that long


@dataclass(slots=True)
class _Balancer:
    """What is known of one."""

    spares: frozenset[int]  # what it leaves alone, as far as that was read
    refused: bool = False
    doubts: int = 0  # looks without an answer

    def may_move(self, irq: int) -> bool:
        """It may, and there is hope that it can be asked not to."""
        return not self.refused and self.doubts < _DOUBTS and irq not in self.spares


class Balancers:
    """Every irqbalance that ran at the last look."""

    def __init__(self) -> None:
        self._here: dict[int, _Balancer] = {}  # by pid

    def found(
        self, pids: Collection[int], bans: Bans, nics: Iterable[NicView]
    ) -> Iterable[Command]:
        """Ask them all, if there is anything to ask for or to take back."""
        self._here = {pid: self._known(pid, bans) for pid in sorted(pids)}
        if bans.ours or any(map(_irqs, nics)):
            yield from map(ReadBalancer, self._here)

    def read(
        self, pid: int, spares: frozenset[int] | None, bans: Bans, nics: Mapping[str, NicView]
    ) -> Iterable[Command]:
        """It says what it leaves alone. None: it does not answer."""
        known = self._here[pid]
        if spares is None:
            known.doubts += 1
            return
        known.doubts = 0
        stale, kept = list[Ban](), spares | bans.theirs
        doubtful = [ban for ban in bans.doubtful if ban.pid == pid]
        listed = {_asked(ban, bans) for ban in doubtful if ban.irq in spares}
        for ban in bans.ours:
            if ban.pid not in self._here:
                yield ForgetBan(ban)  # it ended with its irqbalance
            elif ban.pid != pid:
                continue
            elif ban in bans.doubtful and ban.irq in spares:
                yield ConfirmBan(ban)
            elif ban in bans.doubtful and _asked(ban, bans) not in listed:
                yield ForgetBan(ban)
            elif ban.irq not in spares:
                kept |= {ban.irq}
                yield ForgetBan(ban, theirs=True)
                what = f"irqbalance (pid {pid}) was asked to move interrupt {ban.irq} again"
                yield Log("manual", what, Code.BAN_LIFTED(ban.nic), {"nic": ban.nic})
            elif not _may_have(nics.get(ban.nic), ban.irq):
                stale.append(ban)
        more = {name: irqs for name, nic in nics.items() if (irqs := _irqs(nic) - kept)}
        if more or stale:
            yield AskBalancer(pid, spares, more, tuple(stale))
        else:
            known.spares = spares

    def asked(
        self, asked: AskBalancer, refused: str | None, nics: Collection[str]
    ) -> Iterable[Command]:
        """It was asked. `refused`: why it does not do that; None: it does."""
        known, before = self._here[asked.pid], self._here[asked.pid].refused
        known.refused = refused is not None
        if refused is None:
            ended = {ban.irq for ban in asked.ended}
            known.spares = (asked.spares - ended).union(*asked.new.values())
        for name, irqs in asked.new.items():
            which = f"interrupts {cpu_list(irqs)}"
            if refused is None:
                what = f"irqbalance (pid {asked.pid}) leaves {which} alone"
                yield Log("ban", what, Code.BANNED(), {"nic": name})
                if name in nics:
                    yield LookAtInterrupts(name, irqs)
            elif not before:
                what = f"irqbalance (pid {asked.pid}) still moves {which}"
                yield Log("refused", what, refused, {"nic": name})

    def lifting(self, pids: Iterable[int]) -> None:
        """These are about to be asked to move interrupts again."""
        for pid in self._here.keys() & set(pids):
            self._here[pid].spares = frozenset()

    def may_have_moved(self, irq: int, pids: Iterable[int], bans: Bans) -> bool:
        """One of those that run may still move this interrupt, and is about to be asked not to:
        not, if another program had irqbalance move it again."""
        known = (self._known(pid, bans) for pid in pids)
        return irq not in bans.theirs and any(each.may_move(irq) for each in known)

    def _known(self, pid: int, bans: Bans) -> _Balancer:
        """One that was not read yet leaves alone what it told the daemon before."""
        confirmed = (ban.irq for ban in bans.ours if ban.pid == pid and ban not in bans.doubtful)
        return self._here.get(pid) or _Balancer(frozenset(confirmed))


def _asked(ban: Ban, bans: Bans) -> str | None:
    """What it was asked together with, and may not have heard: it takes all of a list or nothing.
    New bans are one list (None), those to be lifted are one for each NIC."""
    return None if ban in bans.new else ban.nic


def _irqs(nic: NicView) -> frozenset[int]:
    """Interrupts whose CPU we may choose."""
    if not nic.armed or nic.method is SteeringMethod.NONE:
        return frozenset()
    return frozenset(
        queue.irq
        for queue in nic.queues
        if queue.irq is not None and f"queue-cpu:{queue.index}" not in nic.manual
    )


def _may_have(nic: NicView | None, irq: int) -> bool:
    """The NIC has this interrupt; or it is down, and may have it when it is up."""
    return nic is not None and (not nic.up or irq in {queue.irq for queue in nic.queues})
