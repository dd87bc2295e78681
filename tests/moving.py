# SPDX-License-Identifier: GPL-2.0-or-later
"""A real flow that is moved by the machine of the moves, with the kernel in its hands."""

from __future__ import annotations

import bisect
import socket
import sys
import time
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from atfnd.model import Action, ActionKind, Outcome, Protocol
from atfnd.move.command import Ended
from atfnd.move.device import Device
from atfnd.move.event import Tick, Wanted
from atfnd.move.frozenmap import FrozenMap
from atfnd.move.mover import Mover
from atfnd.move.timer import Times
from atfnd.move.verdict import Mode, Verdict
from atfnd.nic import Nic
from atfnd.observe.nics import NicWatch
from atfnd.observe.port import read_port
from atfnd.program.apply import apply
from atfnd.program.hands import NicHands
from atfnd.program.journal import Journal
from atfnd.program.originals import Originals
from bench.traffic.sequence import Tally
from tests.labs import Ends, key_of
from tests.wait import until

__all__ = ["ANOTHER_AT_ONCE", "Moving"]

SO_COOKIE = 57  # asm-generic/socket.h
ANOTHER_AT_ONCE = Times(hold_down_max_ns=0)  # a flow does not rest


class Moving:
    """One flow, the two queues it goes back and forth between, and all that became of it. The NIC
    is armed, and its queues are on CPUs of their own."""

    def __init__(self, lab: Ends[Nic], path: Path, times: Times, undo: ExitStack) -> None:
        self.sender, self.receiver = lab.udp_pair(socket.AF_INET, 4000, 5000)
        self.key = key_of(self.receiver, Protocol.UDP)
        raw = self.receiver.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8)
        cookies = {self.key: int.from_bytes(raw, sys.byteorder)}
        self.nic = NicWatch(lab.nic, armed=True, budget=None)
        undo.callback(self.nic.close)
        self.nic.inspect()
        journal, originals = Journal(path / "rules"), Originals(path / "originals")
        self.hands = undo.enter_context(
            closing(
                NicHands(
                    partial(apply, lab.nic, journal, originals),
                    lambda: self.nic.view.queues,
                    cookies.get,
                )
            )
        )
        undo.callback(journal.close)
        undo.callback(originals.close)
        self.hands.start()
        assert self.hands.try_writes(lab.nic.name).errno == 0
        assert lab.nic.rules() == []
        self.old, self.new = 0, 1
        self.location = self.hands.write(self._action(ActionKind.INSERT, None, self.old)).location
        port = read_port(self.nic.view, self.hands.write_ns())
        self.moves = Mover(self.hands, Device(port, times))
        self.began_ns: list[int] = []  # CLOCK_REALTIME
        self.ended: list[Ended] = []

    def _action(self, kind: ActionKind, old: int | None, new: int) -> Action:
        location = None if old is None else self.location
        return Action(kind, self.nic.view.name, self.key, location, old, new, "", "")

    def want(self, mode: Mode, rss: frozenset[int] = frozenset()) -> None:
        """One more move, told of and not ended. What it learned of the last is forgotten. `rss`:
        the queue that RSS gives the flow, where a change of its rule passes through that."""
        device = self.moves.device
        self.moves.device = replace(device, records=FrozenMap(), timers_ns=FrozenMap())
        action = self._action(ActionKind.REWRITE, self.old, self.new)
        self.began_ns.append(time.time_ns())
        self._said(self.moves.tell(Wanted(action, mode, frozenset({self.old}), rss)))

    def look(self) -> bool:
        """Tell what was seen, and that time has passed; has it ended?"""
        seen = self.hands.evidence(self.hands.now_ns())
        self._said(self.moves.tell(*seen, Tick()))
        return len(self.ended) == len(self.began_ns)

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

    def late(self, tally: Tally) -> Counter[int]:
        """Late datagrams by move, as the receiver saw them."""
        return Counter(bisect.bisect(self.began_ns, at) - 1 for at in tally.late_ns)

    def count(self, verdict: Verdict) -> int:
        return sum(each.verdict is verdict for each in self.ended)
