# SPDX-License-Identifier: GPL-2.0-or-later
"""When a cgroup may be kept off dedicated CPUs, and what becomes of its cpuset. Pure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine.ownership.cpu_exclusion import family, judge, unseen
from atfnd.model import Cgroup, CgroupId, Member, Pin, cpu_list
from atfnd.program.cpuset import lost_pin

__all__: list[str] = []

ALL = frozenset(range(4))
APP = Member(10, 1, "app")
GROUP = Cgroup(CgroupId("/app.service", 7), "", ALL, "domain", "member", (), (APP,))
ASKED = frozenset({2, 3})
sets = st.frozensets(st.integers(0, 7))


def cpus(*numbers: int) -> frozenset[int]:
    return frozenset(numbers)


def test_it_gets_what_is_not_dedicated() -> None:
    assert judge(GROUP, ASKED, {10}, ALL).cpus == "0-1"
    assert judge(GROUP, ASKED, {10}, ALL, base=cpus(1, 2)).cpus == "1"


def test_a_dedicated_cpu_that_is_offline_stays_out_and_others_stay_in() -> None:
    online = replace(GROUP, effective=cpus(0, 2))  # 1 and 3 are offline
    assert judge(online, ASKED, {10}, ALL).cpus == "0-1"


@pytest.mark.parametrize(
    ("group", "why"),
    [
        (replace(GROUP, id=CgroupId("/", 1)), "the root cgroup"),
        (replace(GROUP, id=CgroupId("/a.slice", 1)), "/a.slice is a slice"),
        (replace(GROUP, cpus=None), "controller is not enabled for cgroup /app.service"),
        (replace(GROUP, kind="threaded"), "is threaded"),
        (replace(GROUP, kind="domain threaded"), "is domain threaded"),
        (replace(GROUP, partition="isolated"), "is a cpuset partition (isolated)"),
        (replace(GROUP, children=("x",)), "has others in it (x)"),
        (
            replace(GROUP, members=(APP, Member(11, 1, "bash"), Member(12, 11, "vi"))),
            "is shared: process 11 (bash) and 1 more in it does not match the rule",
        ),
        (replace(GROUP, effective=cpus(2, 3)), "has no other CPU that is online (it has 2-3)"),
        (
            replace(GROUP, pinned=(Pin(10, "app", cpus(1, 2)), Pin(11, "rx", cpus(3)))),
            "thread 11 (rx) of cgroup /app.service is pinned to CPU 3",
        ),
    ],
)  # fmt: skip
def test_what_does_not_allow_it_is_said(group: Cgroup, why: str) -> None:
    ruling = judge(group, ASKED, {10}, ALL)
    assert (ruling.cpus, ruling.off) == (None, False)
    assert why in ruling.why


def test_the_note_on_a_unit_without_a_cpuset_says_how_to_get_one() -> None:
    advice = judge(replace(GROUP, cpus=None), ASKED, {10}, ALL).advice
    assert advice == "systemctl set-property --runtime app.service AllowedCPUs=0-1"
    plain = replace(GROUP, id=CgroupId("/box/app", 1), cpus=None)
    assert judge(plain, ASKED, {10}, ALL).advice == (
        "enable cpuset in the cgroup.subtree_control of /box"
    )


def test_one_that_is_off_them_anyway_is_left_as_it_is() -> None:
    ruling = judge(replace(GROUP, cpus="0", effective=cpus(0)), ASKED, {10}, ALL, base=cpus(0))
    assert (ruling.cpus, ruling.off) == (None, True)


@pytest.mark.parametrize(
    ("path", "cpusets", "why"),
    [
        ("/a", False, "not in cgroup version 2"),
        (None, True, "is not known"),
        ("/../x", True, "outside the cgroup namespace"),
        ("/a", True, "is gone"),
    ],
)
def test_one_that_cannot_be_looked_at(path: str | None, cpusets: bool, why: str) -> None:
    assert why in unseen(path, cpusets=cpusets).why


def test_children_are_the_applications_and_parents_are_not() -> None:
    members = (Member(9, 1, "bash"), Member(10, 9, "app"), Member(12, 11, "c"), Member(11, 10, "b"))
    assert family(replace(GROUP, members=members), {10}) == {10, 11, 12}


@given(base=st.none() | sets, effective=sets, asked=sets, ours=st.booleans())
def test_what_is_written_is_never_empty_nor_dedicated(
    base: frozenset[int] | None, effective: frozenset[int], asked: frozenset[int], ours: bool
) -> None:
    possible = frozenset(range(8))
    original = (cpu_list(base) if base is not None else "") if ours else None
    group = replace(GROUP, effective=effective)
    ruling = judge(group, asked, {10}, possible, original, base)
    free = (possible if base is None else base) - asked
    assert ruling.cpus in (None, cpu_list(free))
    if ruling.cpus is not None:
        assert effective & free
        assert not ruling.advice
    elif not ruling.off:
        assert not effective & free


@given(user=sets, had=sets, narrower=sets)
def test_a_kernel_that_keeps_pins_is_never_corrected(
    user: frozenset[int], had: frozenset[int], narrower: frozenset[int]
) -> None:
    """Since 6.2 a thread has what it asked for of its cpuset, or if that is nothing all of it."""
    has = had & narrower

    def affinity(cpuset: frozenset[int]) -> frozenset[int]:
        return user & cpuset or cpuset

    if has and user & had and user & has:
        assert lost_pin(affinity(had), had, affinity(has), has) is None
        assert lost_pin(affinity(has), has, affinity(had), had) is None


def test_a_pin_that_the_kernel_lost_is_known() -> None:
    assert lost_pin(cpus(1, 2), ALL, cpus(0, 1), cpus(0, 1)) == cpus(1)
    assert lost_pin(cpus(1), cpus(0, 1), ALL, ALL) == cpus(1)
    assert lost_pin(cpus(3), ALL, cpus(0, 1), cpus(0, 1)) is None  # nothing of it is left
    assert lost_pin(ALL, ALL, cpus(0, 1), cpus(0, 1)) is None  # it had none
