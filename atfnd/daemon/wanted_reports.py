# SPDX-License-Identifier: GPL-2.0-or-later
"""What the observer reports: what the policy asks for, and more while a recording is made."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from atfnd.daemon.handshakes import BirthReader
from atfnd.daemon.in_force import InForce
from atfnd.daemon.recording import Recorder
from atfnd.daemon.sockets import SocketReader
from atfnd.model import Policy, Topology, divided
from atfnd.observe import Observer, Price, Qualify
from atfnd.observe.machine.topology import CpuWatch
from atfnd.policy.match.compile import compiled
from atfnd.policy.match.match import asks_direction, qualify

__all__ = ["WantedReports", "asked"]

# CPU of our decision, its journal and its write, as measured on 2026-11-22.
MOVE_NS = 1_500_000
# What a packet costs more from another CPU of the LLC: a constant; a guess.
# From another LLC and another node: assumed, no machine that has two was measured.
PACKET_NS = 750, 1_500, 2_000
# A thread begins in doubt: its stay must bring all that a move costs. Stays that were long enough
# halve the price, this often at most; each move in vain makes the next one four times as dear.
TRUST = 9
# One move in each such time costs this share of a core, for all threads together.
SHARE_PERCENT = 1
PRICE = Price(MOVE_NS, PACKET_NS, TRUST, MOVE_NS * 100 // SHARE_PERCENT, TRUST)


def asked(policy: Policy, cpus: Topology) -> Qualify:
    """What a policy has the observer report on a machine of these CPUs."""
    direction, elsewhere = asks_direction(policy), policy.elsewhere()
    clauses = compiled(policy).clauses
    return Qualify(*qualify(policy), direction, elsewhere, clauses, PRICE, divided(cpus.cpus))


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
        cpus: CpuWatch,
    ) -> None:
        self._observer, self._recorder = observer, recorder
        self._sockets, self._births, self._in_force = sockets, births, in_force
        self._cpus = cpus

    def ask(self) -> None:
        """Tell the observer what the policy in force wants reported."""
        wanted = asked(self._in_force.policy, self._cpus.known())
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
