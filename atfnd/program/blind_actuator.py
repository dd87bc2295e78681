# SPDX-License-Identifier: GPL-2.0-or-later
"""`move.mover.MoveActuator` where the kernel refuses the programs that see packets and polls: rules
are written, nothing is proven, so strict moves nothing, and RFS of no queue is switched.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence

from atfnd.model import Action, FlowKey, Outcome
from atfnd.move.event import Event, EvidenceLost
from atfnd.move.port import rfs_queue
from atfnd.nic import Nic
from atfnd.program.actuator import Trial, apply
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.undo_journal import UndoJournal

__all__ = ["BlindActuator"]


class BlindActuator:
    """`why` is what the kernel said."""

    def __init__(
        self, nic: Nic, journal: FilterJournal, undo_journal: UndoJournal, why: str
    ) -> None:
        self._nic, self._journal, self._undo_journal = nic, journal, undo_journal
        self._why = f"packets are not seen here: {why}"
        self._missed = False

    def write(self, action: Action) -> Outcome:
        if rfs_queue(action) is not None:  # its queue could not be quiesced
            left = f"{action.setting} stays as it is: {self._why}"
            return Outcome(action, self.now_ns(), errno.EOPNOTSUPP, None, left)
        return apply(self._nic, self._journal, self._undo_journal, action)

    def start(self) -> None: ...

    def rest(self) -> None: ...

    def close(self) -> None: ...

    def watching(self) -> bool:
        """There is never any evidence."""
        return False

    def fileno(self) -> int:
        """There is nothing to wait for: -1."""
        return -1

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def write_ns(self) -> int | None:
        """Never known: no move can be proven."""
        return None

    def service_pps(self) -> dict[int, float]:
        """Never known."""
        return {}

    def trial(self, nic: str) -> Trial:
        """Nothing is tried: no move can be proven."""
        yield from ()
        return None

    def hold(self, queue: int, until_ns: int, drains: frozenset[int]) -> int:
        raise OSError(errno.EOPNOTSUPP, self._why)

    def stands(self, key: FlowKey, location: int, queue: int) -> bool:
        """Never called: a packet that is not seen is never late."""
        return True

    def in_force(self, queue: int) -> bool:
        return False

    def release(self, queue: int) -> bool:
        return False

    def watch(
        self,
        key: FlowKey,
        origins: frozenset[int],
        targets: frozenset[int],
        through: frozenset[int],
        cookie: int | None,
    ) -> None:
        self._missed = True

    def unwatch(self, key: FlowKey) -> None: ...

    def delivered_ns(self, key: FlowKey) -> int | None:
        return None

    def drain_evidence(self, queue: int, from_ns: int, hands_on: bool) -> None: ...

    def evidence(self, until_ns: int) -> Sequence[Event]:
        missed, self._missed = self._missed, False
        return [EvidenceLost()] if missed else []
