# SPDX-License-Identifier: GPL-2.0-or-later
"""`PolicyReload` without a daemon: a policy is read, and brought into force step by step."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from atfnd.daemon import reload as reload_module
from atfnd.daemon.chores import Shortage
from atfnd.daemon.in_force import InForce
from atfnd.daemon.reload import PolicyReload
from atfnd.errors import OperatorError
from atfnd.model import Policy
from atfnd.serve.log.event_log import EventLog
from tests.values import RULE

BEFORE = Policy((), (RULE,), "auto", 64, 0, ("before.yaml",))
AFTER = replace(BEFORE, files=("after.yaml",), web_port=8080)
WRONG = OperatorError("a.yaml:3:1: no such key", "see atfnd check")


class Parts:
    """Two steps; the second meets each of `refusals` once. `done` has what was done, in order."""

    def __init__(self, *files: Policy | OperatorError) -> None:
        self.files = list(files)  # one for each time that they are read; the last one stays
        self.refusals: list[OSError] = []
        self.done: list[tuple[str, object]] = []
        self.log, self.in_force = EventLog(), InForce(BEFORE)
        self.shortages: list[str] = []
        self.whole = asyncio.Event()  # every step was done
        self.reload = PolicyReload(
            self._load, self.in_force, [self._first, self._second], self.log,
            Shortage(self.shortages.append),
        )  # fmt: skip
        self.reload.tell_ready = lambda: self.done.append(("ready", self.in_force.refused))

    def _load(self) -> Policy:
        found = self.files.pop(0) if len(self.files) > 1 else self.files[0]
        self.done.append(("read", found))
        if isinstance(found, OperatorError):
            raise found
        return found

    def _first(self, policy: Policy) -> None:
        assert self.in_force.policy is policy
        self.done.append(("first", policy))

    def _second(self, policy: Policy) -> None:
        if self.refusals:
            raise self.refusals.pop()
        self.done.append(("second", policy))
        self.whole.set()

    def kinds(self) -> list[str]:
        return [event.kind for event in self.log.after(0, 99)]


def no_memory() -> OSError:
    return OSError(errno.ENOMEM, "Cannot allocate memory")


async def within(seconds: float, wanted: Awaitable[object]) -> None:
    await asyncio.wait_for(wanted, seconds)


def test_where_the_kernel_has_no_room_a_policy_is_taken_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It did not end the daemon with half of a policy in force, and the client gets an answer."""
    monkeypatch.setattr(reload_module, "_AGAIN_S", 0.01)
    parts = Parts(AFTER)
    parts.refusals = [no_memory(), no_memory()]

    async def reload() -> None:
        with pytest.raises(OperatorError, match="only in part: Cannot allocate memory"):
            await parts.reload.reload()
        assert parts.in_force.policy == AFTER
        await within(30, parts.whole.wait())

    asyncio.run(reload())
    steps = [what for what, _ in parts.done]
    assert steps == ["read", "first", "ready", "first", "ready", "first", "second", "ready"]
    assert (parts.shortages, parts.kinds()) == (["Cannot allocate memory"], ["reloaded"])


def test_a_wrong_policy_meanwhile_does_not_keep_the_accepted_one_from_coming_into_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reload_module, "_AGAIN_S", 0.01)
    parts = Parts(AFTER, WRONG)
    parts.refusals = [no_memory()]

    async def reload() -> None:
        for _ in range(2):
            with pytest.raises(OperatorError):
                await parts.reload.reload()
        await within(30, parts.whole.wait())

    asyncio.run(reload())
    assert parts.in_force == InForce(AFTER, "a.yaml:3:1: no such key")


def test_a_newer_policy_ends_what_was_to_be_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the older one came into force over the newer one."""
    newer = replace(AFTER, files=("newer.yaml",))
    parts = Parts(AFTER, newer)
    parts.refusals = [no_memory()]
    later: list[Callable[[], None]] = []

    async def reload() -> None:
        loop = asyncio.get_running_loop()
        call_later = loop.call_later

        def noted(delay: float, call: Callable[..., object], *args: object) -> asyncio.TimerHandle:
            made = call_later(delay, call, *args)
            later.append(lambda: None if made.cancelled() else made._run())
            return made

        monkeypatch.setattr(loop, "call_later", noted)
        with pytest.raises(OperatorError):
            await parts.reload.reload()
        await parts.reload.reload()
        for each in later:
            each()

    asyncio.run(reload())
    assert len(later) == 1
    assert parts.in_force.policy == newer
    assert parts.done[-2:] == [("second", newer), ("ready", "")]


def test_at_the_end_nothing_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload_module, "_AGAIN_S", 0.0)
    parts = Parts(AFTER)
    parts.refusals = [no_memory()]

    async def reload() -> None:
        with pytest.raises(OperatorError):
            await parts.reload.reload()
        await parts.reload.end()
        past = asyncio.Event()
        asyncio.get_running_loop().call_later(0, past.set)
        await within(30, past.wait())

    asyncio.run(reload())
    assert not parts.whole.is_set()


def test_the_end_waits_for_a_reload_that_was_asked_for() -> None:
    parts = Parts(AFTER)

    async def reload() -> None:
        await within(30, asyncio.gather(parts.reload.reload(), parts.reload.end()))
        assert parts.in_force.policy == AFTER

    asyncio.run(reload())
