# SPDX-License-Identifier: GPL-2.0-or-later
"""The page's port: who gets an answer, what may be asked for, and when it listens at all."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from atfnd.serve.api import loopback
from tests.serve.paged import ask, free_port, listens, paging
from tests.serve.published import Published, three_flows
from tests.wait import until

MODULE = re.compile(r'(?:from|src=|href=) ?"(?:\./)?([a-z.]+)"')


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    port = free_port()
    with paging(three_flows(), port):
        yield port


def test_it_shows_the_same_as_the_socket(port: int) -> None:
    answer = ask(port, "/v1/status")
    assert (answer.status, json.loads(answer.body)["pid"]) == (200, 4242)
    rows = ask(port, "/v1/flows/stream").body.splitlines()
    assert [json.loads(row)["comm"] for row in rows] == ["iperf3"] * 3
    samples = json.loads(ask(port, "/v1/history").body)["samples"]
    assert [each["locality"] for each in samples] == [None, 0.25, 0.5, 0.98, 0.98]
    for path in loopback.READ:
        assert ask(port, path).status == 200


def test_doctor_looks_once_a_minute_and_only_what_is_in_the_way_is_shown(port: int) -> None:
    """However many readers ask: a look opens every interface."""
    first, second = (json.loads(ask(port, "/v1/doctor/latest").body) for _ in range(2))
    assert [each["level"] for each in first["findings"]] == ["warning"]
    assert second["findings"] == first["findings"]
    assert second["age_s"] > first["age_s"]


def test_every_file_is_there_and_names_no_other_place(port: int) -> None:
    found, wanted = set[str](), {"/"}
    while wanted:
        path = wanted.pop()
        found.add(path)
        answer = ask(port, path)
        assert answer.status == 200, path
        places = set(re.findall(r"[a-z]+://[^\s\"']*", answer.body))
        assert places <= {"http://www.w3.org/2000/svg"}, path  # a name, not a place
        wanted |= {f"/{each}" for each in MODULE.findall(answer.body)} - found
    files = {f"/{each.name}" for each in loopback.FILES.iterdir()} - {"/index.html"}
    assert found == files | {"/"}
    for file in files:
        assert ask(port, file, "HEAD").status == 200


@pytest.mark.parametrize("path", ["/", "/page.js", "/v1/status", "/v1/flows/stream", "/no"])
def test_no_answer_may_be_framed_sniffed_or_read_by_another_site(port: int, path: str) -> None:
    headers = ask(port, path, Origin="http://evil.example").headers
    policy = dict(each.split(" ", 1) for each in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"
    assert not [name for name in headers if name.startswith("access-control")]


@pytest.mark.parametrize("host", ["LOCALHOST:8650", "127.0.0.1:1", "[::1]:8650", "localhost"])
def test_our_names(port: int, host: str) -> None:
    """Also behind a port that ssh forwards."""
    assert ask(port, "/", Host=host).status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "192.0.2.1", "",
     "localhost:8650:1", "localhost@evil.example", "127.0.0.2", "localhost."],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/v1/status", "/no"])
def test_a_name_that_was_rebound_to_us_gets_nothing(port: int, host: str, path: str) -> None:
    answer = ask(port, path, Host=host)
    assert (answer.status, json.loads(answer.body).keys()) == (421, {"error", "hint"})


def test_a_request_names_one_host(port: int) -> None:
    for head in (b"", b"Host: localhost\r\nHost: evil.example\r\n"):
        with socket.create_connection(("127.0.0.1", port), 30) as client:
            client.sendall(b"GET /v1/status HTTP/1.1\r\n" + head + b"Connection: close\r\n\r\n")
            assert client.makefile("rb").readline().split()[1] in (b"421", b"400")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
@pytest.mark.parametrize(
    "path", ["/", "/v1/status", "/v1/disarm", "/v1/reload", "/v1/nics/lab:lab/arm"]
)
def test_nothing_can_be_changed(port: int, method: str, path: str) -> None:
    answer = ask(port, path, method, Content_Length="9")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "path",
    ["/v1/nics", "/v1/events/stream", "/v1/explain?flow=1", "/v1/record", "/v1/doctor?nic=lo",
     "/metrics", "/v1/disarm", "/index.html", "/../http.py", "/%2e%2e/http.py"],
)  # fmt: skip
def test_nothing_else_can_be_read(port: int, path: str) -> None:
    assert ask(port, path).status == 404


def test_another_site_may_lead_to_the_page_and_ask_for_nothing_of_it(port: int) -> None:
    for site in ("cross-site", "same-site"):
        assert ask(port, "/", Sec_Fetch_Site=site).status == 200
        for path in ("/page.js", "/v1/status", "/v1/flows/stream"):
            assert ask(port, path, Sec_Fetch_Site=site).status == 403
    for site in ("same-origin", "none"):
        assert ask(port, "/v1/status", Sec_Fetch_Site=site).status == 200


def test_a_query_that_is_not_known_is_refused(port: int) -> None:
    assert ask(port, "/v1/status?x=1").status == 400
    assert ask(port, "/page.js?x=1").status == 400
    assert ask(port, "/v1/flows/stream?state=steered").status == 200


def test_it_listens_on_loopback_addresses_only(port: int) -> None:
    assert ask(port, "/", address="::1").status == 200
    with open("/proc/net/tcp") as tcp4, open("/proc/net/tcp6") as tcp6:
        rows = [line.split() for table in (tcp4, tcp6) for line in table]
    listening = {row[1] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "0A"}
    assert {each.split(":")[0] for each in listening} == {
        "0100007F", "00000000000000000000000001000000",
    }  # fmt: skip


def test_it_can_be_switched_on_moved_and_switched_off() -> None:
    with paging(three_flows(), None) as made:
        assert made.said() == []
        first, second = free_port(), free_port()
        made.want(first)
        until(lambda: listens(first), "it is served")
        made.want(second)
        until(lambda: listens(second) and not listens(first), "it has moved")
        made.want(None)
        until(lambda: not listens(second), "it is gone")
        assert made.said() == [f"served at http://localhost:{each}/" for each in (first, second)]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_port_that_a_user_has_taken_is_said_once_and_tried_again(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loopback, "AGAIN_S", 0.02)
    port = free_port()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with paging(three_flows(), None) as made:
        with socket.create_server((address, port), family=family):
            made.want(port)
            until(made.said, "it says so")
            other = "::1" if address == "127.0.0.1" else "127.0.0.1"
            assert not listens(port, other)
        until(lambda: listens(port), "it is served once the port is free")
        assert made.said() == [
            f"the page is not served on port {port}", f"served at http://localhost:{port}/",
        ]  # fmt: skip


def test_too_many_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """They keep out others like them, and nobody from the socket."""
    monkeypatch.setattr(loopback, "CLIENTS", 2)
    port = free_port()
    with paging(Published(), port), ExitStack() as stack:
        for _ in range(2):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            client.sendall(b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"
        assert ask(port, "/").status == 503


@pytest.mark.parametrize("start", [b"GET /", b"GET /v1/status", b"POST /nowhere"])
def test_nothing_strange_may_be_expected(
    port: int, caplog: pytest.LogCaptureFixture, start: bytes
) -> None:
    for expected in (b"\xff", b"\xed\xb3\xbf", b"tea"):
        with socket.create_connection(("127.0.0.1", port), 30) as client:
            client.sendall(
                b"%b HTTP/1.1\r\nHost: localhost\r\nExpect: %b\r\n\r\n" % (start, expected)
            )
            assert client.recv(13) == b"HTTP/1.1 417 "
    assert caplog.records == []


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/topology HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n",  # 404
        b"GET /slow HTTP/1.1\r\nHost: elsewhere\r\n\r\n",  # 421
        b"POST /slow HTTP/1.1\r\nHost: localhost\r\n\r\n",  # 405
        b"GET /slow HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\n\r\n",  # 403
        b"GET /slow HTTP/1.1\r\nHost: localhost\r\nExpect: tea\r\n\r\n",  # 417
    ],
    ids=range(6),
)
def test_requests_and_refusals_are_paced_all_clients_together(
    monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    """One waits for the pace of its resource; other resources do not wait for it."""
    for path in ("/v1/topology", "/slow"):
        monkeypatch.setitem(loopback.EVERY_S, path, 60.0)
    port = free_port()
    with paging(Published(), port), socket.create_connection(("127.0.0.1", port), 30) as client:
        client.sendall(head)
        for _ in range(3):
            assert ask(port, "/v1/status").status == 200
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)
