# SPDX-License-Identifier: GPL-2.0-or-later
"""What is borrowed for moves. A queue that is polled from its interrupt gets a thread for as long
as moves, or switches of its RFS, have to hold it. A queue that keeps packets for a timer
(gro_flush_timeout) keeps none while it has to be seen to drain. Pure.

Only a queue with a thread can be quiesced (choose.py). A thread for good makes the scheduler wake
applications on other CPUs (select_idle_sibling(), kernel/sched/fair.c). So it is given back when no
move was held for `Times.loan_linger_ns`, and after `loan_max_ns` in any case; then nothing is
borrowed for `loan_rest_ns`. A ring has one poller at a time (NAPI_STATE_SCHED), so neither change
reorders. Nothing is given back while a queue is quiesced. Without the timeout interrupts are not
deferred either (napi_complete_done(), net/core/dev.c): who polls is the same, and when is sooner.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from atfnd.model import Action, Outcome
from atfnd.model.reason import Code, Why
from atfnd.model.reception import TIMEOUT, other_name
from atfnd.move.frozenmap import FrozenMap
from atfnd.move.timer import Times

__all__ = ["BORROWED", "GIVEN_BACK", "Loan", "borrows"]

BORROWED, GIVEN_BACK = "1", "0"  # as in /sys/class/net/X/threaded
_NO_TIMEOUT = "0"
_NOT_OURS = errno.ESTALE, errno.ENOENT, errno.ENODEV  # another program's now, or gone


def borrows(action: Action) -> bool:
    """It borrows, or else it gives back."""
    name = (action.setting or "").partition(":")[0]
    return action.value == (_NO_TIMEOUT if name == TIMEOUT else BORROWED)


class Loan(NamedTuple):
    """What is borrowed for the moves of one NIC: settings, and what each is given back as."""

    nic: str = ""
    settings: FrozenMap[str, str] = FrozenMap()
    since_ns: int = 0
    used_ns: int = 0  # last by a move that was held, or a switch of RFS
    asked: tuple[Action, ...] = ()  # written, and not answered yet
    wanted: FrozenMap[str, str] = FrozenMap()  # as `settings`, of what is asked for
    rests_until_ns: int = 0  # nothing is borrowed before
    refusal: str | None = None  # the kernel's words: why nothing can be borrowed until then

    def due_ns(self, times: Times) -> int | None:
        """When it is to be given back. None: nothing is borrowed, or a write is under way."""
        if not self.settings or self.asked:
            return None
        return min(self.used_ns + times.loan_linger_ns, self.since_ns + times.loan_max_ns)

    def over(self, times: Times, now_ns: int) -> bool:
        """It has lasted for as long as it may."""
        return bool(self.settings) and now_ns >= self.since_ns + times.loan_max_ns

    def refused(self, now_ns: int) -> str | None:
        """Why nothing can be borrowed. None: it can, now or after a rest."""
        return self.refusal if now_ns < self.rests_until_ns else None

    def used(self, now_ns: int) -> Loan:
        """A move, or a switch of RFS, is held by it."""
        return self._replace(used_ns=now_ns) if self.settings else self

    def borrow(self, nic: str, settings: Mapping[str, str]) -> Loan:
        """Ask for these, too."""
        values = {
            name: _NO_TIMEOUT if name.partition(":")[0] == TIMEOUT else BORROWED
            for name in settings
        }
        return self._ask(nic, values, Code.BORROWED())._replace(wanted=FrozenMap(settings))

    def give_back(self) -> Loan:
        """Ask for the end of it."""
        return self._ask(self.nic, self.settings, Code.WAS_BORROWED())

    def kept(self, setting: str) -> Loan:
        """A policy has switched this, which is not given back, by whatever name it was borrowed."""
        settings = self.settings.without(setting).without(other_name(setting) or "")
        return self._replace(settings=settings)

    def _ask(self, nic: str, values: Mapping[str, str], why: Why) -> Loan:
        asked = (Action.of_setting(nic, each, values[each], why) for each in sorted(values))
        return self._replace(nic=nic, asked=tuple(replace(each, loan=True) for each in asked))

    def answered(self, outcome: Outcome, times: Times, now_ns: int) -> Loan:
        """One of the writes that were asked for is done, or was refused."""
        action, name = outcome.action, outcome.action.setting or ""
        loan = self._replace(asked=tuple(each for each in self.asked if each != action))
        if borrows(action):
            if outcome.errno:
                later_ns = now_ns + times.loan_refused_ns
                if outcome.errno in _NOT_OURS:
                    loan = loan._replace(settings=loan.settings.without(name))
                return loan._replace(rests_until_ns=later_ns, refusal=outcome.left)
            since_ns = loan.since_ns if loan.settings else now_ns
            settings = loan.settings.put(name, loan.wanted[name])
            return loan._replace(settings=settings, since_ns=since_ns, used_ns=now_ns, refusal=None)
        rests_until_ns = now_ns + times.loan_rest_ns
        if outcome.errno and outcome.errno not in _NOT_OURS:  # it is asked for again
            return loan._replace(since_ns=rests_until_ns, used_ns=rests_until_ns)
        return loan._replace(settings=loan.settings.without(name), rests_until_ns=rests_until_ns)
