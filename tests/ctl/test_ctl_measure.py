# SPDX-License-Identifier: GPL-2.0-or-later
"""`atfnctl measure` against the real server."""

from __future__ import annotations

import os
import pty
import subprocess

import pytest

from atfnd.ctl.measuring import figure_table
from tests.serve.asking import ATFNCTL, atfnctl, environment, lines
from tests.serve.published import Serving


def test_a_table_and_a_sentence(daemon: Serving) -> None:
    said = lines(daemon, "measure", "lab:lab", "--for", "2m")
    assert said[0].split() == [
        "FIGURE",
        "UNIT",
        "PAUSED",
        "ARMED",
        "DIFFERENCE",
        "PERCENT",
        "PAIRS",
    ]
    (rtt,) = (line for line in said if line.startswith("round trip time"))
    assert " us " in rtt
    assert rtt.split()[4:6] == ["100", "90.5"]
    assert rtt.endswith(" 6")
    (interrupts,) = (line for line in said if line.startswith("interrupts"))
    assert interrupts.split()[-5:] == ["-", "-", "-", "-", "0"]
    assert said[-2] == "6 pairs of slots; [lowest, highest] with 95%"
    assert said[-1].startswith("lab:lab: better with atfnd: round trip time -9.5 % [-10.")


@pytest.mark.parametrize(
    ("unit", "paused", "armed", "shown"),
    [
        ("ns", 50_000_000.0, 900.0, ["ms", "50", "0.0009", "-50"]),
        ("us", 1500.0, 900.0, ["ms", "1.5", "0.9", "-0.6"]),
        ("bytes/s", 1.25e9, 2.5e9, ["GB/s", "1.25", "2.5", "+1.25"]),
        ("share", 0.5, 0.75, ["%", "50", "75", "+25"]),
        ("us", None, None, ["us", "-", "-", "-"]),
        ("per 1,000 packets", 1234.4, 1234.40001, ["per 1000", "1234", "1234", "+0"]),
    ],
)
def test_units(unit: str, paused: float | None, armed: float | None, shown: list[str]) -> None:
    difference = None if paused is None or armed is None else armed - paused
    figure = {
        "figure": "rtt", "unit": unit, "paused": paused, "armed": armed, "low": None, "high": None,
        "difference": difference, "pairs": 1,
    }  # fmt: skip
    (row,) = figure_table([figure], ("paused", "armed")).rows
    assert row[1:5] == shown


def test_it_says_how_far_it_is_on_a_terminal_only(daemon: Serving) -> None:
    read, write = pty.openpty()
    words = [ATFNCTL, "measure", "lab:lab", "--for", "80s"]
    with subprocess.Popen(
        words, env=environment(daemon), stdout=subprocess.PIPE, stderr=write
    ) as client:
        said, _ = client.communicate(timeout=60)
    os.close(write)
    assert b"slot 2 of 8, paused, 60 s left" in os.read(read, 1 << 16)
    os.close(read)
    assert b"slot 2" not in said
    assert client.returncode == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["eth1"], 1, "atfnd: eth1 is not armed: there is nothing to compare\n"),
        (["nope"], 2, "atfnd: no such interface: nope\n"),
        (["lab:lab", "--for", "1.5m"], 2, "atfnd: '1.5m' is no time\n"),
        (["lab:lab", "--slot", "0s"], 2, "atfnd: slot=0: not between 1 and 3600\n"),
    ],
)
def test_what_is_refused(daemon: Serving, words: list[str], code: int, said: str) -> None:
    done = atfnctl(daemon, "measure", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(said)


def test_an_early_end_shows_what_is_known_and_why(daemon: Serving) -> None:
    daemon.do(lambda: setattr(daemon.source, "measuring_fails", "the interface is gone"))
    done = atfnctl(daemon, "measure", "lab:lab")
    assert (done.returncode, done.stderr) == (1, "atfnd: the interface is gone\n")
    assert done.stdout.startswith("FIGURE")
    assert done.stdout.endswith(
        "lab:lab: not known: it takes 4 whole pairs of slots, and this is 1\n"
    )
