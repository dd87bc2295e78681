# SPDX-License-Identifier: GPL-2.0-or-later
"""The NICs and moves that the machine is checked with, each with all that may go wrong there."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from atfnd.model import ActionKind, Actuator
from atfnd.move.event import Wanted
from atfnd.move.port import Port, Stage
from tests.move import births
from tests.move.check import LENDS, PORT, wanted
from tests.move.world import A, B, Birth, R, Scene

__all__ = [
    "ASYNCHRONOUS",
    "BORN",
    "BORROWED",
    "CONNECT",
    "GRO",
    "IN_PLACE",
    "LISTEN",
    "MOVED",
    "OUT_OF_RFS",
    "REFUSED",
    "SETTING",
    "THREE_PACKETS",
    "THROUGH_RFS",
    "THROUGH_RSS",
    "TOO_LATE",
    "UNKNOWN_EFFECT",
    "Case",
]

_WRITE = frozenset({"refused hold", "refused write", "dropped write"})
_ALL = _WRITE | {"broken hold", "lost event", "reset", "crash"}
_DELETES_AND_ADDS = PORT._replace(actuator=Actuator.SHORT_GAP)
_TIMEOUT = PORT._replace(rings=(PORT.rings[0]._replace(gro_flush_timeout_ns=20_000),) * 3)


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
GRO = Case(Scene("packets held in GRO", gro=True, ticks=4), wanted(), _TIMEOUT)
ASYNCHRONOUS = Case(
    Scene("an effect that comes late", late=True, ticks=4), wanted(),
    PORT._replace(asynchronous=True),
)  # fmt: skip

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
TOO_LATE = WAITING._replace(
    scene=WAITING.scene._replace(name="a connect that waits too long", begins=births.EXPECTED + 1)
)
UNKNOWN_EFFECT = Case(
    CONNECT.scene._replace(name="a connect, and an effect that comes late", late=True),
    CONNECT.wanted, PORT._replace(asynchronous=True),
)  # fmt: skip
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

REFUSED = [
    GRO,
    TOO_LATE,
    UNKNOWN_EFFECT,
    ASYNCHRONOUS,
    Case(Scene("two rings to quiesce, and one can be", path=(R, B), lost=(R,)), wanted(),
         _DELETES_AND_ADDS._replace(holds_max=1)),
    Case(Scene("a stage of each CPU"), wanted(), PORT._replace(stages=frozenset({Stage.RPS}))),
    Case(Scene("the same rule anew", path=(R, A)),
         wanted()._replace(action=replace(wanted().action, new=A)),
         _DELETES_AND_ADDS),
]  # fmt: skip
