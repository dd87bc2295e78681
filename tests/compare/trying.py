# SPDX-License-Identifier: GPL-2.0-or-later
"""A made-up application for trials: what it carries on its core and off it, look by look."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from atfnd.compare.trial import Trial, TrialPhase
from atfnd.compare.trials import Trials, Turned
from atfnd.compare.window import Window
from atfnd.engine.trials.placing import looked
from atfnd.engine.trials.subjects import LLC, PLACING, Application
from atfnd.model import Placement
from tests.values import key

__all__ = ["APP", "SECOND_NS", "Load", "World"]

SECOND_NS = 1_000_000_000
APP = Application("nic", "rest", "app", None)
LOOK_NS = 2 * SECOND_NS


@dataclass(frozen=True)
class Load:
    """Bytes a second, and the share of one CPU that they take; on CPU 0, or on CPUs 0 and 1. How
    many threads are ready, and wait for CPU 0."""

    bytes_per_s: float
    cpu: float
    waits: float = 0.0

    def window(self, now_ns: int, placement: object, **changes: Any) -> Window:
        """Of the last look."""
        away = placement == LLC
        on = {0: self.cpu / 2, 1: self.cpu / 2} if away else {0: self.cpu, 1: 0.0}
        plain = Window(
            began_ns=now_ns - LOOK_NS,
            ended_ns=now_ns,
            bytes=int(self.bytes_per_s * LOOK_NS / SECOND_NS),
            spent_ns={cpu: int(share * LOOK_NS) for cpu, share in on.items()},
            waited_ns={0: int(self.waits * LOOK_NS)},
            app_cpus=frozenset({0}),
            rx_cpus=frozenset({1 if away else 0}),
            flows=frozenset({key(1)}),
            there=True,
        )
        return plain._replace(**changes)


@dataclass
class World:
    """Applications on NICs, and their trials. A move takes effect at the next look, unless `slow`
    looks are needed."""

    core: Load = Load(1e9, 0.98)
    llc: Load = Load(1.9e9, 1.9)
    slow: int = 1
    trials: dict[str, Trials[Application, Placement]] = field(default_factory=dict)
    now_ns: int = 10**12
    said: list[tuple[int, Turned[Application]]] = field(default_factory=list)
    _moving: dict[Application, tuple[object, int]] = field(default_factory=dict)

    def look(
        self, *apps: Application, noise: float = 1.0, able: bool = True, **changes: Any
    ) -> list[str]:
        """Two seconds later; returns the kinds of what was said."""
        self.now_ns += LOOK_NS
        by_nic: dict[str, dict[Application, Window]] = {}
        for app in apps or (APP,):
            by_nic.setdefault(app.nic, {})[app] = self._window(app, noise, changes)
        turned = []
        for nic, windows in by_nic.items():
            trials = self.on(nic)
            looks = {
                app: looked(trials.state(app), window, able) for app, window in windows.items()
            }
            turned += trials.look(looks, self.now_ns)
        self.said += [(self.now_ns, each) for each in turned]
        return [each.kind for each in turned]

    def _window(self, app: Application, noise: float, changes: dict[str, Any]) -> Window:
        placement = self.placement(app)
        was, looks = self._moving.get(app, (placement, self.slow))
        looks = looks + 1 if was == placement else 1
        self._moving[app] = placement, looks
        load = self.llc if placement == LLC else self.core
        noisy = replace(load, bytes_per_s=load.bytes_per_s * noise)
        return noisy.window(self.now_ns, placement, **{"there": looks >= self.slow, **changes})

    def until(self, *kinds: str, most: int = 100) -> list[str]:
        """Look until one of these was said; AssertionError if it is not."""
        for _ in range(most):
            reported = self.look()
            if set(reported) & set(kinds):
                return reported
        raise AssertionError(f"none of {kinds} in {most} looks: {self.said}")

    def on(self, nic: str = APP.nic) -> Trials[Application, Placement]:
        return self.trials.setdefault(nic, Trials(PLACING))

    def placement(self, app: Application = APP) -> Placement:
        return self.on(app.nic).state(app).side

    @property
    def state(self) -> Trial[Placement]:
        return self.on().state(APP)

    @property
    def rest_ns(self) -> int:
        """Until `llc` may be tried again."""
        return self.state.rests[LLC].until_ns - self.now_ns

    @property
    def phase(self) -> TrialPhase:
        return self.state.phase

    @property
    def kinds(self) -> list[str]:
        return [each.kind for _, each in self.said]
