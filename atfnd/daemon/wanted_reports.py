# SPDX-License-Identifier: GPL-2.0-or-later
"""What the observer reports: what the policy asks for, and more while a recording is made."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from atfnd.daemon.handshakes import BirthReader
from atfnd.daemon.in_force import InForce
from atfnd.daemon.recording import Recorder
from atfnd.daemon.sockets import SocketReader
from atfnd.model import Policy
from atfnd.observe import Observer, Qualify
from atfnd.policy.match.compile import compiled
from atfnd.policy.match.match import asks_direction, qualify

__all__ = ["WantedReports", "asked"]

# A thread that is not pinned may leave again at once. What is moved when its stay has brought what
# the move costs is moved at no more than twice the cost of the best decision, whatever the thread
# does then (Karlin et al., "Competitive snoopy caching", Algorithmica 3, 1988).
MOVE_NS = 1_500_000  # of CPU: our decision, its journal and its write (bench `migrating`)
REMOTE_PACKET_NS = 750  # what a packet costs more that is not delivered on its reader's CPU
WORTH_PACKETS = MOVE_NS // REMOTE_PACKET_NS


def asked(policy: Policy) -> Qualify:
    """What a policy has the observer report."""
    direction, elsewhere = asks_direction(policy), policy.elsewhere()
    clauses = compiled(policy).clauses
    return Qualify(*qualify(policy), direction, elsewhere, clauses, WORTH_PACKETS)


class WantedReports:
    """Tells the observer. Sockets that it reported and nobody wanted are reported again after each
    change of what is asked."""

    def __init__(
        self,
        observer: Observer,
        recorder: Recorder,
        sockets: SocketReader,
        births: BirthReader,
        in_force: InForce,
    ) -> None:
        self._observer, self._recorder = observer, recorder
        self._sockets, self._births, self._in_force = sockets, births, in_force

    def ask(self) -> None:
        """Tell the observer what the policy in force wants reported."""
        wanted = asked(self._in_force.policy)
        if self._recorder.asked():
            wanted = wanted._replace(clauses=(), elsewhere=True)
        self._observer.qualify(wanted)

    async def recording(self, seconds: float, most: int) -> AsyncGenerator[str, None]:
        """As `serve.Source.recording`. The recording is for trying another policy. So while it is
        made, the observer reports every socket, even those that the rules of this policy leave out
        and those whose packets arrive right, and births are observed."""
        with self._recorder.asking():
            self.ask()
            self._sockets.forget_unknown()
            if not self._births.attached:
                self._births.renew()
            async with aclosing(self._recorder.lines(seconds, most)) as lines:
                async for line in lines:
                    yield line
        self.ask()
        self._sockets.forget_unknown()
