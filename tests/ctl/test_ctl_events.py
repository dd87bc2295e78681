# SPDX-License-Identifier: GPL-2.0-or-later
"""`atfnctl events`: chosen by kind, time and number, and with repeats folded."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.ctl.events import event_lines, folded
from tests.ctl.figures import an_event
from tests.ctl.test_ctl_streams import Stream
from tests.serve.asking import ATFNCTL, atfnctl, environment, forked, lines
from tests.serve.published import Published, Serving, serving
from tests.wait import until

AGES_S = {1: 7200, 2: 1800, 3: 60, 4: 50, 5: 40, 6: 1}
KINDS = {1: "arm", 2: "insert", 3: "deferred", 4: "deferred", 5: "deferred", 6: "setting"}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Serving]:
    source = Published()
    now_s = time.time()
    flow = source.log[0].flow
    source.log = [
        replace(
            event, kind=KINDS[event.seq], wall_s=now_s - AGES_S[event.seq], what="so", flow=flow
        )
        for event in source.log[:6]
    ]  # fmt: skip
    with serving(tmp_path / "atfnd.sock", source) as running:
        yield running


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ("--limit 2", [5, 6]),
        ("--since 10m", [3, 4, 5, 6]),
        ("--since 1h --limit 9", [2, 3, 4, 5, 6]),
        ("--kind insert", [2]),
        ("--kind insert --kind arm", [1, 2]),
        ("--kind setting", [6]),
        ("--kind deferred --limit 1 --after 3", [5]),
        ("--kind deferred --nic eth1", []),
    ],
)
def test_which(daemon: Serving, words: str, numbers: list[int]) -> None:
    rows = json.loads("\n".join(lines(daemon, "events", "--json", *words.split())))
    assert [row["seq"] for row in rows] == numbers


def test_repeats_are_folded_and_json_is_not(daemon: Serving) -> None:
    out = lines(daemon, "events")
    assert [line.split()[0] for line in out] == ["1", "2", "5", "6"]
    assert out[2].endswith("so  (why)  ×3")
    assert [line for line in out if "×" in line] == out[2:3]
    assert len(json.loads("\n".join(lines(daemon, "events", "--json")))) == 6
    assert [line.split()[0] for line in lines(daemon, "events", "--limit", "2")] == ["5", "6"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--kind nope", "no event has kind nope; 6 events kept"),
        ("--since 0 --nic eth1", "no event has nic eth1, since 0; 6 events kept"),
        ("--after 6", "no event has after 6; 6 events kept"),
    ],
)
def test_none_of_them(daemon: Serving, words: str, sentence: str) -> None:
    done = atfnctl(daemon, "events", *words.split())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"{sentence}\n")


def test_none_at_all(daemon: Serving) -> None:
    daemon.do(daemon.source.log.clear)
    done = forked([ATFNCTL, "events"], environment(daemon) | {"COLUMNS": "80"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("no event yet; the daemon has been up for ")


def test_follow_begins_with_the_last_of_them(daemon: Serving) -> None:
    stream = Stream(daemon, "events", "--follow", "--limit", "1", "--kind", "setting", "--json")
    until(lambda: stream.has('"seq": 6'), "the last one")
    last = daemon.source.log[-1]
    for seq, kind in ((7, "arm"), (8, "setting")):
        event = replace(last, seq=seq, kind=kind)
        daemon.do(lambda event=event: daemon.source.tell(event))  # type: ignore[misc]
    until(lambda: stream.has('"seq": 8'), "the new one")
    assert stream.interrupt() == (0, b"")
    assert [json.loads(line)["seq"] for line in stream.text.decode().splitlines()] == [6, 8]


EVENTS = st.lists(
    st.builds(
        lambda kind, flow, what: an_event(kind, flow=flow, what=what),
        st.sampled_from(["insert", "deferred"]),
        st.sampled_from([None, "tcp a <- b", "tcp c <- d"]),
        st.sampled_from(["1", "2"]),
    )
)


@given(EVENTS)
def test_folding_loses_no_event_and_no_change(rows: list[dict[str, object]]) -> None:
    """Of each flow the same things happen, one after the other."""
    found = folded(rows)
    assert sum(each.times for each in found) == len(rows)
    for flow in (None, "tcp a <- b", "tcp c <- d"):
        all_of_it = [(row["kind"], row["what"]) for row in rows if row["flow"] == flow]
        changes = [each for n, each in enumerate(all_of_it) if not n or all_of_it[n - 1] != each]
        shown = [each.row for each in found if each.row["flow"] == flow]
        assert [(row["kind"], row["what"]) for row in shown] == changes


def test_a_queue_that_moves_to_and_fro_is_one_line() -> None:
    """Whatever other queues do meanwhile; a move back hours later is another."""

    def moved(queue: int, old: int, new: int, at: str) -> dict[str, object]:
        what, old_cpu, new_cpu = f"queue {queue}: CPU {old} -> {new}", f"CPU {old}", f"CPU {new}"
        at = f"2023-11-14T{at}+00:00"
        return an_event("queue-cpu", flow=None, what=what, old=old_cpu, new=new_cpu, time=at) | {
            "seq": 1
        }

    rows = [
        moved(0, 0, 1, "20:00:00"),
        *[moved(0, 1, 0, "22:00:00"), moved(0, 0, 1, "22:00:01")] * 8,
        moved(1, 1, 3, "22:00:02"),
        *[moved(0, 1, 0, "22:00:02"), moved(0, 0, 1, "22:00:03")] * 8,
        moved(0, 1, 2, "22:00:03"),
    ]
    found = [" ".join(event_lines(*each, None)) for each in folded(rows)]
    assert [each.partition("eth0  ")[2] for each in found] == [
        "queue 0: CPU 0 -> 1  (so)",
        "queue 1: CPU 1 -> 3  (so)",
        "queue 0: CPU 0 -> 1  (so)  ×32 to and fro",
        "queue 0: CPU 1 -> 2  (so)",
    ]


def test_an_event_has_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    row = an_event("insert") | {"seq": 9, "time": "2026-01-31T23:30:01.250+00:00"}
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC-2")
        time.tzset()
        assert next(event_lines(row, 1, None)).split()[1:3] == ["02-01", "01:30:01"]
    time.tzset()


def test_a_long_event_goes_on_below() -> None:
    row = an_event("insert", why="its thread runs on CPU 2, where queue 2 is delivered") | {
        "seq": 9
    }
    out = list(event_lines(row, 3, 80))
    assert all(len(line) <= 80 for line in out)
    assert " ".join(" ".join(out).split()) == " ".join(" ".join(event_lines(row, 3, None)).split())
    assert all(line.startswith(" " * 8) for line in out[1:])
