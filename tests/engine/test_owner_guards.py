# SPDX-License-Identifier: GPL-2.0-or-later
"""Which thread gets a queue and which does not, each rule of `engine.ownership.owner` by itself."""

from __future__ import annotations

from atfnd.engine.ownership.owner import Lent, Owned, Owner, OwnerTerms, assign

__all__: list[str] = []

TERMS = OwnerTerms(
    idle_ns=1000, least_owned_ns=100, away_ns=2000, rest_ns=100, worth_bytes=5, put_off_ns=100_000
)
NOW_NS = 10_000
ONLINE = frozenset(range(4))
ALICE, BOB = ("user", 1), ("user", 2)
IDLE_NS = NOW_NS - TERMS.idle_ns


def owner(number: int, cpu: int, load: int = 100, used_ns: int = NOW_NS) -> Owner:
    return Owner(("thread", number), cpu, load, used_ns)


def look(
    before: dict[int, int],
    *owners: Owner,
    queues: dict[int, int | None],
    online: frozenset[int] = ONLINE,
    lent: Lent | None = None,
) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Owners of queues by number, and which queue goes to which CPU."""
    owned = {queue: Owned(("thread", number), 0) for queue, number in before.items()}
    after, follows = assign(owned, owners, queues, online, TERMS, NOW_NS, lent)
    numbers = {queue: each.owner[1] for queue, each in after.items()}
    return numbers, [(each.queue, each.cpu) for each in follows]


def test_a_queue_that_is_no_more_is_nobodys_and_its_owner_takes_another() -> None:
    assert look({5: 7}, owner(7, 1), queues={0: 0, 1: 1}) == ({1: 7}, [])


def test_the_busier_of_one_user_comes_before_the_less_busy() -> None:
    users = [
        owner(1, 0, load=20)._replace(tenants=(ALICE,)),
        owner(2, 0, load=30)._replace(tenants=(ALICE,)),
        owner(3, 1, load=10)._replace(tenants=(BOB,)),
    ]
    assert look({}, *users, queues={0: 0, 1: 1})[0] == {0: 2, 1: 3}


def test_who_is_idle_takes_no_queue_from_anybody() -> None:
    before, others = {0: 1, 1: 2}, (owner(1, 0, load=10), owner(2, 1, load=10))
    idle = owner(3, 0, load=99, used_ns=IDLE_NS)
    assert look(before, *others, idle, queues={0: 0, 1: 1})[0] == before
    in_use = idle._replace(used_ns=IDLE_NS + 1)
    assert look(before, *others, in_use, queues={0: 0, 1: 1})[0] == {0: 3, 1: 2}


def test_the_free_queue_that_its_flows_are_led_to_comes_first() -> None:
    led = owner(7, 0)._replace(at=1)
    assert look({}, led, queues={0: 0, 1: 1}) == ({1: 7}, [(1, 0)])
    assert look({}, owner(7, 0), queues={0: 0, 1: 1}) == ({0: 7}, [])


def test_a_queue_whose_cpu_goes_offline_goes_to_where_its_owner_runs() -> None:
    online = frozenset({1, 2, 3})
    assert look({0: 7}, owner(7, 3), queues={0: 0, 1: 1}, online=online)[1] == [(0, 3)]
    assert look({}, queues={0: 0, 1: 1}, online=online)[1] == [(0, 2)]  # with the fewest


def test_an_offline_cpu_is_not_followed_to() -> None:
    assert look({0: 7}, owner(7, 9), queues={0: 0}) == ({0: 7}, [])


def test_a_queue_is_spared_by_a_cpu_where_no_owner_runs() -> None:
    two = owner(1, 0), owner(2, 0)
    assert look({0: 1}, *two, queues={0: 0, 1: 1}) == ({0: 1, 1: 2}, [(1, 0)])
    crowd = (*two, owner(3, 1, used_ns=NOW_NS - TERMS.away_ns))  # it runs there, and owns none
    assert look({0: 1}, *crowd, queues={0: 0, 1: 1}) == ({0: 1}, [])


def test_a_queue_that_follows_is_known_to_have_moved_and_rests() -> None:
    lent = Lent()
    assert look({0: 7}, owner(7, 3), queues={0: 0}, lent=lent) == ({0: 7}, [(0, 3)])
    assert lent.moved_ns == {0: NOW_NS}
    assert look({0: 7}, owner(7, 2), queues={0: 3}, lent=lent) == ({0: 7}, [])


def test_a_queue_whose_move_was_put_off_is_moved_later_each_time() -> None:
    """Something may forbid it for ever, as RPS that an admin set up does."""
    lent, waits_ns, at_ns = Lent(), [], NOW_NS
    for _ in range(12):
        lent.stayed(0, TERMS, at_ns)
        waits_ns.append(lent.rests_until_ns(0, TERMS) - at_ns)
        at_ns += waits_ns[-1]
    assert waits_ns == [min(TERMS.rest_ns << times, TERMS.put_off_ns) for times in range(12)]
    assert waits_ns[-1] == TERMS.put_off_ns
    lent = Lent(put_off={0: (3, NOW_NS + 1)})
    assert look({0: 7}, owner(7, 3), queues={0: 0}, lent=lent) == ({0: 7}, [])
    lent.put_off[0] = 3, NOW_NS
    assert look({0: 7}, owner(7, 3), queues={0: 0}, lent=lent) == ({0: 7}, [(0, 3)])


def test_a_queue_that_could_not_follow_time_after_time_is_its_owners_no_more() -> None:
    """Its flows may have another way: with a policy of bounded order, in a gap of each."""
    waits_ns = NOW_NS + 1
    for times, owners, at in ((4, {0: 7}, None), (5, {}, None), (5, {1: 7}, 0)):
        lent = Lent(put_off={0: (times, waits_ns)})
        queues: dict[int, int | None] = {0: 0} if at is None else {0: 0, 1: 3}
        user = owner(7, 3)._replace(at=at)
        before = {0: 7} if at is None else {}
        assert look(before, user, queues=queues, lent=lent) == (owners, [])
    there = Lent(put_off={0: (5, waits_ns)})
    assert look({}, owner(7, 0), queues={0: 0}, lent=there) == ({0: 7}, [])
    later = Lent(put_off={0: (5, NOW_NS)})
    assert look({0: 7}, owner(7, 3), queues={0: 0}, lent=later) == ({0: 7}, [(0, 3)])


def test_an_owner_that_runs_where_no_queue_has_room_loses_its_own() -> None:
    queues: dict[int, int | None] = {0: 0, 1: 0, 2: 0, 3: 1}
    assert look({3: 7}, owner(7, 0), queues=queues, online=frozenset({0, 1})) == ({}, [])


def test_a_queue_goes_home_once_nobody_has_owned_it_for_a_while() -> None:
    for free_ns, follows in ((NOW_NS - 1999, []), (NOW_NS - 2000, [(0, 2)])):
        lent = Lent(homes={0: 2}, free_ns={0: free_ns})
        assert look({}, queues={0: 0}, lent=lent) == ({}, follows)


def test_nobody_owns_a_queue_where_too_many_would_have_none() -> None:
    """Queues stand still at home, and flows go to the queue where their thread runs."""
    queues: dict[int, int | None] = {0: 1, 1: 1}
    at_home = Lent(homes={0: 0, 1: 1})
    three = [owner(n, n % 2) for n in range(3)]
    numbers, _ = look({0: 1}, *three, queues=queues, lent=at_home)
    assert (numbers, at_home.crowded) == ({}, True)
    at_home.free_ns[0] = NOW_NS - TERMS.away_ns
    assert look({}, *three, queues=queues, lent=at_home) == ({}, [(0, 0)])


def test_owners_have_queues_again_when_the_others_carry_little() -> None:
    for crowded, load, then in ((False, 60, False), (False, 70, True), (True, 22, False),
                                (True, 23, True)):  # fmt: skip
        lent = Lent(crowded=crowded)
        three = owner(1, 0), owner(2, 1), owner(3, 1, load=load)
        numbers, _ = look({}, *three, queues={0: 0, 1: 1}, lent=lent)
        assert lent.crowded is then
        assert numbers == ({} if then else {0: 1, 1: 2})


def test_owners_are_not_too_many_if_they_are_idle_or_have_no_queue_at_home() -> None:
    queues: dict[int, int | None] = {0: 0, 1: 1}
    two = owner(1, 0), owner(2, 1)
    for third in (owner(3, 1, used_ns=IDLE_NS), owner(3, 2)):
        assert look({}, *two, third, queues=queues)[0] == {0: 1, 1: 2}


def test_one_user_with_many_threads_takes_no_queue_from_another_who_has_few() -> None:
    many = [owner(n, n % 2, load=1000)._replace(tenants=(ALICE,)) for n in range(9)]
    one = owner(9, 1)._replace(tenants=(BOB,))
    assert 9 in look({}, *many, one, queues={0: 0, 1: 1})[0].values()
    few = [owner(n, 1)._replace(tenants=(BOB,)) for n in (9, 10)]
    assert look({}, *many, *few, queues={0: 0, 1: 1})[0] == {}
