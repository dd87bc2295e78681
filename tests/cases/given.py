# SPDX-License-Identifier: GPL-2.0-or-later
"""What a case begins with: a policy, NICs, threads; and an action in words."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from atfnd.engine.plan import changed
from atfnd.model import (
    Action,
    ActionKind,
    Cpu,
    FlowKey,
    NicView,
    Node,
    Outcome,
    Policy,
    Rss,
    Thread,
)
from atfnd.model.reason import Why
from atfnd.move.command import Ended
from atfnd.move.verdict import Mechanism, Verdict
from atfnd.policy.file.load import load
from tests.values import NIC, key

__all__ = ["CPUS", "NODES", "PORT", "STRICT", "SimulatedNic", "nic", "policy", "thread", "words"]

PORT = key(0)._replace(remote=bytes(4), remote_port=0)  # the local port of every flow here
CPUS = tuple(Cpu(i, True, i // 2, i // 2, i, (i,), (i & 2, (i & 2) + 1)) for i in range(4))
NODES = Node(0, (0, 1), {0: 10, 1: 20}), Node(1, (2, 3), {0: 20, 1: 10})
EVERY = {"protocol": ["tcp", "udp"]}
CORE = {"match": EVERY, "placement": {"near": "core"}, "order": "immediate", "dwell": "0ms"}
STRICT = {"order": "strict"}


def policy(*rules: Mapping[str, object], **keys: object) -> Policy:
    """Of a file with these flow rules: for every flow, on its core, at once, unless they say
    more."""
    named = [{"name": f"rule{number}", **CORE, **rule} for number, rule in enumerate(rules or [{}])]
    return _loaded(json.dumps({"version": 1, "flows": named, **keys}))


@cache
def _loaded(text: str) -> Policy:
    with TemporaryDirectory() as folder:
        path = Path(folder, "atfnd.yaml")
        path.write_text(text, encoding="utf-8")
        return load(path)


def nic(name: str = "nic", slots: int | None = 4096, **changes: Any) -> NicView:
    """A NIC with four queues, one on each CPU, that says it has so many slots for filters; RSS
    delivers everything on queue 3. `changes` are other capabilities and facts."""
    caps = {each: changes.pop(each) for each in [*changes] if hasattr(NIC.caps, each)}
    known: dict[str, Any] = {"exact_wins": True, "filter_slots": slots, **caps}
    facts: dict[str, Any] = {"name": name, "rss": Rss(bytes(40), (3,) * 128), **changes}
    return replace(NIC, caps=replace(NIC.caps, **known), **facts)


class SimulatedNic:
    """Carries out actions. It takes `slots` filters, whatever it says."""

    def __init__(self, facts: NicView) -> None:
        self.facts, self.filters, self.slots = facts, dict[int, tuple[FlowKey, int]](), 4096
        self.found, self.deaf = facts, False  # deaf: it lists filters, and RSS delivers
        self._writes = 0

    def delivers(self, flow: FlowKey) -> int:
        """The queue: by its own filter, before its port's, before RSS."""
        held = {} if self.deaf else dict(self.filters.values())
        ports = (queue for each, queue in held.items() if each.listens and each.covers(flow))
        by_rss = 0 if self.facts.rss is None else self.facts.rss.table[0]
        return held[flow] if flow in held else next(ports, by_rss)

    def does(self, action: Action, answer: int | Why | None, now_ns: int) -> Outcome | Ended:
        """Carry it out. `answer`: an errno, or why its move is put off."""
        location = action.location
        if isinstance(answer, Why):
            subject = action.key if action.key is not None else action.queue or 0
            return Ended(subject, action, Mechanism.NONE, Verdict.DEFERRED, answer, 0, 0)
        full = action.kind is ActionKind.INSERT and len(self.filters) >= self.slots
        if code := answer or (errno.ENOSPC if full else 0):
            return Outcome(action, now_ns, code, location, f"errno {code}")
        if action.kind is ActionKind.DELETE and location is not None:
            self.filters.pop(location, None)
        elif action.key is not None and action.new is not None:
            self._writes += 1
            location = 100 + self._writes if location is None else location
            self.filters[location] = action.key, action.new
        setting = action.setting or f"queue-cpu:{action.queue}"
        before = self.facts.settings.get(setting)
        self.facts = self.facts if action.key is not None else changed(self.facts, action)
        original = self.found.settings.get(setting)
        if action.queue is not None and before is not None:
            self.facts = replace(
                self.facts, settings={**self.facts.settings, setting: str(action.new)}
            )
        return Outcome(action, now_ns, 0, location, "done", None, before, original)

    def taken_out(self, deletes: Iterable[Action], now_ns: int) -> list[Outcome]:
        """These filters are deleted; settings and queues are as they were found."""
        found = self.found
        self.facts = replace(self.facts, queues=found.queues, settings=found.settings)
        return [
            each
            for each in (self.does(action, 0, now_ns) for action in deletes)
            if isinstance(each, Outcome)
        ]


def thread(tid: int, **changes: Any) -> Thread:
    """One of a process of its own."""
    return replace(Thread(tid, tid, "app", None), **changes)


def words(action: Action) -> str:
    """An action, in few words: "insert 1 to 2" brings flow 1 to queue 2."""
    on = "" if action.nic == "nic" else f" on {action.nic}"
    if action.kind is ActionKind.QUEUE_CPU:
        return f"queue {action.queue} to CPU {action.new}{on}"
    if action.key is None:
        return f"{action.setting} = {action.value}{on}"
    what = "port" if action.key.listens else int.from_bytes(action.key.remote[2:])
    to = "" if action.new is None else f" to {action.new}"
    return f"{action.kind.value} {what}{to}{on}"
