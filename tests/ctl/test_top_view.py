# SPDX-License-Identifier: GPL-2.0-or-later
"""What keys do to the view of `atfnctl top`: order, filter, scrolling; and what is typed."""

from __future__ import annotations

from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.ctl.output import text
from atfnd.ctl.top.figures import FlowFigure
from atfnd.ctl.top.terminal import Keys
from atfnd.ctl.top.view import COLUMNS, View, press, shown
from tests.ctl.figures import FLOWS

NAMES = [column.name for column in COLUMNS]
KEYS = st.lists(
    st.sampled_from(
        ["up", "down", "pgup", "pgdn", "home", "end", "left", "right", "enter", "esc", "backspace",
         "ctrl-u", "r", "/", "p", "f", "h", "j", "k", "x", " ", "é"]
    )
)  # fmt: skip


def pressed(*keys: str, lines: int = 10) -> View:
    return reduce(lambda view, key: press(view, key, lines), keys, View())


@given(FLOWS, st.integers(0, len(COLUMNS) - 1), st.booleans())
def test_every_flow_once_in_order_and_what_is_unknown_last(
    flows: list[FlowFigure], number: int, turned: bool
) -> None:
    column = COLUMNS[number]
    found = shown(flows, View(column=number, turned=turned))
    assert sorted(map(id, found)) == sorted(map(id, flows))
    values = [column.of(flow) for flow in found]
    known = [value for value in values if value is not None]
    assert values == known + [None] * (len(values) - len(known))
    keys = [value if column.number else text(value).casefold() for value in known]
    assert keys == sorted(keys, reverse=column.number != turned)  # type: ignore[type-var]


@given(FLOWS, st.randoms())
def test_the_order_does_not_depend_on_the_tables(flows: list[FlowFigure], random: object) -> None:
    """Equals by their addresses: rows do not jump from look to look."""
    unique = list({(f.nic, f.proto, f.local, f.remote): f for f in flows}.values())
    assert shown(unique, View()) == shown(unique[::-1], View())


@given(FLOWS, st.text(max_size=5))
def test_a_filter_leaves_those_with_its_words(flows: list[FlowFigure], words: str) -> None:
    found = shown(flows, View(words=words))
    for flow in flows:
        line = " ".join(text(c.of(flow)) for c in COLUMNS if c.name != "BIT/S").casefold()
        assert (flow in found) == all(word in line for word in words.casefold().split())


def test_a_filter_holds_as_it_is_typed() -> None:
    view = pressed("/", "n", "g", "x", "backspace")
    assert (view.wanted, view.words) == ("ng", "")
    assert press(view, "enter", 9) == View(words="ng")
    assert press(view, "esc", 9) == View()
    assert press(view, "ctrl-u", 9).wanted == ""
    assert pressed("/", "q").over is False
    assert pressed("/", "q", "enter", "q").over is True
    assert pressed("/", "n", "enter", "esc") == View()


def test_sort_pause_help_and_end() -> None:
    assert NAMES[pressed("right").column] == "COMM"
    assert NAMES[pressed("<").column] == "WHY"
    assert pressed("left", "right") == View()
    assert pressed("r").turned
    assert not pressed("r", "right").turned  # each column has its own way round
    assert pressed("p").paused
    assert not pressed("p", " ").paused
    assert pressed("h").help
    assert not pressed("?", "q").help
    assert not pressed("?", "q").over  # that key ended the help
    assert pressed("?", "ctrl-c").over
    assert pressed("/", "ctrl-c").over
    view = pressed("end", "f")
    assert (view.forwarded, view.at) == (True, 0)
    assert not pressed("f", "f").forwarded


@given(KEYS, st.integers(0, 50), st.integers(1, 20))
def test_what_is_at_hand_is_shown(keys: list[str], flows: int, lines: int) -> None:
    """Whatever was pressed, and however many flows there are by now."""
    view = View()
    for key in keys:
        view = press(view, key, lines).within(flows, lines)
        assert 0 <= view.at <= max(0, flows - 1)
        assert view.first <= view.at < view.first + lines
        assert 0 <= view.first <= max(0, flows - lines)
    gone = view.within(flows // 3, lines)
    assert 0 <= gone.first <= gone.at <= max(0, flows // 3 - 1)


def test_scrolling() -> None:
    view = View().within(100, 10)
    for key, at, first in [
        ("down", 1, 0), ("pgdn", 11, 2), ("up", 10, 2), ("end", 99, 90), ("pgup", 89, 89),
        ("home", 0, 0), ("up", 0, 0),
    ]:  # fmt: skip
        view = press(view, key, 10).within(100, 10)
        assert (key, view.at, view.first) == (key, at, first)


# Keys as a terminal sends them


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"q", ["q"]), (b"\x1b[A\x1bOB", ["up", "down"]), (b"\x1b[5~\x1b[6~", ["pgup", "pgdn"]),
        (b"\x1b[1~\x1b[F\x1bOH", ["home", "end", "home"]), (b"\r\x7f", ["enter", "backspace"]),
        (b"\xc3\xa9/", ["é", "/"]), (b"\x1b[1;5C", []), (b"\x1b[200~x", ["x"]), (b"\x00\x01", []),
        (b"\xff", ["\ufffd"]), (b"\x1bq", ["esc", "q"]), (b"\x1b", ["esc"]),
    ],
)  # fmt: skip
def test_keys(data: bytes, keys: list[str]) -> None:
    heard = Keys()
    at_once = heard.feed(data)
    assert heard.waiting() == (keys == ["esc"])  # more may belong to it
    assert [*at_once, *heard.rest()] == keys


@given(st.binary(max_size=60), st.integers(0, 60))
def test_whatever_a_terminal_sends(data: bytes, cut: int) -> None:
    """Nothing is lost, or heard twice, where what it sends comes in parts."""
    whole, parts = Keys(), Keys()
    at_once = [*whole.feed(data), *whole.rest()]
    assert [*parts.feed(data[:cut]), *parts.feed(data[cut:]), *parts.rest()] == at_once
    assert not whole.waiting()
