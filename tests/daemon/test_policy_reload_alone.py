# SPDX-License-Identifier: GPL-2.0-or-later
"""`PolicyReload` without a daemon: what it tells the other parts when another policy comes."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from atfnd.daemon import reload as reload_module
from atfnd.daemon.chores import Shortage
from atfnd.daemon.in_force import InForce
from atfnd.daemon.reload import Given, PolicyReload
from atfnd.engine.event import PolicyLoaded, TakenUp
from atfnd.errors import OperatorError
from atfnd.model import InterfaceRule, Policy
from atfnd.serve.log.event_log import EventLog
from tests.values import NIC, RULE, flow, key

__all__: list[str] = []

ARMS = InterfaceRule("*", "test:1", armed=True, filters_max=None, filters_reserve=0)
LEAVES = replace(ARMS, armed=False)
BEFORE = Policy((LEAVES,), (RULE,), "auto", 64, 0, ("before.yaml",))
AFTER = replace(BEFORE, interfaces=(ARMS,), files=("after.yaml",), web_port=8080)


class Parts:
    """What stands for the other parts: each call that matters is noted."""

    def __init__(self, load: Callable[[], Policy], *, armed: bool = False) -> None:
        part: Any = SimpleNamespace
        self.reported: list[tuple[object, ...]] = []
        self.log, self.in_force = EventLog(), InForce(BEFORE)
        self.births: Callable[[], object] = self._note("births")
        self.ordered: bool | None = None  # what an operator ordered for the NIC
        view = replace(NIC, armed=armed)
        watch = part(view=view, allow=self._note("budget"), arm_on_resume=self._note("later"))
        session = part(
            name=NIC.name,
            view=view,
            watch=watch,
            moves=part(use=self._note("moves"), flows=lambda: [key(2)]),
        )
        nics = part(
            sessions={NIC.name: session}, interfaces=part(watch_by=lambda watch: None),
            each=lambda look: None, while_there=lambda session: nullcontext(),
        )  # fmt: skip
        executor = part(
            decide=self._note("decide", ["commands"]), carry_out=self._note("carry out"),
            take=self._note("take"), know=None,
        )  # fmt: skip
        operator = part(arm_now=self._note("arm"), disarm_now=self._note("disarm"))
        self.reload = PolicyReload(
            Given(load, ()), self.in_force, part(flows_to_match=lambda: [flow(1)]), executor, nics,
            part(know_homes=None),
            part(forget_unknown=self._note("forget unknown")), part(renew=lambda: self.births()),
            part(qualify=self._note("qualify")),
            part(renew=self._note("matching"), of_flow=lambda flow, nic, now_ns: RULE),
            part(asked=lambda: False), operator, part(armed=lambda name: self.ordered),
            self._note("page"), self.log, Shortage(self._note("shortage")),
        )  # fmt: skip
        self.reload.tell_ready = self._note("ready")

    def _note(self, what: str, answer: Any = None) -> Callable[..., Any]:
        def called(*given: object) -> Any:
            self.reported.append((what, *given))
            return answer

        return called

    def words(self) -> list[object]:
        return [what for what, *_ in self.reported]

    def of(self, what: str) -> tuple[object, ...]:
        [given] = [given for each, *given in self.reported if each == what]
        return tuple(given)


def test_another_policy_is_taken_into_force_by_every_part() -> None:
    parts = Parts(lambda: AFTER)
    assert asyncio.run(parts.reload.reload()) == AFTER
    assert parts.in_force.policy == AFTER
    [loaded] = parts.of("decide")
    assert isinstance(loaded, PolicyLoaded)
    assert loaded == PolicyLoaded(AFTER, {(flow(1).cookie, key(1)): "rest"}, frozenset({key(2)}))
    assert (parts.of("moves"), parts.of("page")) == ((AFTER,), (8080,))
    assert parts.of("take") == (TakenUp(NIC.name),)
    assert {"matching", "qualify", "births", "forget unknown"} <= {*parts.words()}
    assert parts.words()[-1] == "ready"
    assert [event.kind for event in parts.log.after(0, 9)] == ["reloaded"]


def test_what_was_decided_is_carried_out_when_the_nics_know_of_the_policy() -> None:
    """Nothing is written by half of a policy: moves and arming come before."""
    parts = Parts(lambda: AFTER)
    asyncio.run(parts.reload.reload())
    words = parts.words()
    for before in ("matching", "qualify", "decide", "moves", "arm"):
        assert words.index(before) < words.index("carry out")
    assert parts.of("carry out") == (["commands"],)


def test_where_the_kernel_has_no_room_a_policy_is_taken_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It did not end the daemon with half of a policy in force."""
    monkeypatch.setattr(reload_module, "_AGAIN_S", 0.01)
    parts, refusals = Parts(lambda: AFTER), [OSError(errno.ENOMEM, "Cannot allocate memory")]
    shown = asyncio.Event()

    def births() -> None:
        if refusals:
            raise refusals.pop()
        shown.set()

    parts.births = births

    async def hung_up() -> None:
        parts.reload.hangup.set()
        chores = [*map(asyncio.ensure_future, (parts.reload.hangups(), shown.wait()))]
        done, _ = await asyncio.wait(chores, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        assert done == {chores[1]}
        chores[0].cancel()

    asyncio.run(hung_up())
    assert [given for what, *given in parts.reported if what == "shortage"] == [
        ["Cannot allocate memory"]
    ]
    assert parts.of("page") == (8080,)


def test_a_wrong_policy_changes_nothing_and_the_status_says_so() -> None:
    def load() -> Policy:
        raise OperatorError("a.yaml:3:1: no such key", "see atfnd check")

    parts = Parts(load)
    with pytest.raises(OperatorError):
        asyncio.run(parts.reload.reload())
    assert parts.in_force == InForce(BEFORE, "a.yaml:3:1: no such key")
    assert parts.words() == ["ready"]
    assert [event.kind for event in parts.log.after(0, 9)] == ["reload-failed"]


@pytest.mark.parametrize(
    ("armed", "policy", "ordered", "done"),
    [
        (False, AFTER, None, ["arm"]),
        (True, AFTER, None, []),
        (True, BEFORE, None, ["disarm"]),
        (False, AFTER, False, []),
        (True, BEFORE, True, []),
    ],
)
def test_the_policy_arms_and_disarms_where_no_operator_has(
    *, armed: bool, policy: Policy, ordered: bool | None, done: list[str]
) -> None:
    parts = Parts(lambda: policy, armed=armed)
    parts.ordered = ordered
    asyncio.run(parts.reload.reload())
    assert [word for word in parts.words() if word in ("arm", "disarm")] == done


def test_a_running_daemon_keeps_its_observer() -> None:
    parts = Parts(lambda: replace(AFTER, observer="sock_diag"))
    asyncio.run(parts.reload.reload())
    assert parts.in_force.policy == AFTER
    assert [event.kind for event in parts.log.after(0, 9)] == ["reload", "reloaded"]


def test_a_hangup_reloads_and_a_wrong_policy_does_not_end_that() -> None:
    mistakes = [OperatorError("wrong", "see")]

    def load() -> Policy:
        if mistakes:
            raise mistakes.pop()
        return AFTER

    async def hangups(parts: Parts) -> None:
        task = asyncio.ensure_future(parts.reload.hangups())
        ready = asyncio.Semaphore(0)
        parts.reload.tell_ready = ready.release
        for _ in range(2):
            parts.reload.hangup.set()
            await ready.acquire()
        task.cancel()

    parts = Parts(load)
    asyncio.run(hangups(parts))
    assert parts.in_force.policy == AFTER
