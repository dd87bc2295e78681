# SPDX-License-Identifier: GPL-2.0-or-later
"""One flow of the lab, moved by the machine of the moves, which drives the kernel."""

from __future__ import annotations

import bisect
import socket
import sys
import time
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

from atfnd.daemon.moving import carry_out
from atfnd.model import Action, ActionKind, FlowKey, Outcome, Protocol
from atfnd.model.reason import Code
from atfnd.move.command import Ended
from atfnd.move.device import NicMoves
from atfnd.move.event import Event, PortChanged, Reset, TimerDue, Wanted
from atfnd.move.frozenmap import FrozenMap
from atfnd.move.mover import Mover
from atfnd.move.timer import Times
from atfnd.move.verdict import Mode, Verdict
from atfnd.nic import Nic
from atfnd.observe.nics.move_port import read_port
from atfnd.observe.nics.watch import NicWatch
from atfnd.program.actuator import NicActuator
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.undo_journal import UndoJournal
from bench.traffic.sequence import Tally
from tests.labs import Ends, key_of
from tests.move.driven import driven
from tests.wait import until

__all__ = ["ANOTHER_AT_ONCE", "Flow", "Moving", "cookie_of"]

SO_COOKIE = 57  # asm-generic/socket.h
ANOTHER_AT_ONCE = Times(hold_down_max_ns=0)  # a flow does not rest


def cookie_of(receiver: socket.socket) -> int:
    return int.from_bytes(receiver.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8), sys.byteorder)


class Moving:
    """One flow, the two queues it goes back and forth between, and all that became of it. Its
    journals are in `run_dir`, under the names a daemon gives them."""

    def __init__(
        self, nic: Nic, key: FlowKey, cookie: int, run_dir: Path, times: Times, undo: ExitStack
    ) -> None:
        self.key, self._cookie = key, cookie
        self.nic = NicWatch(nic)
        undo.callback(self.nic.close)
        self.nic.inspect()
        journal = undo.enter_context(closing(FilterJournal(run_dir / "filters.journal")))
        undo_journal = undo.enter_context(closing(UndoJournal(run_dir / "originals.journal")))
        self.actuator = undo.enter_context(
            closing(NicActuator(nic, journal, undo_journal, lambda: self.nic.facts.queues))
        )
        self.actuator.start()
        tried = carry_out(self.actuator.trial(nic.name), self.actuator.write)
        assert tried is not None
        assert tried.errno == 0
        self.old, self.new = 0, 1
        self.location: int | None = None
        port = read_port(self.nic.facts, self.nic.nic.interface, self.actuator.write_ns())
        self.moves = Mover(self.actuator, NicMoves(port, times))
        self.began_ns: list[int] = []  # CLOCK_REALTIME
        self.ended: list[Ended] = []

    def place(self) -> None:
        """Its first rule, by no move."""
        self.location = self.actuator.write(self.action(ActionKind.INSERT, None, self.old)).location

    def action(self, kind: ActionKind, old: int | None, new: int | None) -> Action:
        location = None if old is None else self.location
        return Action(kind, self.nic.facts.name, self.key, location, old, new, Code.UNSAID(), "")

    def tell(self, *events: Event) -> None:
        """One more move begins. What was learned of the last is forgotten."""
        device = self.moves.device
        self.moves.device = device._replace(records=FrozenMap(), timers_ns=FrozenMap())
        self.began_ns.append(time.time_ns())
        self._said(driven(self.moves, *events))

    def wanted(self, mode: Mode, rss: frozenset[int] = frozenset()) -> Wanted:
        """To the other queue. `rss`: the one that RSS gives the flow, where a change of its rule
        passes through that."""
        action = self.action(ActionKind.REWRITE, self.old, self.new)
        return Wanted(action, mode, frozenset({self.old}), rss, cookie=self._cookie)

    def want(self, mode: Mode, rss: frozenset[int] = frozenset()) -> None:
        """One more move, reported and not ended."""
        self.tell(self.wanted(mode, rss))

    def look(self) -> bool:
        """Tell what was seen, and that time has passed; has it ended?"""
        seen = self.actuator.evidence(self.actuator.now_ns())
        self._said(driven(self.moves, *seen, TimerDue()))
        return len(self.ended) == len(self.began_ns)

    def look_at_link(self) -> None:
        """What the daemon does when rtnetlink says something."""
        lives = self.nic.lives
        if not self.nic.changed():
            return
        self.nic.refresh()
        if not self.nic.news():
            return
        facts = PortChanged(
            read_port(self.nic.facts, self.nic.nic.interface, self.actuator.write_ns())
        )
        again = (Reset(),) if self.nic.lives > lives else ()
        self._said(driven(self.moves, facts, *again))

    def move(self, mode: Mode, rss: frozenset[int] = frozenset()) -> Ended:
        self.want(mode, rss)
        until(self.look, "the move has ended")
        return self.ended[-1]

    def _said(self, said: list[Outcome | Ended]) -> None:
        for each in said:
            if isinstance(each, Ended):
                self.ended.append(each)
            elif not each.errno:
                self.old, self.new = self.new, self.old

    def count(self, verdict: Verdict) -> int:
        return sum(each.verdict is verdict for each in self.ended)


class Flow(Moving):
    """One that is sent from the peer of a NIC."""

    def __init__(self, lab: Ends[Nic], path: Path, times: Times, undo: ExitStack) -> None:
        self.sender, self.receiver = lab.udp_pair(socket.AF_INET, 4000, 5000)
        key, cookie = key_of(self.receiver, Protocol.UDP), cookie_of(self.receiver)
        super().__init__(lab.nic, key, cookie, path, times, undo)
        assert lab.nic.filters() == []
        self.place()

    def late(self, tally: Tally) -> Counter[int]:
        """Late datagrams by move, as the receiver saw them."""
        return Counter(bisect.bisect(self.began_ns, at) - 1 for at in tally.late_ns)
