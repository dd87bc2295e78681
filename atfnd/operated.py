# SPDX-License-Identifier: GPL-2.0-or-later
"""What an operator may tell a running daemon: arm, disarm, pause, resume, restore.

Orders hold until the next one, also for an interface that goes and comes, and for the next run.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Collection, Sequence
from functools import partial

from atfnd.decide import steer
from atfnd.errors import OperatorError
from atfnd.model import FlowState, NicView, Restored
from atfnd.observe.nics import NicWatch
from atfnd.program.balance import BALANCER
from atfnd.program.cpuset import CGROUPS
from atfnd.program.orders import ALL
from atfnd.program.record_file import Unrecorded
from atfnd.reloading import Reloading
from atfnd.undoing import Undoing

__all__ = ["Operated"]


class Operated(Reloading):
    """The part of the daemon that obeys."""

    restored: Sequence[Restored] = ()  # at a stop, where the policy asks for that

    async def arm(self, nic: str) -> None:
        """Allow changes on a NIC, and place every flow that waits for it. KeyError: no such NIC."""
        watch = self.watches[nic]
        self._order("arm", nic)
        self.keeping_off.arm()
        self._arm(watch, "asked for")

    async def disarm(self, nic: str | None) -> None:
        """Stop every change on a NIC at once, or on all, also on those to come; rules in place
        stay. KeyError: no such NIC. OperatorError: it is in force, but a restart will not know of
        it, or a move did not end in order."""
        watches = list(self.watches.values()) if nic is None else [self.watches[nic]]
        but, hint = [], "it is in force all the same; `atfnctl events` says more"
        try:
            self._disarm(watches, "asked for")
        except OSError as refusal:
            but.append(f"moves under way did not end in order: {refusal.strerror}")
        finally:
            refused = self._order("disarm", ALL if nic is None else nic)
        if refused is not None:
            but.append(f"that cannot be written down, and holds for this run only: {refused}")
            hint = "it is in force all the same; make room, then disarm again"
        if but:
            whom = "every interface" if nic is None else nic
            raise OperatorError(f"{whom} is disarmed, but {'; '.join(but)}", hint)

    async def pause(self, nic: str) -> None:
        """Take our rules out of a NIC and put its knobs back, armed or not, and change nothing
        until `resume`. OperatorError: the kernel refused some of it. KeyError: no such NIC."""
        watch = self.watches[nic]
        if watch.view.paused and not (self.journal.names(nic) or self.originals.held(nic)):
            return
        watch.pause()
        self._order("pause", nic)
        done = self._take_out(watch, "paused by the operator")
        self.log.add("pause", "paused: our rules are out", "asked for", nic=nic)
        self._carry_out(steer.take_up(watch.view, self.memory, time.monotonic_ns()))
        done += [*self._let_loose(), *await self.arming.balancing.lift(nic)]
        if refused := ", ".join(each.what for each in done if not each.done):
            what = f"{nic} is paused, but the kernel keeps of us: {refused}"
            raise OperatorError(what, f"atfnctl events --nic {nic} says why")

    async def resume(self, nic: str) -> None:
        """Put back what `pause` took out, if the NIC was armed then, and take back what was let go
        of because somebody else had moved it. KeyError: no such NIC."""
        watch = self.watches[nic]
        his: Collection[object] = watch.view.manual
        for of in (CGROUPS, BALANCER):
            his = his or self.originals.manual(of)
        his = his or [f for f in self.memory.table if (f.nic, f.state) == (nic, FlowState.MANUAL)]
        if not (watch.view.paused or his):
            return
        self._order("resume", nic)
        self.log.add("resume", "resumed", "asked for", nic=nic)
        armed = watch.resume()
        self.arming.take_back(watch)
        self.keeping_off.take_back()
        self.arming.meet(watch)
        if armed:
            self._look_again(watch)
            plan = steer.take_up(watch.view, self.memory, time.monotonic_ns(), manual=True)
            self._carry_out(plan)

    async def restore(self, nic: str) -> Sequence[Restored]:
        """Take our rules out of a NIC and put its knobs back, armed or not, and leave it disarmed.
        What became of each. KeyError: no such NIC."""
        watch = self.watches[nic]
        try:
            self._disarm([watch], "restored by the operator")
        finally:
            self._order("disarm", nic)
        done = self._take_out(watch, "restored by the operator")
        self._carry_out(steer.take_up(watch.view, self.memory, time.monotonic_ns()))
        return [*done, *self._let_loose(), *await self.arming.balancing.lift(nic)]

    def _restore_all(self) -> list[Restored]:
        """As `restore` of every NIC, but that what was said of it holds."""
        done = []
        for watch in list(self.watches.values()):
            watch.arm(False)
            with self._while_there(watch):
                done += self._take_out(watch, "atfnd stops, and the policy says on_stop: restore")
        return [*done, *self._let_loose()]

    def _take_out(self, watch: NicWatch, why: str) -> list[Restored]:
        """Every rule and every knob of ours. The NIC is disarmed, and undoing does not arm it."""
        self._still(watch)
        try:
            self._check_rules(watch)  # what somebody changed a moment ago is his
        except OSError as refusal:  # it does not list them: `take_out` tells that
            if refusal.errno == errno.ENODEV:
                raise
        undoing = Undoing(self.memory, self._strays, self.journal, self.originals)
        put_back = partial(self.arming.undo, watch)
        return undoing.take_out(watch.nic, watch.view, why, self._settle, put_back)

    def _let_loose(self) -> list[Restored]:
        """Give cgroups the CPUs back that no NIC asks for any more, which is armed."""
        before = self.originals.held(CGROUPS).keys()
        refused = self.keeping_off.pause(self._views())
        back = before - self.originals.held(CGROUPS).keys()
        done = [Restored(CGROUPS, name, 0, "is as it was, or somebody else's") for name in back]
        return [*done, *(Restored(CGROUPS, name, errno.EPERM, "is left") for name in refused)]

    def _views(self) -> dict[str, NicView]:
        return {name: watch.view for name, watch in self.watches.items()}

    def _order(self, verb: str, nic: str) -> str | None:
        """It holds from now on. Why a restart will not know of it, if it will not."""
        try:
            self.orders.say(verb, nic)
        except Unrecorded as refusal:
            why = f"it holds for this run only: {refusal.strerror}"
            self.log.add("unrecorded", f"{verb} {nic}", why, nic=None if nic == ALL else nic)
            return refusal.strerror
        return None
