# SPDX-License-Identifier: GPL-2.0-or-later
"""Where filters go: a port's behind every other, and no place is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atfnd.model import Match
from atfnd.nic.location import choose, is_wide


def place(held: dict[int, bool], slots: int, for_port: bool) -> int | None:
    free = sum(1 << at for at in range(slots) if at not in held)
    return choose(free, slots, for_port, held.get)


@given(slots=st.integers(0, 40), names=st.integers(0, 60))
def test_others_fill_the_whole_table(slots: int, names: int) -> None:
    held: dict[int, bool] = {}
    for _ in range(names):
        location = place(held, slots, False)
        assert (location is None) == (len(held) == slots)
        if location is not None:
            assert location not in held
            held[location] = False


@given(
    slots=st.integers(1, 40),
    steps=st.lists(st.tuples(st.sampled_from(["exact", "port", "delete"]), st.integers(0, 39))),
)
def test_a_ports_filter_never_wins(slots: int, steps: list[tuple[str, int]]) -> None:
    held: dict[int, bool] = {}
    for what, at in steps:
        if what == "delete":
            held.pop(at % slots, None)
            continue
        location = place(held, slots, what == "port")
        if location is not None:
            assert location not in held
            held[location] = what == "port"
        by_kind = [[at for at in held if held[at] is kind] for kind in (False, True)]
        assert max(by_kind[0], default=-1) < min(by_kind[1], default=slots)


def test_a_filter_that_is_not_like_ours_is_in_nobodys_way() -> None:
    def foreign(location: int) -> bool | None:
        return {0: False}.get(location)

    assert choose(0b0100_0000_0000_0000, 16, True, foreign) is None
    assert choose(0b1 << 15, 16, True, foreign) == 15
    assert choose(0b1 << 31, 32, False, lambda _: None) == 31


def test_which_filters_are_for_many() -> None:
    here, there = bytes([10, 0, 0, 1]), bytes([10, 1, 0, 0])
    assert is_wide(Match(4, 6, None, 0, here, 32, None, 443))  # of a TCP port
    assert not is_wide(Match(4, 17, None, 0, here, 32, None, 53))  # of one UDP socket
    assert is_wide(Match(4, 6, there, 24, here, 32, None, 443))  # another program's
    assert is_wide(Match(4, 17, None, 0, here, 32, None, None))
    assert not is_wide(Match(4, 6, there, 32, here, 32, 9, 443))


def test_each_kind_may_enter_the_places_of_the_other_where_it_does_not_lose() -> None:
    assert place({31: False}, 32, True) is None  # a port's is not put before another one
    below = dict.fromkeys(range(30), False)
    assert place(below, 32, False) == 30
    assert place(below | {30: False}, 32, False) == 31
    assert place(below | {30: True}, 32, False) is None
    assert place(below | {31: True}, 32, False) == 30
