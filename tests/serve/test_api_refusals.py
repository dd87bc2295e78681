# SPDX-License-Identifier: GPL-2.0-or-later
"""What the API refuses, that a refusal changes nothing, and how much of a flood is logged."""

from __future__ import annotations

import logging
import socket
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from atfnd.serve.api import requests
from atfnd.serve.api.requests import BUGS, BUGS_S, Few
from tests.serve.asking import curl, get, refusal
from tests.serve.published import Published, Serving, serving


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 404),
        ("/v2/status", 404),
        ("/v1/flows/", 404),
        ("/v1/status?x=1", 400),
        ("/v1/flows?limit=0", 400),
        ("/v1/flows?limit=1001", 400),
        ("/v1/flows?limit=1&limit=2", 400),
        ("/v1/flows?limit=%D9%A3", 400),
        *((f"/v1/{path}={number}", 400)
          for path in ("events?after", "events/stream?after", "flows?cursor")
          for number in (-2, 2**53, 2**63, 10**30)),
        ("/v1/flows?pid=0", 400),
        ("/v1/flows?state=happy", 400),
        ("/v1/flows?nic=nope", 404),
        ("/v1/flows?sort=pid", 400),
        ("/v1/explain", 400),
        ("/v1/explain?flow=", 400),
        ("/v1/filters", 400),
        ("/v1/filters?nic=nope", 404),
        ("/v1/queues?nic=nope", 404),
        ("/v1/flows/stream?all=2", 400),
        ("/v1/gain?seconds=61", 400),
        ("/v1/gain?nic=nope", 404),
        ("/v1/pairs?seconds=61", 400),
        ("/v1/pairs?nic=nope", 404),
        ("/v1/pairs/latest?nic=nope", 404),
        ("/v1/pairs/explain?ingress=eth1", 400),
        ("/v1/pairs/explain?ingress=eth1&egress=eth1&tx_queue=-1", 400),
        ("/v1/doctor?nic=nope", 400),
    ],
)  # fmt: skip
def test_bad_requests(daemon: Serving, path: str, status: int) -> None:
    assert refusal(daemon, path)[0] == status
    assert daemon.source.views == Published().views


@pytest.mark.parametrize(
    ("path", "options", "status"),
    [
        ("/v1/status", ("-XPOST",), 405),
        ("/v1/flows", ("-XDELETE",), 405),
        ("/v1/nics/eth1/arm", (), 405),
        ("/v1/nics/nope/arm", ("-XPOST",), 404),
        ("/v1/nics/eth1/explode", ("-XPOST",), 404),
        ("/v1/nics/eth1/arm?force=1", ("-XPOST",), 400),
        ("/v1/nics/eth1/arm", ("-d", "{}"), 400),
        ("/v1/nics/eth1/arm", ("-d", "x" * 5000), 413),
        ("/v1/nics/eth1/arm", ("-d", "x" * 5000, "-H", "Transfer-Encoding: chunked"), 413),
        ("/v1/status", ("-XGET", "-d", "x"), 400),
    ],
)
def test_bad_methods_names_and_bodies(
    daemon: Serving, path: str, options: tuple[str, ...], status: int
) -> None:
    got, answer = refusal(daemon, path, *options)
    assert got == status
    assert answer["hint"]
    assert ("Allow: " in curl(daemon, path, *options, "-i")[2]) == (status == 405)
    assert daemon.source.views == Published().views


def test_what_the_kernel_refuses(daemon: Serving) -> None:
    stuck = replace(daemon.source.views[0], name="stuck0")
    daemon.do(lambda: daemon.source.views.append(stuck))
    status, answer = refusal(daemon, "/v1/nics/stuck0/disarm", "-XPOST")
    said = "the kernel refused to disarm stuck0: Operation not permitted (EPERM)"
    assert (status, answer["error"]) == (409, said)


def test_garbage_silence_and_an_early_end_do_not_disturb_others(daemon: Serving) -> None:
    daemon.do(lambda: daemon.source.fill(range(1000)))
    with ExitStack() as stack:
        silent, garbage, leaving = (
            stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(3)
        )
        for client in (silent, garbage, leaving):
            client.connect(str(daemon.socket))
        garbage.sendall(b"\x16\x03\x01 not http\r\n\r\n")
        assert b"400" in garbage.recv(4096)
        leaving.sendall(b"GET /v1/flows?limit=1000 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert leaving.recv(100)
        leaving.close()
        assert len(get(daemon, "/v1/flows?limit=1000")["flows"]) == 1000


def test_nothing_strange_may_be_expected_on_the_socket(
    daemon: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"GET /v1/status HTTP/1.1\r\nHost: x\r\nExpect: %b\r\n\r\n"
    for expected in (b"\xff", b"tea"):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(30)
            client.connect(str(daemon.socket))
            client.sendall(head % expected)
            assert client.recv(12) == b"HTTP/1.1 417"
    assert caplog.records == []


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
