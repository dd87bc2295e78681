# SPDX-License-Identifier: GPL-2.0-or-later
"""The NICs and moves that the machine is checked with, each with all that may go wrong there."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from atfnd.model import ActionKind, Actuator
from atfnd.move.event import Wanted
from atfnd.move.port import Port, Stage
from tests.move.check import PORT, wanted
from tests.move.world import A, B, R, Scene

__all__ = [
    "ASYNCHRONOUS",
    "GRO",
    "IN_PLACE",
    "MOVED",
    "REFUSED",
    "THREE_PACKETS",
    "THROUGH_RSS",
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
THREE_PACKETS = Case(Scene("three packets", ticks=4), wanted())
GRO = Case(Scene("packets held in GRO", gro=True, ticks=4), wanted(), _TIMEOUT)
ASYNCHRONOUS = Case(
    Scene("an effect that comes late", late=True, ticks=4), wanted(),
    PORT._replace(asynchronous=True),
)  # fmt: skip

MOVED = [
    IN_PLACE,
    Case(IN_PLACE.scene._replace(name="two faults", most_faults=2), wanted()),
    THROUGH_RSS,
    THREE_PACKETS,
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
    ASYNCHRONOUS,
    Case(Scene("two rings to park, and one can be", path=(R, B), lost=(R,)), wanted(),
         _DELETES_AND_ADDS._replace(holds_max=1)),
    Case(Scene("a stage of each CPU"), wanted(), PORT._replace(stages=frozenset({Stage.RPS}))),
    Case(Scene("the same rule anew", path=(R, A)),
         wanted()._replace(action=replace(wanted().action, new=A)),
         _DELETES_AND_ADDS),
]  # fmt: skip
