# SPDX-License-Identifier: GPL-2.0-or-later
"""`POST /v1/nics/{nic}/measure`: its lines, its refusals, and its end when the reader goes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.asking import curl, refusal
from tests.serve.openapi import agrees
from tests.serve.published import Serving, serving, three_flows
from tests.wait import until

PATH, TEMPLATE = "/v1/nics/lab:lab/measure", "/v1/nics/{nic}/measure"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path / "atfnd.sock", three_flows()) as running:
        yield running


def test_steps_then_what_is_known_then_the_result(daemon: Serving) -> None:
    status, kind, body = curl(daemon, f"{PATH}?seconds=40&slot=5", "-X", "POST")
    agrees("POST", TEMPLATE, status, kind, body)
    rows = [json.loads(line) for line in body.splitlines()]
    assert [sorted(row) for row in rows[:3]] == [
        ["armed", "left_s", "slot", "slots"],
        ["armed", "left_s", "slot", "slots"],
        ["result"],
    ]
    assert [row["left_s"] for row in rows if "left_s" in row] == [35, 30, 25, 20, 15, 10, 5, 0]
    found = rows[-1]["result"]
    assert (found["verdict"], found["pairs"], found["slots_lost"]) == ("better", 4, 0)
    (rtt,) = (each for each in found["figures"] if each["figure"] == "rtt")
    assert (rtt["paused"], rtt["armed"], rtt["verdict"]) == (100, 90.5, "better")
    assert rtt["low"] < rtt["difference"] < rtt["high"]
    (locality,) = (each for each in found["figures"] if each["figure"] == "read_locality")
    assert (locality["armed"], locality["low"], locality["verdict"]) == (None, None, None)
    assert daemon.source.measured == []


def test_a_stop_of_the_server_ends_it(tmp_path: Path) -> None:
    with serving(tmp_path / "atfnd.sock", three_flows()) as running:
        running.do(lambda: setattr(running.source, "endless", True))
        url = f"http://atfnd{PATH}"
        words = ["curl", "-sSN", "--unix-socket", str(running.socket), "-X", "POST", url]
        reader = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: running.source.measured, "it has begun")
    assert reader.wait(30) != 0
    assert running.source.measured == []


def test_what_ends_it_early_is_the_last_line(daemon: Serving) -> None:
    daemon.do(lambda: setattr(daemon.source, "measuring_fails", "the interface is gone"))
    status, kind, body = curl(daemon, PATH, "-X", "POST")
    agrees("POST", TEMPLATE, status, kind, body)
    rows = [json.loads(line) for line in body.splitlines()]
    assert rows[-1] == {"error": "the interface is gone", "hint": None}


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/nics/eth1/measure", 409),
        ("/v1/nics/nope/measure", 404),
        (f"{PATH}?seconds=0", 400),
        (f"{PATH}?slot=x", 400),
        (f"{PATH}?settle=-1", 400),
        (f"{PATH}?for=10m", 400),
        (f"{PATH}?slot=3&settle=3", 400),
    ],
)
def test_refusals_come_before_anything_begins(daemon: Serving, path: str, status: int) -> None:
    assert refusal(daemon, path, "-X", "POST")[0] == status
    assert daemon.source.measured == []
