# SPDX-License-Identifier: GPL-2.0-or-later
"""What is refused before a request is looked at, and how much of it is logged."""

from __future__ import annotations

import logging
import socket
import time
from pathlib import Path

import pytest

from atfnd.serve.api import requests
from atfnd.serve.api.requests import BUGS, BUGS_S, Few
from tests.serve.asking import curl, refusal
from tests.serve.published import serving

__all__: list[str] = []


def test_nothing_strange_may_be_expected_on_the_socket(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path / "a") as daemon:
        for expected in (b"\xff", b"tea"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                client.settimeout(30)
                client.connect(str(daemon.socket))
                client.sendall(
                    b"GET /v1/status HTTP/1.1\r\nHost: x\r\nExpect: %b\r\n\r\n" % expected
                )
                assert client.recv(12) == b"HTTP/1.1 417"
    assert caplog.records == []


def test_a_number_that_is_out_of_range_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "a") as daemon:
        for path in ("/v1/events?after=", "/v1/events/stream?after=", "/v1/flows?cursor="):
            for number in (2**53, 2**63 - 1, 2**63, 10**30, -2):
                assert refusal(daemon, f"{path}{number}")[0] == 400


def test_a_flood_of_tracebacks_is_logged_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    few = Few(2, 60.0)

    def logged(count: int) -> list[str]:
        records = [logging.LogRecord("", 40, "", 0, "bug %s", ("x",), None) for _ in range(count)]
        return [record.getMessage() for record in records if few(record)]

    assert logged(1000) == ["bug x", "bug x"]
    now_s[0] = 59.9
    assert logged(2) == []
    now_s[0] = 60.0
    assert logged(3) == ["bug x (1000 more were not logged)", "bug x"]


def test_what_serves_logs_few_tracebacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a bug that a client can have a request meet as often as it likes."""

    def bug() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(logging.getLogger("atfnd.serve"), "filters", [])
    monkeypatch.setattr(requests, "_few", Few(BUGS, BUGS_S))
    with serving(tmp_path / "a") as daemon:
        monkeypatch.setattr(daemon.source, "status", bug)
        assert [curl(daemon, "/v1/status")[0] for _ in range(2 * BUGS)] == [500] * 2 * BUGS
    bugs = [each for each in caplog.records if each.exc_info]
    assert [each.exc_info[0] for each in bugs if each.exc_info] == [ZeroDivisionError] * BUGS
