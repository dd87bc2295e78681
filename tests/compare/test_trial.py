# SPDX-License-Identifier: GPL-2.0-or-later
"""Applications under `auto`: when one is tried off its core, what it ends with, never more trials
than the bound, what is remembered of them, and what pays."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from atfnd.compare.trial import Trial, TrialPhase
from atfnd.compare.trials import Trials, Turned
from atfnd.compare.window import Comparison, Window, WindowFigures, paid
from atfnd.engine.trials.placing import looked
from atfnd.engine.trials.subjects import LLC, PLACING, Application
from atfnd.model import Placement
from atfnd.model.reason import Code
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


POOR = Load(1.02e9, 1.6)  # a little more, for much more CPU


def test_a_full_core_is_tried_a_b_a_and_what_pays_is_kept() -> None:
    world = World()
    world.until("trial")
    assert (world.phase, world.placement()) == (TrialPhase.TRIED, LLC)
    world.until("trial")
    assert (world.phase, world.placement()) == (TrialPhase.AGAIN, Placement.CORE)
    world.until("kept")
    assert world.placement() == LLC
    (began_ns, first), _, (ended_ns, kept) = world.said
    assert ended_ns - began_ns == 8 * SECOND_NS  # three windows, and the moves between them
    assert first.what == "near core -> near llc"
    assert str(first.why) == (
        "it takes 98% of CPU 0; it carries 1.00 GB/s at 1.02 GB a CPU-second and 0.98 ns a byte"
    )
    assert str(kept.why) == (
        "0.98 x the bytes a CPU-second, 1.90 x the bytes a second and 1.02 x the time a byte "
        "of near core: near core 1.00 GB/s at 1.02 GB a CPU-second and 0.98 ns a byte, "
        "near llc 1.90 GB/s at 1.00 GB a CPU-second and 1 ns a byte"
    )


def test_the_wait_has_an_end() -> None:
    world = World(llc=POOR)
    for _ in range(12):
        world.until("trial", most=2000)
        world.until("back")
    assert world.rest_ns == PLACING.back_off_max_ns


def test_a_gain_that_goes_when_it_is_back_was_none() -> None:
    """The load grew meanwhile: the second window on the core carries as much as the one off it."""
    world = World()
    world.until("trial")
    world.until("trial")
    world.core = Load(1.9e9, 0.98)
    world.until("back")
    assert world.placement() is Placement.CORE


def test_flows_that_cannot_be_moved_are_not_waited_for_for_ever() -> None:
    world = World()
    world.until("trial")
    world.slow = 1000
    world.until("back")
    assert str(world.said[-1][1].why) == "void: near llc was not in force within 60 s"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"void": Code.EVENTS_LOST()}, "void: events were lost"),
        ({"bytes": 1000}, "void: it carried too few bytes"),
        ({"flows": frozenset({key(1), key(2)})}, "void: its flows have changed"),
        ({"began_ns": 0}, "void: its windows are of unequal length"),
    ],
)
def test_a_window_that_tells_nothing_ends_the_trial(changes: dict[str, Any], why: str) -> None:
    world = World()
    world.until("trial")
    world.look()  # they have come there
    assert world.look(**changes) == ["back"]
    assert str(world.said[-1][1].why) == why
    assert world.rest_ns == PLACING.back_off_ns


@pytest.mark.parametrize(
    "changes",
    [
        {"void": Code.EVENTS_LOST()},
        {"bytes": 1000},
        {"there": False},
        {"able": False},
        {},
    ],
)
def test_nor_does_it_begin_one(changes: dict[str, Any]) -> None:
    """Nor does one full window, where the next is not."""
    world = World()
    for number in range(50):
        full = number % 2 if changes == {} else 1
        world.core = Load(1e9, 0.98) if full else Load(1e8, 0.3)
        assert world.look(**changes) == []


def test_little_to_do_brings_it_home_and_a_pause_does_not() -> None:
    world = World()
    world.until("kept")
    for _ in range(20):
        assert world.look(bytes=0) == []  # a pause: nothing is known of its load
    assert world.look(void=Code.EVENTS_LOST()) == []
    world.llc = Load(0.4e9, 0.4)
    for _ in range(PLACING.leave_windows - 1):
        assert world.look() == []
    assert world.look() == ["back"]
    assert str(world.said[-1][1].why) == (
        "it carries 400.00 MB/s, and its core was saturated by 1.00 GB/s"
    )


def test_less_for_a_moment_does_not() -> None:
    world, busy = World(), World().llc
    world.until("kept")
    for number in range(100):
        world.llc = busy if number % 5 == 4 else Load(0.4e9, 0.4)
        assert world.look() == []


BUSY = APP._replace(comm="busy")
Change = dict[str, Any]
OTHER_NIC = APP._replace(nic="other")


def loads(low: float, high: float) -> st.SearchStrategy[Load]:
    return st.builds(Load, st.floats(low, high), st.floats(0.5, 2.0))


@st.composite
def lives(draw: st.DrawFn) -> list[Change]:
    """What happens look by look; mostly that its core is full."""
    odd: st.SearchStrategy[Change] = st.sampled_from(
        [
            {"void": "events were lost"},
            {"bytes": 0},
            {"there": False},
            {"able": False},
            {"flows": frozenset({key(2)})},
        ]
    )
    usual = st.just(Change())
    looks = draw(st.lists(st.one_of(usual, usual, usual, odd), min_size=1, max_size=30))
    return looks * 12


@given(loads(1e6, 1e10), loads(1e6, 1e10), lives(), st.sampled_from([1, 2, 3, 25]))
def test_never_more_trials_than_the_bound(
    core: Load, llc: Load, life: list[Change], slow: int
) -> None:
    world = World(core=Load(core.bytes_per_s, 1.0), llc=llc, slow=slow)
    began_ns, apps = world.now_ns, (APP, BUSY, OTHER_NIC)
    for changes in life:
        world.look(*apps, **changes)
        for trials in world.trials.values():
            assert sum(state.trying for state in trials.states.values()) <= 1
    whole_ns = world.now_ns - began_ns
    begins = [
        (at_ns, each.subject)
        for at_ns, each in world.said
        if (each.kind, each.what) == ("trial", "near core -> near llc")
    ]
    for nic in ("nic", "other"):
        here = [at_ns for at_ns, application in begins if application.nic == nic]
        assert len(here) <= 1 + whole_ns // PLACING.between_ns
        gaps = [later - earlier for earlier, later in pairwise(here)]
        assert all(gap >= PLACING.between_ns for gap in gaps)
    for application in apps:
        mine = [at_ns for at_ns, each in begins if each == application]
        gaps = [later - earlier for earlier, later in pairwise(mine)]
        doubled = [PLACING.back_off_ns << number for number in range(len(gaps))]
        assert all(gap >= least for gap, least in zip(gaps, doubled, strict=True))


@given(loads(1e8, 1e9), st.lists(st.floats(0.95, 1.05), min_size=1, max_size=50))
def test_what_never_pays_ends_on_the_core(core: Load, noise: list[float]) -> None:
    """As much for as much CPU, and five per cent of noise: it is never kept away."""
    full = Load(core.bytes_per_s, 0.98)
    world = World(core=full, llc=full)
    for number in range(400):
        assert "kept" not in world.look(noise=noise[number % len(noise)])
    assert world.state.trying or world.placement() is Placement.CORE
    assert world.kinds.count("trial") <= 4  # 13 minutes, and each wait twice as long


@given(st.floats(1.4, 4.0), st.lists(st.floats(0.7, 1.3), min_size=1, max_size=50))
def test_what_paid_stays_whatever_the_noise(gain: float, noise: list[float]) -> None:
    world = World(llc=Load(1e9 * gain, 0.98 * gain))
    world.until("kept")
    for number in range(400):
        assert world.look(noise=noise[number % len(noise)]) == []
    assert world.placement() == LLC


@given(st.integers(5, 40))
def test_a_load_that_comes_and_goes_is_followed_ever_slower(looks: int) -> None:
    world, much, little = World(), World().llc, Load(1e8, 0.1)
    full = world.core
    for number in range(1000):
        busy = number // looks % 2 == 0
        world.core, world.llc = (full, much) if busy else (little, little)
        world.look()
    assert world.kinds.count("kept") <= 5


def test_it_is_remembered_without_flows_and_for_new_ones() -> None:
    world = World()
    world.until("kept")
    for _ in range(100):
        world.look(BUSY)  # of ours there is none
    assert world.placement() == LLC
    assert world.look(flows=frozenset({key(7)})) == []
    assert world.placement() == LLC


def test_a_trial_ends_with_its_last_flow() -> None:
    world = World()
    world.until("trial")
    assert world.look(BUSY) == ["back"]
    assert str(world.said[-1][1].why) == "void: it has no flows"


def test_the_one_that_carries_most_is_tried_first() -> None:
    trials: Trials[Application, Placement] = Trials(PLACING)
    small, big = Load(1e8, 1.0), Load(1e9, 1.0)
    for number in range(1, 4):
        now_ns = number * 2 * SECOND_NS
        windows = {
            APP: small.window(now_ns, Placement.CORE),
            BUSY: big.window(now_ns, Placement.CORE),
        }
        looks = {app: looked(trials.state(app), window, True) for app, window in windows.items()}
        turned = trials.look(looks, now_ns)
    assert [each.subject for each in turned] == [BUSY]
    assert trials.state(APP).side is Placement.CORE


def test_an_abandoned_trial_is_nobodys_fault() -> None:
    world = World()
    world.until("trial")
    (turned,) = world.on().abandon(Code.OTHER_POLICY(), world.now_ns)
    assert (turned.kind, str(turned.why)) == ("back", "void: another policy is in force")
    assert (world.phase, world.state.rests) == (TrialPhase.USUAL, {})
    assert world.on().abandon(Code.NO_FLOWS(), world.now_ns) == []
    world.until("kept")
    assert world.on().abandon(Code.OTHER_POLICY(), world.now_ns) == []
    assert world.placement() == LLC


def test_it_forgets_who_was_not_seen_for_the_longest() -> None:
    trials: Trials[Application, Placement] = Trials(PLACING)
    now_ns = 10**12
    idle = looked(trials.state(APP), Load(1e9, 0.1).window(now_ns, Placement.CORE), True)
    every = [APP._replace(comm=f"app{number}") for number in range(2000)]
    for some in (every[:1000], every[1000:]):
        trials.look(dict.fromkeys(some, idle), now_ns)
    assert list(trials.states) == every[-1024:]


# What pays: more bytes a CPU-second or lower latency, not at the cost of as much of the other.

MARGIN = PLACING.margin
factors = st.floats(0.05, 20)
CORE = WindowFigures(1e9, 2e9, 1.5)


def against(rate: float, efficiency: float, time: float) -> Comparison:
    """`llc`, that many times what the core had."""
    return Comparison(CORE, WindowFigures(1e9 * rate, 2e9 * efficiency, 1.5 * time))


def pays(rate: float, efficiency: float, time: float) -> bool:
    return against(rate, efficiency, time).pays(MARGIN)


any_load = st.builds(Load, st.floats(1e7, 1e10), st.floats(0.5, 2.0), st.floats(0.0, 2.0))


def on(load: Load) -> Window:
    return load.window(10**12, Placement.CORE)


def off(load: Load) -> Window:
    return load.window(10**12, LLC)


@given(factors, factors, factors)
def test_what_neither_saves_cpu_time_nor_is_quicker_never_pays(
    rate: float, efficiency: float, time: float
) -> None:
    assert not pays(min(rate, 1.24), min(efficiency, 1.24), max(time, 1 / 1.24))


@given(factors, factors, factors)
def test_either_gain_pays_where_nothing_is_lost(
    rate: float, efficiency: float, time: float
) -> None:
    rate, efficiency, time = max(1, rate), max(1, efficiency), min(1, time)
    gain = max(rate, efficiency, 1 / time)
    assume(abs(gain - 1 - MARGIN) > 1e-6)
    assert pays(rate, efficiency, time) is (gain > 1 + MARGIN)


@given(factors, factors, factors)
def test_a_gain_that_costs_as_much_of_the_other_does_not(
    rate: float, efficiency: float, time: float
) -> None:
    quickness = max(rate, 1 / time)
    assert not pays(rate, min(efficiency, 0.99 / quickness), time)


@given(factors, factors)
def test_what_carries_clearly_less_never_pays(efficiency: float, time: float) -> None:
    assert not pays(0.79, efficiency, time)


def test_the_papers_figures() -> None:
    """20 Gb/s on the application's core, 39 on another one of its socket, 28 on another socket."""
    full = on(Load(20e9 / 8, 1.0))
    assert paid(MARGIN, off(Load(39e9 / 8, 2.0)), full).pays(MARGIN)
    assert not paid(MARGIN, off(Load(28e9 / 8, 2.0)), full).pays(MARGIN)


@given(any_load, st.lists(any_load, min_size=1, max_size=3))
def test_it_has_to_pay_against_every_window_on_the_core(llc: Load, core: list[Load]) -> None:
    windows = [on(each) for each in core]
    each_alone = [paid(MARGIN, off(llc), one).pays(MARGIN) for one in windows]
    # by the CPUs of all: the same ones here
    assert paid(MARGIN, off(llc), *windows).pays(MARGIN) is all(each_alone)


@given(any_load, any_load)
def test_nothing_carried_is_no_error_and_does_not_pay(llc: Load, core: Load) -> None:
    nothing = off(llc)._replace(bytes=0, spent_ns={}, waited_ns={})
    assert not paid(MARGIN, nothing, on(core)).pays(MARGIN)
