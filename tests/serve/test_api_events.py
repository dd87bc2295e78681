# SPDX-License-Identifier: GPL-2.0-or-later
"""What the API answers line by line: events as they come, and the steps of a measurement."""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.serve.asking import curl, refusal
from tests.serve.openapi import agrees
from tests.serve.published import Serving, serving, three_flows
from tests.wait import until

RUN = 1_700_000_000_000  # ms, when the published daemon started


class Message(NamedTuple):
    identity: str | None
    kind: str
    data: Any


class Stream:
    """A client of the stream, as a browser is one."""

    def __init__(self, daemon: Serving, path: str, **headers: str) -> None:
        self._api = http.client.HTTPConnection("atfnd", timeout=30)
        self._api.sock = socket.socket(socket.AF_UNIX)
        self._api.sock.settimeout(30)
        self._api.sock.connect(str(daemon.socket))
        self._api.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        self.answer = self._api.getresponse()
        assert self.answer.status == 200
        assert self.answer.getheader("Content-Type") == "text/event-stream"

    def next(self) -> Message:
        """The next message; lines of `retry` and comments are passed over."""
        fields: dict[str, str] = {}
        for raw in self.answer:
            name, _, value = raw.decode().rstrip("\n").partition(": ")
            if name in ("id", "event", "data"):
                fields[name] = value
            elif not name and fields:
                return Message(fields.get("id"), fields["event"], json.loads(fields["data"]))
        raise EOFError

    def close(self) -> None:
        self.answer.close()
        self._api.close()


def test_what_is_there_then_what_comes(daemon: Serving) -> None:
    with closing(Stream(daemon, "/v1/events/stream?after=1498")) as stream:
        assert stream.next()[:2] == (f"{RUN}-1499", "insert")
        assert stream.next().data["seq"] == 1500
        new = replace(daemon.source.log[-1], seq=1501, kind="disarm", why="asked for")
        daemon.do(lambda: daemon.source.tell(new))
        reported = stream.next()
        assert (reported.identity, reported.kind, reported.data["why"]) == (
            f"{RUN}-1501", "disarm", "asked for",
        )  # fmt: skip


def test_a_client_that_comes_back_goes_on_where_it_was(daemon: Serving) -> None:
    with closing(Stream(daemon, "/v1/events/stream", Last_Event_ID=f"{RUN}-1400")) as stream:
        assert stream.next().data["seq"] == 1401


def test_after_a_restart_everything_is_new(daemon: Serving) -> None:
    with closing(Stream(daemon, "/v1/events/stream", Last_Event_ID=f"{RUN - 1}-1400")) as stream:
        assert stream.next().data["seq"] == 1


def test_what_is_not_retained_is_said_to_be_lost(daemon: Serving) -> None:
    def forget() -> None:
        del daemon.source.log[:1000]

    daemon.do(forget)
    with closing(Stream(daemon, "/v1/events/stream?after=990")) as stream:
        assert stream.next() == (None, "lost", {"count": 10})
        assert stream.next().data["seq"] == 1001


def test_an_id_that_is_none(daemon: Serving) -> None:
    status, answer = refusal(daemon, "/v1/events/stream", "-H", "Last-Event-ID: 7")
    assert (status, answer["error"]) == (400, "Last-Event-ID is not one of ours")
    assert refusal(daemon, "/v1/events/stream?after=x")[0] == 400


def test_silence_is_not_the_end(daemon: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atfnd.serve.api.events.BEAT_S", 0.05)
    with closing(Stream(daemon, "/v1/events/stream?after=1500")) as stream:
        assert stream.answer.readline() == b"retry: 1000\n"
        assert stream.answer.readline() == b"\n"
        for _ in range(3):
            assert stream.answer.readline() == b":\n"
            assert stream.answer.readline() == b"\n"


def test_a_client_that_goes_makes_room_at_once(
    daemon: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of streams and of recordings, which may have nothing to say for long."""
    monkeypatch.setattr("atfnd.serve.api.door.CLIENTS", 2)
    monkeypatch.setattr("atfnd.serve.api.door.ROOT_CLIENTS", 0)
    monkeypatch.setattr("atfnd.serve.api.events.BEAT_S", 600.0)  # what it says then finds them gone
    for _ in range(9):
        with closing(Stream(daemon, "/v1/events/stream?after=1500")):
            pass
        until(lambda: curl(daemon, "/v1/status")[0] == 200, "there is room")


def test_a_stop_ends_the_stream(tmp_path: Path) -> None:
    with serving(tmp_path / "atfnd.sock", three_flows()) as running:
        stream = Stream(running, "/v1/events/stream?after=1500")
    with closing(stream), pytest.raises((EOFError, http.client.HTTPException, OSError)):
        stream.next()


# `POST /v1/nics/{nic}/measure`


PATH, TEMPLATE = "/v1/nics/lab:lab/measure", "/v1/nics/{nic}/measure"


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


def test_what_ends_it_early_is_the_last_line(daemon: Serving) -> None:
    daemon.do(lambda: setattr(daemon.source, "measuring_fails", "the interface is gone"))
    status, kind, body = curl(daemon, PATH, "-X", "POST")
    agrees("POST", TEMPLATE, status, kind, body)
    error = {"error": "the interface is gone", "hint": None}
    assert json.loads(body.splitlines()[-1]) == error
    assert refusal(daemon, f"{PATH}?slot=3&settle=3", "-X", "POST")[0] == 400
    assert daemon.source.measured == []
