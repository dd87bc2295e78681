# SPDX-License-Identifier: GPL-2.0-or-later
"""Tables at every width: nothing is cut off, and columns are left out in the stated order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.ctl.columns import FLOW_COLUMNS, ORDERS, Grid, Order
from tests.serve.asking import ATFNCTL, environment, forked
from tests.serve.published import Serving

DOCUMENT = Path(__file__).parents[2] / "docs/api.md"
COLUMNS = [
    "PROTO", "LOCAL", "REMOTE", ">TID", "COMM", ">APP-CPU", ">RX-CPU", "PLACED", "STATE",
    "HOME", "WHY",
]  # fmt: skip
HEADS = [name.removeprefix(">") for name in COLUMNS]
ORDER = Order(("HOME", "TID", "COMM", "PLACED", "STATE"), ("WHY",), ("REMOTE",))
IPV4 = st.integers(1, 0xFFFF).map(lambda port: f"192.168.100.{port % 200}:{port}")
IPV6 = st.integers(1, 0xFFFF).map(
    lambda port: f"[2001:db8:1234:5678:9abc:def0:1234:{port:x}]:{port}"
)
NUMBER = st.integers(0, 9999).map(str)
WHY = st.lists(st.sampled_from(["its", "thread", "runs", "on", "CPU", "0-63,128-191"]), max_size=40)


def a_row(addresses: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    return st.tuples(
        st.sampled_from(["tcp", "udp"]), addresses, addresses, NUMBER, st.text("ab", max_size=15),
        NUMBER, NUMBER, st.sampled_from(["yes", "no", "-"]), st.sampled_from(["steered", "rss"]),
        st.just("llc"), WHY.map(lambda words: " ".join(words) or "-"),
    ).map(list)  # fmt: skip


ROWS = st.lists(a_row(IPV4) | a_row(IPV6), max_size=6)


def lines(rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    return [line.plain for line in Grid(COLUMNS, rows, ORDER).lines(width)]


@given(ROWS, st.integers(80, 300))
def test_every_line_fits_and_no_address_is_cut(rows: list[list[str]], width: int) -> None:
    out = lines(rows, width)
    assert all(len(line) <= width for line in out)
    words = " ".join(out).split()
    for row in rows:
        assert {*row[1:3], row[5], row[6], *row[-1].split()} - {"-"} <= set(words)


@given(ROWS, st.integers(1, 300))
def test_columns_are_left_out_in_the_order_and_are_named(rows: list[list[str]], width: int) -> None:
    out = lines(rows, width)
    heads = " ".join(out[:3]).split()
    gone = [name for name in ORDER.left_out if name not in heads]
    assert sorted(gone) == sorted(ORDER.left_out[: len(gone)])
    note = " ".join(" ".join(out).split()).partition("left out at this width: ")[2]
    assert note == (f"{', '.join(ORDER.left_out[: len(gone)])}; --json has all" if gone else "")


@given(ROWS)
def test_without_a_width_each_row_is_one_line(rows: list[list[str]]) -> None:
    out = lines(rows, None)
    assert out[0].split() == HEADS
    assert [line.split() for line in out[1:]] == [" ".join(row).split() for row in rows]


def test_the_reason_comes_below_its_row() -> None:
    row = ["tcp", "10.0.0.2:5201", "10.9.0.1:40000", "7", "a", "3", "1", "no", "observed", "llc"]
    assert lines([[*row, "its thread runs on CPU 3, where queue 3 is delivered"]], 80) == [
        "PROTO  LOCAL          REMOTE          COMM  APP-CPU  RX-CPU  PLACED  STATE",
        "    WHY",
        "tcp    10.0.0.2:5201  10.9.0.1:40000  a           3       1  no      observed",
        "    its thread runs on CPU 3, where queue 3 is delivered",
        "left out at this width: HOME, TID; --json has all",
    ]


# The verbs


VERBS = ["flows", "queues", "nics", "filters", "topology", "policy", "policy --flows", "gain"]
VERBS += ["pairs"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_table_fits(daemon: Serving, verb: str) -> None:
    narrow = environment(daemon) | {"COLUMNS": "80"}
    done = forked([ATFNCTL, *verb.split()], narrow)
    assert (done.returncode, done.stderr) == (0, "")
    table = [
        line for line in done.stdout.splitlines() if not line.startswith(("lab:lab: ", "eth1: "))
    ]
    assert max(map(len, table)) <= 80
    if "flows" in verb:
        assert "10.0.0.2:5201" in done.stdout
        assert "10.9.0.1:40002" in done.stdout


def test_the_document_has_the_orders() -> None:
    """Words of docs/api.md, where each verb has a row."""
    document = " ".join(DOCUMENT.read_text().split())
    for order in ORDERS.values():
        assert f"{', '.join(order.left_out)} " in document
    assert set(ORDERS["flows"].left_out) < set(FLOW_COLUMNS)
