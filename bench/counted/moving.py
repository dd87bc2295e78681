# SPDX-License-Identifier: GPL-2.0-or-later
"""A move of a flow, again and again, by the product's machine of the moves (`atfnd.move`), so that
what it executes can be counted. The kernel is not in it: a NIC that does at once what it is asked
for, and whose old ring has always drained."""

from __future__ import annotations

from collections.abc import Sequence

from atfnd.daemon.moving import carry_out
from atfnd.model import Action, ActionKind, Actuator, FlowKey, Mode, Outcome
from atfnd.model.reason import Code
from atfnd.move.command import Ended
from atfnd.move.device import NicMoves
from atfnd.move.event import Asleep, Event, Seen, Subject, TimerDue, Wanted
from atfnd.move.frozenmap import FrozenMap
from atfnd.move.learn import Record
from atfnd.move.mover import MoveActuator, Mover
from atfnd.move.port import Port, Ring
from atfnd.move.timer import Times

__all__ = ["Moves"]

QUEUES = 16
WARM = 100  # moves, after which Python executes the same for each
SECOND_NS = 1_000_000_000
RING = Ring(512, 0, 0, busy_poll=False, service_pps=1e6, thread=True)
PORT = Port(Actuator.IN_PLACE, False, frozenset(), (RING,) * QUEUES, write_ns=10_000)


class _Kernel(MoveActuator):
    def __init__(self) -> None:
        self._now_ns, self._drains = SECOND_NS, Asleep(0, 0)

    def now_ns(self) -> int:
        self._now_ns += 1000
        return self._now_ns

    def wait(self, ns: int) -> None:
        self._now_ns += ns

    def write(self, action: Action) -> Outcome:
        return Outcome(action, self.now_ns(), 0, action.location, "")

    def hold(self, queue: int, until_ns: int, drains: frozenset[int]) -> int:
        return self.now_ns()

    def in_force(self, queue: int) -> bool:
        return True

    def release(self, queue: int) -> bool:
        return True

    def watch(self, *_: object, **__: object) -> None: ...

    def unwatch(self, key: FlowKey) -> None: ...

    def stands(self, key: FlowKey, location: int, queue: int) -> bool:
        return True

    def delivered_ns(self, key: FlowKey) -> int | None:
        return None

    def drain_evidence(self, queue: int, from_ns: int, hands_on: bool) -> None:
        self._drains = Asleep(queue, from_ns)

    def evidence(self, until_ns: int) -> Sequence[Event]:
        return (self._drains,)


class Moves:
    """Of a NIC on which each of these flows was moved before."""

    def __init__(self, keys: Sequence[FlowKey]) -> None:
        self._keys, self._moved, self._kernel = keys, 0, _Kernel()
        taught = FrozenMap[Subject, Record](dict.fromkeys(keys, Record(0)))
        self._mover = Mover(self._kernel, NicMoves(PORT, Times(), records=taught))
        for _ in range(WARM):
            self.move()

    def move(self) -> list[Ended]:
        """The next flow, to the queue after its own: its hold, its write and the proof that the
        old ring drained, then the first packet through the new one, and what ends it."""
        turn, number = divmod(self._moved, len(self._keys))
        self._moved += 1
        key, old, new = self._keys[number], (number + turn) % QUEUES, (number + turn + 1) % QUEUES
        action = Action(ActionKind.REWRITE, "eth0", key, number, old, new, Code.UNSAID(), "")
        origins = frozenset({old})
        said = self._ends(Wanted(action, Mode.STRICT, origins, origins, cookie=number))
        said += self._ends(Seen(key, new, self._kernel.now_ns()))
        self._kernel.wait(SECOND_NS)
        return said + self._ends(TimerDue())

    def _ends(self, event: Event) -> list[Ended]:
        said = carry_out(self._mover.steps(event), self._kernel.write)
        return [each for each in said if isinstance(each, Ended)]
