# SPDX-License-Identifier: GPL-2.0-or-later
"""A kernel that refuses to attach what sees packets, when a move first wants it."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from atfnd.daemon import moving
from atfnd.model import Action, ActionKind, Outcome, Policy
from atfnd.model.reason import Code
from atfnd.move.command import Ended
from atfnd.move.event import Wanted
from atfnd.move.verdict import Mode
from atfnd.observe.nics.watch import NicWatch
from atfnd.program import blind_actuator
from atfnd.program.blind_actuator import BlindActuator
from atfnd.program.journals.undo_journal import UndoJournal
from tests.move.test_move_mover import LIKELY
from tests.values import NIC, RULE, key

__all__: list[str] = []

EXCLUSIVE = "Operation not permitted"  # the root cgroup has an ingress program without ALLOW_MULTI


class Refused(BlindActuator):
    """As `NicActuator` there: it is made, and cannot be started."""

    def __init__(self, *given: object) -> None:
        del given
        self.closed = False

    def start(self) -> None:
        raise OSError(errno.EPERM, EXCLUSIVE)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("mode", [Mode.STRICT, Mode.IMMEDIATE])
def test_moves_go_on_without_it_and_it_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    undo_journal = UndoJournal(tmp_path / "originals.journal")
    written: list[Action] = []
    reported: list[str] = []
    monkeypatch.setattr(moving, "NicActuator", Refused)
    monkeypatch.setattr(moving, "read_port", lambda *_, **__: LIKELY._replace(write_ns=None))

    def apply(nic: object, journal: object, undo_journal: object, action: Action) -> Outcome:
        written.append(action)
        return Outcome(action, 1, 0, 7, "")

    monkeypatch.setattr(blind_actuator, "apply", apply)

    async def moved() -> list[Outcome | Ended]:
        nic = SimpleNamespace(name=NIC.name, interface=None, rule=None)
        watch = cast(NicWatch, SimpleNamespace(facts=NIC, nic=nic))
        watch.lives = 0
        policy = SimpleNamespace(hold_down_ns=0, moves_per_s=1000, interfaces=(), flows=(RULE,))
        nothing: Any = None
        made = moving.Moving(
            watch, nothing, undo_journal, lambda _: None, lambda _: None,
            cast(Policy, policy), reported.append,
        )  # fmt: skip
        said: list[Outcome | Ended] = []
        for number in range(3):
            action = Action(ActionKind.REWRITE, "nic", key(number), number, 0, 1, Code.UNSAID(), "")
            said += made.want([Wanted(action, mode, frozenset({0}), frozenset({0}))])
        made.close()
        return said

    said = asyncio.run(moved())
    undo_journal.close()
    assert reported == [EXCLUSIVE]
    moves = [key(0), key(1), key(2)]
    assert [action.key for action in written] == (moves if mode is Mode.IMMEDIATE else [])
    assert sum(isinstance(each, Outcome) for each in said) == len(written)


def test_rfs_is_not_switched_where_no_queue_can_be_quiesced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blind_actuator, "apply", lambda *given: Outcome(given[-1], 1, 0, None, ""))
    nothing: Any = None
    blind = BlindActuator(nothing, nothing, nothing, EXCLUSIVE)
    refused = blind.write(Action.of_setting("nic", "rps-flow-cnt:1", "256"))
    assert refused.errno == errno.EOPNOTSUPP
    assert EXCLUSIVE in refused.left
    assert not blind.write(Action.of_setting("nic", "rps-sock-flow-entries", "1")).errno
