# SPDX-License-Identifier: GPL-2.0-or-later
"""One NIC that is served: what watches it, its moves, and what is remembered of it. All of that
ends with the session."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from atfnd.daemon.moving import Moving
from atfnd.engine.table.memory import NicMemory
from atfnd.model import FlowKey, NicView
from atfnd.observe.nics.watch import NicWatch
from atfnd.observe.sockets.socket_lookup import SocketLookup

__all__ = ["NicSession", "Sessions", "moving"]


class NicSession:
    """Changed by those that serve it."""

    def __init__(self, watch: NicWatch, known: NicMemory) -> None:
        self.watch, self._known = watch, known
        self.moves: Moving | None = None  # while it is armed, from its first move on
        self.prepared: int | None = None  # the instance of the NIC that was prepared
        self.met = False  # what steering it takes was looked at
        self.unread = ""  # why it could not be read at the last look
        self._lookup: SocketLookup | None = None  # from its first question on

    @property
    def view(self) -> NicView:
        """What was read of it, and what was decided about it: the engine's."""
        return self._known.view

    def shown(self, owned: Callable[[], frozenset[int]]) -> NicView:
        """With its filters and counters, as `NicWatch.shown`."""
        return self.watch.shown(self.view, owned)

    @property
    def armed_again(self) -> bool:
        """It is armed, or will be when its pause ends."""
        return self._known.armed_again

    @property
    def name(self) -> str:
        return self.watch.facts.name

    def moves_flow(self, key: FlowKey) -> bool:
        """A move of this flow waits or is under way."""
        return self.moves is not None and self.moves.concerns(key)

    def socket_of(self, key: FlowKey) -> int | None:
        """The cookie of a flow's socket; None: there is none. OSError: the kernel does not say."""
        if self._lookup is None:
            self._lookup = SocketLookup(self.watch.nic.netns)
        return self._lookup.cookie(key)

    def lives(self, key: FlowKey) -> bool:
        """A socket has this 5-tuple; or it is a port's, or the kernel does not say."""
        if key.listens:
            return True
        try:
            return self.socket_of(key) is not None
        except OSError:
            return True

    def end_moves(self) -> None:
        """End all moves: what is quiesced is polled again, what waits is forgotten. OSError: not
        all of that was possible."""
        moves, self.moves = self.moves, None
        lookup, self._lookup = self._lookup, None
        with ExitStack() as ending:
            if lookup is not None:
                ending.callback(lookup.close)
            if moves is not None:
                ending.callback(moves.close)


Sessions = dict[str, NicSession]  # by name


def moving(sessions: Sessions) -> frozenset[FlowKey]:
    """The flows of which a move waits or is under way on some NIC."""
    moves = (session.moves for session in sessions.values())
    return frozenset(key for each in moves if each is not None for key in each.flows())
