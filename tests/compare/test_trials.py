# SPDX-License-Identifier: GPL-2.0-or-later
"""The trials of many applications: never more than the bound, and what is remembered of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from atfnd.compare.trial import TrialPhase
from atfnd.compare.trials import Trials
from atfnd.engine.trials.placing import looked
from atfnd.engine.trials.subjects import LLC, PLACING, Application
from atfnd.model import Placement
from atfnd.model.reason import Code
from tests.compare.trying import APP, SECOND_NS, Load, World
from tests.values import key

__all__: list[str] = []

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
    world.until("trial")


def test_what_was_kept_is_not_abandoned() -> None:
    world = World()
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
