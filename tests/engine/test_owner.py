# SPDX-License-Identifier: GPL-2.0-or-later
"""Owners of queues while threads come, go, fork, idle and compete."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine.ownership.follow import TERMS as TERMS_IN_USE
from atfnd.engine.ownership.owner import Follow, Lent, Owned, Owner, Ownership, OwnerTerms, assign
from atfnd.model.rests import Rest, Rests

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


def test_an_owner_takes_the_free_queue_on_its_cpu() -> None:
    assert look(owned(), owner(7, cpu=1)) == ({1: 7}, [])


def test_a_queue_follows_its_owner() -> None:
    assert look(owned((0, 7)), owner(7, cpu=3)) == ({0: 7}, [(0, 3)])


def test_a_queue_that_has_just_followed_stays() -> None:
    just, rested = Lent(moved_ns={0: NOW_NS - 99}), Lent(moved_ns={0: NOW_NS - 100})
    assert look(owned((0, 7)), owner(7, cpu=3), lent=just) == ({0: 7}, [])
    assert look(owned((0, 7)), owner(7, cpu=3), lent=rested) == ({0: 7}, [(0, 3)])
    assert (
        look(owned(), owner(7, cpu=3), lent=Lent(moved_ns={0: NOW_NS - 99, 1: NOW_NS - 99}))[1]
        == []
    )


def test_a_queue_does_not_follow_an_idle_owner_which_keeps_it() -> None:
    assert look(owned((0, 7)), owner(7, cpu=3, used_ns=NOW_NS - 1000)) == ({0: 7}, [])


def test_with_more_owners_than_queues_the_busiest_own() -> None:
    crowd = owner(1, 0, load=10), owner(2, 0, load=30), owner(3, 1, load=20)
    assert look(owned(), *crowd)[0] == {0: 2, 1: 3}


def test_a_newcomer_takes_the_queue_that_was_idle_for_long() -> None:
    idle, busy = owner(1, 0, load=500, used_ns=NOW_NS - 1000), owner(2, 1)
    assert look(owned((0, 1), (1, 2)), idle, busy, owner(3, 2, load=1)) == ({0: 3, 1: 2}, [(0, 2)])


def test_a_newcomer_must_be_busier_by_a_quarter() -> None:
    before, old = owned((0, 1), (1, 2)), (owner(1, 0, load=100), owner(2, 1, load=200))
    assert look(before, *old, owner(3, 2, load=125))[0] == {0: 1, 1: 2}
    assert look(before, *old, owner(3, 2, load=126))[0] == {0: 3, 1: 2}


def test_one_packet_more_does_not_take_a_queue() -> None:
    """Two slow owners of one rate: each look sees one packet more of one or the other."""
    before, old = owned((0, 1), (1, 2)), (owner(1, 0, load=2), owner(2, 1, load=200))
    assert look(before, *old, owner(3, 2, load=6))[0] == {0: 1, 1: 2}
    assert look(before, *old, owner(3, 2, load=7))[0] == {0: 3, 1: 2}


def test_a_frame_more_does_not_take_a_queue_by_the_terms_in_use() -> None:
    now_ns = 100 * TERMS_IN_USE.away_ns
    slow, busy, other = (
        Owner(("thread", number), cpu, load, now_ns)
        for number, cpu, load in ((1, 0, 9_000), (2, 1, 10**9), (3, 2, 18_000))
    )
    before = owned((0, 1), (1, 2))
    after, _ = assign(before, (slow, busy, other), QUEUES, ONLINE, TERMS_IN_USE, now_ns)
    assert who(after) == {0: 1, 1: 2}
    busier = other._replace(load=10**8)
    after, _ = assign(before, (slow, busy, busier), QUEUES, ONLINE, TERMS_IN_USE, now_ns)
    assert who(after) == {0: 3, 1: 2}


def test_a_queue_is_not_taken_from_who_has_just_got_it() -> None:
    before = owned((0, 1), (1, 2), since_ns=NOW_NS - 99)
    assert look(before, owner(1, 0), owner(2, 1), owner(3, 2, load=999))[0] == {0: 1, 1: 2}


def test_the_queue_of_a_thread_that_ends_waits_and_goes_home() -> None:
    lent = Lent(homes={0: 2, 1: 1})
    assert look(owned((0, 7), (1, 8)), owner(8, cpu=1), lent=lent) == ({1: 8}, [])
    assert lent.free_ns == {0: NOW_NS}
    lent.free_ns[0] = NOW_NS - 1999
    assert look(owned((1, 8)), owner(8, cpu=1), lent=lent) == ({1: 8}, [])
    lent.free_ns[0] = NOW_NS - 2000
    assert look(owned((1, 8)), owner(8, cpu=1), lent=lent) == ({1: 8}, [(0, 2)])


def test_the_queue_of_a_thread_that_does_not_stay_any_more_goes_home_at_once() -> None:
    lent = Lent(homes={0: 2, 1: 1})
    wanders = owner(7, cpu=0)._replace(settled=False)
    assert look(owned((0, 7), (1, 8)), wanders, owner(8, cpu=1), lent=lent) == ({1: 8}, [(0, 2)])


def test_a_queue_stays_where_its_home_is_offline() -> None:
    lent = Lent(homes={0: 2}, free_ns={0: 0})
    assert look(owned(), online=frozenset({0, 1}), lent=lent) == ({}, [])


def test_an_owner_that_is_idle_for_long_owns_nothing() -> None:
    lent = Lent(homes={0: 2}, free_ns={0: 0})
    assert look(owned((0, 7)), owner(7, 3, used_ns=NOW_NS - 2000), lent=lent)[0] == {}


def test_an_owner_without_room_on_its_cpu_is_a_guest_there() -> None:
    queues, online = {0: 0, 1: 1, 2: 1}, frozenset({0, 1})  # two queues a CPU, one more at most
    crowded = {**queues, 0: 1}
    assert assign(owned((0, 7)), [owner(7, 1)], queues, online, TERMS, NOW_NS)[1] != ()
    crowd = {**crowded, 3: 0}
    after, follows = assign(owned((3, 7)), [owner(7, 1)], crowd, online, TERMS, NOW_NS)
    assert (who(after), follows) == ({}, ())
    after, follows = assign(owned(), [owner(7, 1)._replace(at=3)], crowd, online, TERMS, NOW_NS)
    assert (who(after), follows) == ({0: 7}, ())


def test_queues_that_have_only_changed_places_stay() -> None:
    """Flows were placed on them where they are now."""
    lent = Lent(homes={0: 0, 1: 1}, free_ns={0: 0, 1: 0})
    assert assign({}, (), {0: 1, 1: 0}, ONLINE, TERMS, NOW_NS, lent)[1] == ()
    [home] = assign({}, (), {0: 1, 1: 1}, ONLINE, TERMS, NOW_NS, lent)[1]
    assert (home.queue, home.cpu) == (0, 0)
    two_each: dict[int, int | None] = {0: 0, 1: 1, 2: 0, 3: 1}
    lent = Lent(homes={0: 0, 1: 0, 2: 1, 3: 1}, free_ns=dict.fromkeys(two_each, 0))
    assert assign({}, (), two_each, ONLINE, TERMS, NOW_NS, lent)[1] == ()


def test_queues_that_crowd_a_cpu_as_another_one_came_back_leave_it() -> None:
    """Three CPUs of four were offline."""
    lent, crowd = Lent(homes={0: 0, 1: 1, 2: 2, 3: 3}), dict.fromkeys(range(4), 0)
    owners = [owner(number, 0) for number in range(4)]
    before = owned(*((number, number) for number in range(4)))
    after, follows = assign(before, owners, crowd, ONLINE, TERMS, NOW_NS, lent)
    assert len(follows) >= 2
    assert all(each.cpu == lent.homes[each.queue] for each in follows)
    assert not {each.queue for each in follows} & after.keys()


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


def test_queues_leave_a_cpu_that_goes_offline() -> None:
    online = frozenset({1, 2})
    assert look(owned((0, 7)), owner(7, cpu=2), online=online) == ({0: 7}, [(0, 2)])
    assert look(owned(), online=online) == ({}, [(0, 2)])
    assert look(owned((0, 7)), owner(7, cpu=0), online=online) == ({0: 7}, [(0, 2)])


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


def test_a_queue_that_others_use_is_not_owned_by_a_thread_that_may_leave() -> None:
    avoids = owner(7, 1)._replace(avoids=frozenset({1}))
    assert look(owned(), avoids)[0] == {0: 7}
    assert look(owned((1, 7)), avoids)[0] == {0: 7}
    assert look(owned(), avoids._replace(avoids=frozenset({0, 1})))[0] == {}


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
        for each in follows:
            queues[each.queue] = each.cpu
            moves_ns.append(now_ns)
    assert len([at_ns for at_ns in moves_ns if at_ns > 60_000_000_000]) <= 4
    assert lent.shared.keys() == {("thread", 7)}
    assign(ownership, [owner(6, 2)], queues, ONLINE, terms, 120_000_000_000, lent)
    assert lent.shared == {}


def test_two_threads_that_may_leave_do_not_take_queues_in_turn_for_ever() -> None:
    """Both run on CPU 2, and after a while the flows of both come by the queue that one of them
    owns. Then the other one gets a queue, and the busier one takes that, because it is there."""
    terms, lent, ownership = TERMS_IN_USE, Lent(homes={0: 0, 1: 1, 2: 2}), owned((2, 6))
    queues: dict[int, int | None] = {0: 0, 1: 1, 2: 2}
    moves_ns, at = list[int](), 2
    for now_ns in range(0, 120_000_000_000, 200_000_000):
        if now_ns % 3_000_000_000 == 0:
            at = next(iter(ownership), at)
        owners = [
            owner(tid, 2, load, now_ns)._replace(avoids=frozenset({at}), at=at)
            for tid, load in ((6, 100_000), (7, 50_000))
        ]
        ownership, follows = assign(ownership, owners, queues, ONLINE, terms, now_ns, lent)
        for each in follows:
            queues[each.queue] = each.cpu
            moves_ns.append(now_ns)
    assert len([at_ns for at_ns in moves_ns if at_ns > 60_000_000_000]) <= 4


def test_a_queue_that_was_lost_to_others_long_ago_counts_no_more() -> None:
    before, shared = owned((1, 7)), {("thread", 7): NOW_NS - TERMS.put_off_ns}
    avoids = owner(7, 1)._replace(avoids=frozenset({1}))
    assert look(before, avoids, lent=Lent(shared={**shared}))[0] == {0: 7}
    shared = {("thread", 7): NOW_NS - TERMS.put_off_ns + 1}
    assert look(before, avoids, lent=Lent(shared={**shared}))[0] == {}
    assert look(before, owner(7, 1), lent=Lent(shared={**shared}))[0] == {1: 7}


def test_a_queue_whose_move_is_put_off_is_moved_later_each_time_and_lost_after_five() -> None:
    """Something may forbid it for ever, as RPS that an admin set up does. Its flows may have
    another way: with a policy of bounded order, in a gap of each."""
    lent, waits_ns, at_ns = Lent(), list[int](), NOW_NS
    for _ in range(12):
        lent.stayed(0, TERMS, at_ns)
        waits_ns.append(lent.rests_until_ns(0, TERMS) - at_ns)
        at_ns += waits_ns[-1]
    assert waits_ns == [min(TERMS.rest_ns << times, TERMS.put_off_ns) for times in range(12)]
    before, away = owned((0, 7)), owner(7, cpu=3)
    for times, rests_ns, then in (
        (4, 1, ({0: 7}, [])),
        (4, 0, ({0: 7}, [(0, 3)])),
        (5, 1, ({}, [])),
        (5, 0, ({0: 7}, [(0, 3)])),
    ):
        rests = {0: Rest(times, NOW_NS + rests_ns), 1: Rest(5, NOW_NS + 1)}
        lent = Lent(put_off=Rests(rests))
        assert look(before, away, lent=lent) == then
