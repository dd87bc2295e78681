# SPDX-License-Identifier: GPL-2.0-or-later
"""The socket file, and clients that send or take nothing."""

from __future__ import annotations

import os
import select
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from atfnd.errors import OperatorError
from atfnd.model.reason import Code
from tests.serve.asking import get
from tests.serve.published import Published, Serving, flow, serving, three_flows
from tests.wait import until


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path / "atfnd.sock", three_flows()) as running:
        yield running


def test_the_socket_is_for_owner_and_group(daemon: Serving) -> None:
    assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o660


def test_the_socket_is_gone_after_a_stop(tmp_path: Path) -> None:
    with serving(tmp_path / "new" / "atfnd.sock") as running:
        assert running.socket.is_socket()
    assert not running.socket.exists()


def test_a_stop_leaves_a_successors_socket(tmp_path: Path) -> None:
    path = tmp_path / "atfnd.sock"
    with serving(path):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    assert path.is_socket()


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "atfnd.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    with serving(path) as running:
        assert get(running, "/v1/status")["pid"] == 4242


def test_a_second_daemon_is_refused_and_the_first_goes_on(daemon: Serving) -> None:
    with (
        pytest.raises(OperatorError, match="a daemon already answers") as caught,
        serving(daemon.socket),
    ):
        pass
    assert caught.value.exit_code == 2
    assert get(daemon, "/v1/status")["pid"] == 4242


@pytest.mark.parametrize("name", ["file", "directory", "far/away/atfnd.sock", "x" * 120])
def test_a_path_that_cannot_be_a_socket(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "directory").mkdir()
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(OperatorError) as caught, serving(tmp_path / name):
        pass
    assert caught.value.exit_code == 2
    assert sorted(os.listdir(tmp_path)) == before
    assert (tmp_path / "file").read_text() == "precious"


def test_a_stop_ends_idle_connections(tmp_path: Path) -> None:
    client = socket.socket(socket.AF_UNIX)
    with client:
        with serving(tmp_path / "atfnd.sock") as running:
            client.connect(str(running.socket))
            client.setblocking(False)
            until(lambda: get(running, "/v1/status"), "an answer while a client is idle")
        client.settimeout(10)
        assert not client.recv(1)


def test_a_client_that_sends_nothing_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atfnd.serve.api.requests.READ_S", 0.1)
    with serving(tmp_path / "atfnd.sock") as running, socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(running.socket))
        client.sendall(b"GET /v1/status HTTP/1.1\r\nHost:")
        assert not client.recv(1)


def test_a_body_that_does_not_come_is_408(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atfnd.serve.api.requests.READ_S", 0.1)
    with serving(tmp_path / "atfnd.sock") as running, socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(running.socket))
        head = b"POST /v1/nics/eth1/arm HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
        client.sendall(head)
        assert client.recv(4096).startswith(b"HTTP/1.1 408")
        assert not running.source.views[1].armed


def test_a_client_that_takes_nothing_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atfnd.serve.api.answers.WRITE_S", 0.1)
    source = Published()
    for n in range(1000):
        source.table.put(flow(n)._replace(why=Code.KERNEL("because " * 100)))
    with serving(tmp_path / "atfnd.sock", source) as running:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(running.socket))
            client.sendall(b"GET /v1/flows?limit=1000 HTTP/1.1\r\nHost: x\r\n\r\n")
            hung_up = select.poll()
            hung_up.register(client, select.POLLHUP)
            until(lambda: hung_up.poll(0), "the server hangs up")
        assert get(running, "/v1/status")["pid"] == 4242
