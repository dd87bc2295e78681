# SPDX-License-Identifier: GPL-2.0-or-later
"""Requests nobody meant: by schemathesis from the description of the API, and raw bytes.

Seeded and bounded: the same requests each time, and no new ones of an operation after its share of
LIMIT_S.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis.generation import GenerationMode

from tests.bed import Bed, a_bed
from tests.daemons import standing
from tests.labs import Lab
from tests.serve.openapi import DOCUMENT, agrees, operations
from tests.serve.peers import NOBODY, connected

SEED = 20261122
LIMIT_S = 50.0  # of all operations
EXAMPLES = 30  # of an operation, valid and not
ENDLESS = {"/v1/events/stream", "/v1/gain", "/v1/pairs", "/v1/record"}
REPEATABLE = settings(
    deadline=None, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


@dataclass
class Fuzzed:
    """What was asked, and answered."""

    asked: int = 0
    statuses: set[int] = field(default_factory=set)
    end_s: float = 0.0  # of the operation that is asked


def fuzz(path: Path) -> Fuzzed:
    """Ask every operation for what its description allows, and for what not. Each answer is one
    that is described, or AssertionError."""
    found = Fuzzed()
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    asked, modes = operations(), [*GenerationMode]
    for method, operation in asked:
        for mode in modes:
            found.end_s = time.monotonic() + LIMIT_S / len(asked) / len(modes)
            _fuzz_one(schema[operation][method].as_strategy(generation_mode=mode), path, found)
    return found


def _fuzz_one(cases: st.SearchStrategy[Any], path: Path, found: Fuzzed) -> None:
    @seed(SEED)
    @settings(REPEATABLE, max_examples=EXAMPLES)
    @given(case=cases)
    def ask(case: Any) -> None:
        if time.monotonic() > found.end_s:
            return
        words = case.as_transport_kwargs(base_url="http://atfnd")
        try:
            request = requests.Request(**words).prepare()
        except (requests.RequestException, UnicodeError):
            return  # no client could say it
        with closing(HTTPConnection("atfnd")) as api:
            api.sock = connected(path, NOBODY)
            api.request(request.method or "", request.path_url, request.body, request.headers)  # type: ignore[arg-type]
            answer = api.getresponse()
            found.asked += 1
            found.statuses.add(answer.status)
            kind = answer.headers["Content-Type"]
            if answer.status == 400 and kind.startswith("text/plain"):
                return  # the parser's word for what is no HTTP; it has no description
            if not (case.path in ENDLESS and answer.status == 200):
                agrees(case.method, case.path, answer.status, kind, answer.read().decode())

    try:
        ask()
    except Unsatisfiable:
        return  # without parameters nothing can be wrong with them


@pytest.fixture
def bed(shared_lab: Lab) -> Iterator[Bed]:
    """A daemon whose socket anybody may open."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with a_bed(shared_lab, Path(folder), "bpf") as made:
            made.start(arm=False)
            made.daemon.socket.chmod(0o666)
            yield made


def unchanged(lab: Lab, bed: Bed, then: Callable[[], None]) -> None:
    """The machine and what the daemon may do are as before; it has complained of nothing."""

    def shown() -> object:
        return standing(lab), bed.daemon.status()["armed"], bed.daemon.events(), bed.daemon.said()

    before = shown()
    then()
    assert shown() == before
    assert bed.daemon.process is not None
    assert bed.daemon.process.poll() is None


def test_a_reader_can_ask_for_anything_and_changes_nothing(shared_lab: Lab, bed: Bed) -> None:
    def ask() -> None:
        found = fuzz(bed.daemon.socket)
        assert found.asked > 100
        assert {200, 400, 403} <= found.statuses
        assert found.statuses <= {200, 400, 403, 404, 405, 409, 413}

    unchanged(shared_lab, bed, ask)


WORDS = [
    b"GET ", b"POST ", b"\x00", b"/v1/status", b"/v1/nics/lab:lab/arm", b"/v1/reload",
    b"/v1/flows?", b" HTTP/1.1", b" HTTP/9.9", b" HTTP/1.0",
    b"\r\n", b"\n", b"\r\n\r\n", b"Host: x",
    b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 99999999999999999999",
    b"Transfer-Encoding: chunked", b"0\r\n\r\n", b"5\r\nhello\r\n", b"FFFFFFFFFFFFFFFF\r\n",
    b"Expect: 100-continue", b"Connection: Upgrade", b"Upgrade: websocket", b"hello", b"%00%ff%",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"X: " + b"y" * 9000, b"../" * 50, b"\xff\xfe\x80",
]  # fmt: skip

BEGINNINGS = [b"", b"GET /v1/status HTTP/1.1\r\nHost: x\r\n", b"POST /v1/reload HTTP/1.1\r\n"]


def test_bytes_that_are_no_request(shared_lab: Lab, bed: Bed) -> None:
    end_s = time.monotonic() + LIMIT_S
    answers: Counter[bytes] = Counter()

    @seed(SEED)
    @settings(REPEATABLE, max_examples=2000)
    @given(
        st.sampled_from(BEGINNINGS),
        st.lists(st.sampled_from(WORDS) | st.binary(max_size=20), max_size=12).map(b"".join),
        st.sampled_from([b"", b"\r\n\r\n"]),
    )
    def send(beginning: bytes, text: bytes, end: bytes) -> None:
        if time.monotonic() > end_s:
            return
        with connected(bed.daemon.socket, NOBODY) as client:
            client.settimeout(0.2)
            try:
                client.sendall(beginning + text + end)
                if not end:  # it has no more to say, and is not answered what it did not end
                    client.shutdown(1)
                answer = client.recv(65536)
            except TimeoutError:
                answers[b"more is waited for"] += 1
            except (BrokenPipeError, ConnectionResetError):
                answers[b"hung up"] += 1  # it has heard enough
            else:
                answers[answer.partition(b"\r\n")[0]] += 1

    unchanged(shared_lab, bed, send)
    assert answers.total() > 100
    usual = {b"", b"HTTP/1.0 400 Bad Request", b"HTTP/1.1 200 OK", b"HTTP/1.1 403 Forbidden"}
    assert usual <= answers.keys(), answers
    assert not any(b" 5" in line[:10] for line in answers), answers
