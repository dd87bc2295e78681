# SPDX-License-Identifier: GPL-2.0-or-later
"""The engine of the simulated daemon is pure: what it answers, and becomes, depends on nothing but
what it was, on the event and on the time. Nobody else changes what it knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy

import pytest

from atfnd.engine.command import Command
from atfnd.engine.engine import Engine
from atfnd.engine.event import Event
from tests.simulation.run import run
from tests.simulation.schedule import plan

EVERY = 20  # events: a copy of all that the engine knows takes long
RARE = 20  # times: until then each event of a kind counts


def plain(known: object) -> object:
    """What an object of the engine is made of, to be compared."""
    if isinstance(known, Mapping):
        return [(key, plain(value)) for key, value in known.items()]
    if isinstance(known, list | tuple):
        return [plain(each) for each in known]
    if not type(known).__module__.startswith("atfnd.engine."):
        return None if callable(known) else known
    names = getattr(known, "__slots__", None) or vars(known)
    return {name: plain(getattr(known, name)) for name in names}


@pytest.mark.parametrize("seed", range(2))
def test_from_equal_states_equal_events_give_equal_commands_and_states(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, seen, compared = Engine.handle, Counter[type](), Counter[type]()
    left: dict[int, Engine] = {}  # by engine, as it was after the event before, if that was copied

    def twice(engine: Engine, event: Event, now_ns: int) -> Sequence[Command]:
        if (before := left.pop(id(engine), None)) is not None:
            for each in (engine, before):
                each.memory.next_due_ns()  # this forgets what is not due any more
            assert plain(engine) == plain(before)
        seen[type(event)] += 1
        if seen[type(event)] > RARE and seen[type(event)] % EVERY:
            return handle(engine, event, now_ns)
        other, given = deepcopy((engine, event))
        commands = handle(engine, event, now_ns)
        assert handle(other, given, now_ns) == commands
        assert plain(engine) == plain(other)
        left[id(engine)] = other
        compared[type(event)] += 1
        return commands

    monkeypatch.setattr(Engine, "handle", twice)
    run(plan(seed))
    assert compared.total() > 50
