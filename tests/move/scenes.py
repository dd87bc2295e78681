# SPDX-License-Identifier: GPL-2.0-or-later
"""The NICs and moves that the machine is checked with, each with all that may go wrong there."""

from __future__ import annotations

from typing import NamedTuple

from atfnd.model import ActionKind, Actuator
from atfnd.move.event import Wanted
from atfnd.move.port import Port
from tests.move import births
from tests.move.check import LENDS, PORT, wanted
from tests.move.world import A, B, Birth, R, Scene

__all__ = ["BORN", "MOVED", "Case"]

_WRITE = frozenset({"refused hold", "refused write", "dropped write"})
_ALL = _WRITE | {"broken hold", "lost event", "reset", "crash"}
_DELETES_AND_ADDS = PORT._replace(actuator=Actuator.SHORT_GAP)


class Case(NamedTuple):
    """A scene, and the move in it."""

    scene: Scene
    wanted: Wanted
    port: Port = PORT


IN_PLACE = Case(Scene("rewritten in place", packets=2, faults=_ALL, ticks=4), wanted())
THROUGH_RSS = Case(
    Scene("deleted and added", path=(R, B), lost=(R,), ticks=4), wanted(), _DELETES_AND_ADDS
)


def _with_rfs(*rings: int, port: Port = PORT) -> Port:
    each = enumerate(port.rings)
    return port._replace(rings=tuple(r._replace(hands_on=at in rings) for at, r in each))


OUT_OF_RFS = Case(
    Scene("out of a queue with RFS", packets=2, faults=frozenset({"lost event"}),
          hands_on=frozenset({A}), hold_max=3, ticks=4),
    wanted(), _with_rfs(A),
)  # fmt: skip
INTO_RFS = Case(
    Scene("into a queue with RFS", packets=2, faults=_ALL - {"reset"}, hands_on=frozenset({B}),
          ticks=4),
    wanted(), _with_rfs(B),
)  # fmt: skip
THROUGH_RFS = Case(
    Scene("through RSS's queue, which has RFS", path=(R, B), lost=(R,), hands_on=frozenset({R}),
          packets=2, hold_max=3, ticks=4),
    wanted(), _with_rfs(R, port=_DELETES_AND_ADDS),
)  # fmt: skip
THREE_PACKETS = Case(Scene("three packets", ticks=4), wanted())
SETTING = Case(
    Scene("a setting is wanted meanwhile", packets=2, faults=frozenset({"a setting"}), ticks=4),
    wanted(),
)

_ONLY_ERRORS_AND_LOSS = frozenset({"refused write", "dropped write", "lost event"})
_SLOW = frozenset({"nearer peer", "slow write"})
CONNECT = Case(
    Scene("a connect", faults=_ONLY_ERRORS_AND_LOSS | _SLOW, most_faults=3, ticks=5,
          birth=Birth(births.EXPECTED)),
    births.wanted(),
)  # fmt: skip
WAITING = Case(
    CONNECT.scene._replace(name="a connect that waits", begins=2), CONNECT.wanted,
    PORT._replace(holds_max=0),
)  # fmt: skip
LISTEN = Case(
    Scene(
        "a listener", faults=_ONLY_ERRORS_AND_LOSS, most_faults=2, ticks=5, birth=Birth(), begins=2
    ),
    births.wanted(births.PORT),
)
BORROWED = Case(
    Scene("threads are borrowed", packets=2, faults=_ALL | {"refused loan"}, ticks=4, lends=True),
    wanted(), LENDS,
)  # fmt: skip
BORN = [
    CONNECT,
    Case(CONNECT.scene._replace(name="a connect, a reset, a crash", faults=_ALL | _SLOW,
                                most_faults=1), CONNECT.wanted),
    WAITING,
    Case(LISTEN.scene._replace(name="a listener at once", begins=0), LISTEN.wanted),
    LISTEN,
    Case(LISTEN.scene._replace(name="a listener, a reset, a crash", packets=2, faults=_ALL),
         LISTEN.wanted),
]  # fmt: skip
MOVED = [
    IN_PLACE,
    Case(IN_PLACE.scene._replace(name="two faults", most_faults=2), wanted()),
    THROUGH_RSS,
    THREE_PACKETS,
    OUT_OF_RFS,
    INTO_RFS,
    THROUGH_RFS,
    SETTING,
    BORROWED,
    Case(BORROWED.scene._replace(name="borrowed for two rings", path=(R, B), lost=(R,),
                                 faults=frozenset({"refused loan"})), wanted(),
         LENDS._replace(actuator=Actuator.SHORT_GAP)),
    Case(Scene("a first rule", packets=2, faults=_ALL, ticks=4), wanted(ActionKind.INSERT, rss=A)),
    Case(Scene("a deleted rule", packets=2, faults=_ALL, ticks=4),
         wanted(ActionKind.DELETE, rss=B)),
    Case(THROUGH_RSS.scene._replace(name="deleted and added, with faults", packets=2,
                                    faults=_WRITE), wanted(), _DELETES_AND_ADDS),
    Case(Scene("RSS gives the old ring", path=(A, B), lost=(A,), packets=2, faults=_WRITE,
               ticks=4), wanted(rss=A), _DELETES_AND_ADDS),
    Case(Scene("RSS gives the new ring", path=(B, B), lost=(B,), packets=2, faults=_WRITE,
               ticks=4), wanted(rss=B), _DELETES_AND_ADDS),
]  # fmt: skip
