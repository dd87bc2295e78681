# SPDX-License-Identifier: GPL-2.0-or-later
"""Owners of queues while threads come, go, fork, idle and compete."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine.ownership.follow import TERMS as TERMS_IN_USE
from atfnd.engine.ownership.owner import Follow, Lent, Owned, Owner, Ownership, OwnerTerms, assign
from atfnd.engine.ownership.shares import tenants_of
from atfnd.model import Thread

TERMS = OwnerTerms(idle_ns=1000, least_owned_ns=100, away_ns=2000, rest_ns=100, worth_bytes=5)
NOW_NS = 10_000
ONLINE = frozenset(range(4))
QUEUES = {0: 0, 1: 1}


def owner(number: int, cpu: int, load: int = 100, used_ns: int = NOW_NS) -> Owner:
    return Owner(("thread", number), cpu, load, used_ns)


def owned(*pairs: tuple[int, int], since_ns: int = 0) -> Ownership:
    return {queue: Owned(("thread", number), since_ns) for queue, number in pairs}


def who(ownership: Ownership) -> dict[int, int]:
    return {queue: each.owner[1] for queue, each in ownership.items()}


def look(
    before: Ownership, *owners: Owner, online: frozenset[int] = ONLINE, lent: Lent | None = None
) -> tuple[dict[int, int], list[tuple[int, int]]]:
    after, follows = assign(before, owners, QUEUES, online, TERMS, NOW_NS, lent)
    return who(after), [(follow.queue, follow.cpu) for follow in follows]


def test_a_few_bytes_more_take_no_queue() -> None:
    before, old = owned((0, 1), (1, 2)), (owner(1, 0, load=4), owner(2, 1, load=99))
    assert look(before, *old, owner(3, 2, load=8))[0] == {0: 1, 1: 2}
    assert look(before, *old, owner(3, 2, load=9))[0] == {0: 3, 1: 2}


def test_a_queue_is_not_taken_from_who_has_just_got_it() -> None:
    before = owned((0, 1), (1, 2), since_ns=NOW_NS - 99)
    assert look(before, owner(1, 0), owner(2, 1), owner(3, 2, load=999))[0] == {0: 1, 1: 2}


def test_a_queue_stays_where_its_home_is_offline() -> None:
    lent = Lent(homes={0: 2}, free_ns={0: 0})
    assert look(owned(), online=frozenset({0, 1}), lent=lent) == ({}, [])


def test_a_fork_owns_nothing_that_its_parent_owns() -> None:
    parent, child = owner(7, cpu=0), owner(8, cpu=0)
    assert look(owned((0, 7)), parent, child) == ({0: 7, 1: 8}, [(1, 0)])
    assert look(owned((0, 7)), parent, child._replace(cpu=1)) == ({0: 7, 1: 8}, [])


def test_the_last_queue_of_a_cpu_stays_with_those_who_run_there() -> None:
    parent, child, other = owner(7, 0, load=300), owner(8, 0, load=200), owner(9, 1)
    assert look(owned((0, 7)), parent, child, other) == ({0: 7, 1: 9}, [])


def test_a_free_queue_comes_from_a_cpu_that_keeps_one_or_to_a_cpu_that_has_none() -> None:
    alone, third = {0: 0, 1: 1, 2: 1}, owner(8, cpu=0)
    after, follows = assign(owned((0, 7)), [owner(7, 0), third], alone, ONLINE, TERMS, NOW_NS)
    assert (who(after), [(f.queue, f.cpu) for f in follows]) == ({0: 7, 1: 8}, [(1, 0)])
    assert look(owned((0, 7)), owner(7, cpu=0), owner(8, cpu=3)) == ({0: 7, 1: 8}, [(1, 3)])


numbers = st.integers(0, 5)
crowds = st.lists(
    st.builds(owner, numbers, numbers, st.integers(0, 9), st.integers(0, 3000)),
    max_size=6, unique_by=lambda each: each.id,
)  # fmt: skip


@given(st.lists(st.tuples(crowds, st.frozensets(numbers, min_size=1)), max_size=12))
def test_no_queue_is_without_a_live_cpu_and_no_owner_has_two(
    looks: list[tuple[list[Owner], frozenset[int]]],
) -> None:
    ownership: Ownership = {}
    terms, queues = TERMS._replace(away_ns=10**6), dict[int, int | None]({0: 0, 1: 1, 2: 2})
    for step, (owners, online) in enumerate(looks):
        before, owned_before = queues, bool(ownership)
        lent = Lent()
        ownership, follows = assign(ownership, owners, queues, online, terms, step * 300, lent)
        queues = {**queues, **{each.queue: each.cpu for each in follows}}
        assert set(queues.values()) <= online
        assert len(set(who(ownership).values())) == len(ownership)
        assert set(who(ownership).values()) <= {each.id[1] for each in owners}
        assert not ownership or (owners and not lent.crowded)
        if owners and not ownership:
            # Where each came to a CPU without room for its queue, it is a guest for one look.
            again = Lent()
            assert lent.crowded or owned_before
            taken, _ = assign({}, owners, queues, online, terms, step * 300, again)
            assert bool(taken) != again.crowded
        assert all(isinstance(f, Follow) and before[f.queue] != f.cpu for f in follows)


def test_a_thread_that_wanders_owns_nothing_and_counts_among_the_many() -> None:
    """Queues stand still where most threads wander: the one that settles first would take the
    packets of the others along."""
    wanderers = [owner(n, n % 2)._replace(settled=False) for n in range(2, 6)]
    assert look(owned((0, 2)), wanderers[0]) == ({}, [])
    lent = Lent(homes={0: 0, 1: 1})
    assert look(owned(), owner(1, 0), lent=lent)[0] == {0: 1}
    assert look(owned(), owner(1, 0), *wanderers, lent=lent)[0] == {}
    assert lent.crowded


def test_others_that_come_to_each_queue_that_follows_a_thread_do_not_drive_it_on_for_ever() -> None:
    """Three threads on CPU 2, where one owns queue 2. The flows of another one are led to whichever
    other queue is delivered there: that of the third, which then owns it no more."""
    terms, lent, ownership = TERMS_IN_USE, Lent(homes={0: 0, 1: 1, 2: 2}), owned((2, 6))
    queues: dict[int, int | None] = {0: 0, 1: 1, 2: 2}
    moves_ns = list[int]()
    for now_ns in range(0, 120_000_000_000, 200_000_000):
        guests = next((queue for queue in (0, 1) if queues[queue] == 2), 2)
        third = owner(7, 2, 90, now_ns)._replace(avoids=frozenset({guests}))
        owners = owner(6, 2, 100, now_ns), third
        ownership, follows = assign(ownership, owners, queues, ONLINE, terms, now_ns, lent)
        queues |= {each.queue: each.cpu for each in follows}
        moves_ns += [now_ns for _ in follows]
    assert len([at_ns for at_ns in moves_ns if at_ns > 60_000_000_000]) <= 4
    assert lent.shared.keys() == {("thread", 7)}


AT_NS = 10**10


def of_user(tid: int, uid: int, cpu: int = 0, load: int = 100) -> Owner:
    thread = Thread(tid, tid, "app", None, uid)
    return Owner(("thread", tid), cpu, load, AT_NS, tenants=tenants_of(thread))


FOUR: dict[int, int | None] = {0: 0, 1: 1, 2: 0, 3: 1}
TWO = frozenset({0, 1})


def owners_of(owned: Ownership) -> set[int]:
    return {*who(owned).values()}


def test_queues_are_shared_by_users_not_by_threads() -> None:
    loads = [100_000] * 4 + [1000] * 16  # not so many as to share all queues
    hogs = [of_user(100 + n, 1000, n % 2, load) for n, load in enumerate(loads)]
    both = [of_user(1, 1001), of_user(2, 1001, 1)]
    owned, _ = assign({}, [*hogs, *both], FOUR, TWO, OwnerTerms(), AT_NS)
    assert owners_of(owned) >= {1, 2}
    first, _ = assign({}, hogs, FOUR, TWO, OwnerTerms(), AT_NS - 10**9)
    assert len(first) == 4
    owned, _ = assign(first, [*hogs, *both], FOUR, TWO, OwnerTerms(), AT_NS)
    assert owners_of(owned) >= {1, 2}
    again, _ = assign(owned, [*hogs, *both], FOUR, TWO, OwnerTerms(), AT_NS + 10**9 // 2)
    assert owners_of(again) == owners_of(owned)  # however much busier the attacker is
    alone, _ = assign({}, hogs, FOUR, TWO, OwnerTerms(), AT_NS, shares={"user": 50})
    assert len(alone) == 2
