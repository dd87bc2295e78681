# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings of a NIC that change while it is armed: who polls its queues, and which of them have
RFS. What is wished for is compared with what is there, and the difference is written. Pure.

A wish waits while it is being written, and rests after a refusal: 1 s, 2 s, ... 64 s. A setting
that the NIC does not have, or that another program has changed, is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from atfnd.model import Action, NicView, Outcome
from atfnd.model.nic import RFS_FLOWS, RFS_TABLE, RSS_KEY
from atfnd.model.reason import Why
from atfnd.model.reception import of_reception
from atfnd.model.rests import SECONDS, Rests

__all__ = ["AskedSettings", "Wish", "is_asked_for"]


class Wish(NamedTuple):
    setting: str
    value: str
    why: Why
    rule_name: str = ""


@dataclass(slots=True)
class AskedSettings:
    """Of one NIC, by setting."""

    found: dict[str, str] = field(default_factory=dict)  # before us, while it is not so again
    asked: set[str] = field(default_factory=set)  # being written
    rests: Rests[str] = field(default_factory=Rests)
    refused: dict[str, str] = field(default_factory=dict)  # what the last refusal left

    def afresh(self, originals: Mapping[str, str]) -> None:
        """The NIC was read again; `originals` are the settings that we wrote, with their values
        before that."""
        self.asked.clear()
        self.found = {name: each for name, each in originals.items() if is_asked_for(name)}

    def differences(self, nic: NicView, wishes: Iterable[Wish], now_ns: int) -> Iterator[Action]:
        """What is to be written now."""
        for wish in wishes:
            name, value = wish.setting, nic.settings.get(wish.setting)
            if value in (None, wish.value) or name in nic.manual or name in self.asked:
                continue
            if not self.rests.on(name, now_ns):
                self.asked.add(name)
                yield Action.of_setting(nic.name, name, wish.value, wish.why, wish.rule_name)

    def written(self, outcome: Outcome, nic: NicView, now_ns: int) -> bool:
        """The result of a write, maybe of one that was asked for before `afresh`, and waited for a
        move. True: the setting has this value now."""
        action, name = outcome.action, outcome.action.setting or ""
        if not is_asked_for(name) or action.loan:
            return False
        if outcome.errno:
            if name in self.asked:
                self.rests.vain(name, SECONDS, now_ns)
                self.refused[name] = outcome.left
            self.asked.discard(name)
            return False
        self.asked.discard(name)
        self.rests.pop(name, None)
        self.refused.pop(name, None)
        if outcome.before != action.value:  # else nothing was written
            # Another program may have written since the last look, or a move may have its loan.
            original = outcome.original or nic.settings.get(name) or "0"
            if self.found.setdefault(name, original) == action.value:
                del self.found[name]
        return True


def is_asked_for(setting: str) -> bool:
    """It may change so."""
    return of_reception(setting) or setting.partition(":")[0] in (RFS_FLOWS, RFS_TABLE, RSS_KEY)
