# SPDX-License-Identifier: GPL-2.0-or-later
"""What must hold in every state of the world, and the scenes it is checked in.

- InOrder: no packet is delivered after a later one, unless a hold ended by itself, the NIC was
  reset (which moves flows by itself) or the daemon died
- Honest: a move that is called proven had none, whatever happened; nor had one of a listener's port
  that is called verified, if the connection was reported before it ended
- I1 to I4, I6: one hold's rings, one write; quiesced before it, released after the old ring drained
- I5: a setting that is wanted meanwhile is not turned before the move has ended
- I8: only a ring with a thread is quiesced, and no borrowed thread is given back meanwhile
- FailOpen: when nothing can happen any more, nothing is quiesced, and nothing waits (I7)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from atfnd.model import Action, ActionKind, Actuator
from atfnd.model.reason import Code
from atfnd.move.device import NicMoves
from atfnd.move.event import Wanted
from atfnd.move.port import NO_THREAD, Port, Ring
from atfnd.move.timer import Times
from atfnd.move.verdict import Mode, Verdict
from tests.move import births, nic
from tests.move.births import KEY
from tests.move.daemon import Daemon
from tests.move.explore import Found, explore
from tests.move.world import RINGS, A, B, R, Scene, World

__all__ = ["KEY", "LENDS", "PORT", "TIMES", "check", "wanted"]

RING = Ring(
    size=1, rx_usecs=0, gro_flush_timeout_ns=0, busy_poll=False, service_pps=1e9, thread=True
)
PORT = Port(
    Actuator.IN_PLACE, asynchronous=False, stages=frozenset(), rings=(RING, RING, RING), write_ns=0,
    holds_max=2,
)  # fmt: skip
LENDS = PORT._replace(rings=(RING._replace(loan="threaded", thread=False, no_hold=NO_THREAD),) * 3)
TIMES = Times(
    pipe_ns=1, hold_max_ns=2, arm_ns=2, quiet_ns=1, verify_ns=1, late_ns=0, follow_ns=1,
    hold_down_ns=1, learn_ns=0, move_every_ns=0, burst=1, loan_linger_ns=1, loan_max_ns=2,
    loan_rest_ns=1, loan_refused_ns=1,
)  # fmt: skip


def wanted(kind: ActionKind = ActionKind.REWRITE, rss: int = R) -> Wanted:
    """Flow KEY from ring A to B in strict mode; a delete gives it back to RSS's ring."""
    new = None if kind is ActionKind.DELETE else B
    location = None if kind is ActionKind.INSERT else 7
    action = Action(kind, "nic", KEY, location, A, new, Code.UNSAID(), "")
    return Wanted(action, Mode.STRICT, frozenset({A}), frozenset({rss}))


def check(scene: Scene, move: Wanted, port: Port = PORT, order_only: bool = False) -> Found:
    """Visit every state of a scene with the real machine in it (`order_only`: see Daemon)."""
    times = replace(TIMES, hold_max_ns=scene.hold_max)
    daemon = Daemon(NicMoves(port, times, arrival_ns=scene.begins), move, scene, order_only)
    proofs = {Verdict.PROVEN.value}
    if listens := births.listens(scene):
        proofs.add(Verdict.VERIFIED.value)

    def steps(world: World) -> Iterator[tuple[str, World]]:
        if not world.wrong:
            yield from nic.moves(world, scene)
            yield from daemon.moves(world)

    def broken(world: World, still: bool) -> str | None:
        if world.overtaken and not world.excused and not listens:
            return "InOrder: a packet was delivered after a later one"
        if world.overtaken and world.verdict in proofs and not world.unawaited:
            return f"Honest: called {world.verdict}, and a packet was delivered after a later one"
        if still and not world.wrong:
            return _left_behind(daemon, world)
        return world.wrong

    return explore(daemon.first, steps, broken, lambda world: world.verdict)


def _left_behind(daemon: Daemon, world: World) -> str | None:
    quiesced = [RINGS[ring] for ring, until in enumerate(world.quiesced) if until]
    if quiesced:
        return f"FailOpen: ring {', '.join(quiesced)} is quiesced for ever"
    if any(world.ring) or any(world.pipe) or world.backlog:
        return "FailOpen: packets are left"
    if world.machine is not None and world.verdict is None:
        return "FailOpen: a move never ends"
    return None
